"""Values that became wrong: weights, NaN, randomness."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from case import Build, Case
from graphs import Array, Graph, normal

WIDTH = 256


def layers(weights: list[Array]) -> Any:
    """Products with these weights, named like a checkpoint's, with Relu between them."""
    g = Graph()
    x = g.input("x", [64, WIDTH])
    for i, values in enumerate(weights):
        x = g.node("MatMul", x if i == 0 else g.node("Relu", x), g.weight(values, f"fc{i}.weight"))
    g.output(x)
    return g.model()


def checkpoint(*, disturbed: bool = False, swapped: bool = False) -> Any:
    """Four layers; one of them off by 0.2 % of its maximum, or two in each other's place."""
    weights = [normal(WIDTH, WIDTH, seed=i) / np.float32(16) for i in range(4)]
    if disturbed:
        noise = np.float32(2e-3) * np.abs(weights[2]).max() * normal(WIDTH, WIDTH, seed=9)
        weights[2] += noise
    if swapped:
        weights[1], weights[2] = weights[2], weights[1]
    return layers(weights)


def logarithm(*, spoiled: bool) -> Any:
    """NaN for every row with a negative sum; or, through a rewrite that cannot be, for all."""
    g = Graph()
    x = g.input("x", [32, 16])
    h = g.node("MatMul", x, g.weight(np.abs(normal(16, 16)) / np.float32(16)))
    y = g.node("Log", g.node("ReduceSum", h, g.weight(np.array([1])), keepdims=1))
    if spoiled:
        y = g.node("Log", g.node("Neg", g.node("Exp", y)))
    g.output(y)
    return g.model()


def eleven_negative() -> Array:
    """The first 11 of 32 rows are below zero."""
    values = np.abs(normal(32, 16))
    values[:11] *= -1
    return values


def softmax(*, written_out: bool) -> Any:
    """The operator, or its definition without subtracting the maximum first."""
    g = Graph()
    h = g.linear(g.input("x", [32, WIDTH]), WIDTH, WIDTH)
    if written_out:
        powers = g.node("Exp", h)
        total = g.node("ReduceSum", powers, g.weight(np.array([-1])), keepdims=1)
        y = g.node("Div", powers, total)
    else:
        y = g.node("Softmax", h, axis=-1)
    g.output(y)
    return g.model()


def one_large_row() -> Array:
    """One of 32 rows leaves the range of Exp."""
    values = normal(32, WIDTH)
    values[5] *= np.float32(200)
    return values


def variance(*, moments: bool) -> Any:
    """Of rows by their deviations, or by E[x²] − E[x]², which cancels where the mean is large."""
    g = Graph()
    x = g.input("x", [32, WIDTH])
    mean = g.node("ReduceMean", x, axes=[-1], keepdims=1)
    if moments:
        second = g.node("ReduceMean", g.node("Mul", x, x), axes=[-1], keepdims=1)
        y = g.node("Sub", second, g.node("Mul", mean, mean))
    else:
        centred = g.node("Sub", x, mean)
        y = g.node("ReduceMean", g.node("Mul", centred, centred), axes=[-1], keepdims=1)
    g.output(y)
    return g.model()


def dropping(*, training: bool) -> Any:
    """A torch module with dropout, in the mode in which it is live or not."""
    import torch  # noqa: PLC0415 - heavy

    torch.manual_seed(0)
    module = torch.nn.Sequential(
        torch.nn.Linear(128, 128),
        torch.nn.ReLU(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(128, 10),
    )
    return module.train(training)


def sampled(*, noisy: bool) -> Any:
    """An encoder that gives its mean, or was exported while it still samples around it."""
    g = Graph()
    y = g.linear(g.input("x", [64, 128]), 128, 64)
    if noisy:
        noise = g.node("RandomNormalLike", y)
        y = g.node("Add", y, g.node("Mul", noise, g.weight(np.float32(0.2))))
    g.output(y)
    return g.model()


def normalised(*, loaded: bool) -> Any:
    """Convolution and batch norm, whose running statistics came with the weights, or did not."""
    import torch  # noqa: PLC0415 - heavy

    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16))
    if loaded:
        module[1].running_mean += 0.3 * torch.randn(16)
        module[1].running_var *= 0.5 + torch.rand(16)
    return module.eval()


ROWS = {"x": normal(64, WIDTH)}

CASES = (
    Case(
        name="weight_disturbed",
        batch=64,
        good=Build(model=checkpoint, inputs=ROWS),
        bad=Build(model=partial(checkpoint, disturbed=True), inputs=ROWS),
    ),
    Case(
        name="layers_swapped",
        batch=64,
        good=Build(model=checkpoint, inputs=ROWS),
        bad=Build(model=partial(checkpoint, swapped=True), inputs=ROWS),
    ),
    Case(
        name="statistics_not_loaded",
        runtime="torch",
        batch=4,
        good=Build(model=partial(normalised, loaded=True), inputs=[normal(4, 3, 32, 32)]),
        bad=Build(model=partial(normalised, loaded=False), inputs=[normal(4, 3, 32, 32)]),
    ),
    Case(
        name="all_nan",
        batch=32,
        good=Build(model=partial(logarithm, spoiled=False), inputs={"x": eleven_negative()}),
        bad=Build(model=partial(logarithm, spoiled=True), inputs={"x": eleven_negative()}),
    ),
    Case(
        name="softmax_overflow",
        batch=32,
        good=Build(model=partial(softmax, written_out=False), inputs={"x": one_large_row()}),
        bad=Build(model=partial(softmax, written_out=True), inputs={"x": one_large_row()}),
    ),
    Case(
        name="cancellation",
        batch=32,
        good=Build(model=partial(variance, moments=False), inputs={"x": normal(32, WIDTH) + 3000}),
        bad=Build(model=partial(variance, moments=True), inputs={"x": normal(32, WIDTH) + 3000}),
    ),
    Case(
        name="dropout",
        runtime="torch",
        batch=64,
        good=Build(model=partial(dropping, training=False), inputs=[normal(64, 128)]),
        bad=Build(model=partial(dropping, training=True), inputs=[normal(64, 128)]),
    ),
    Case(
        name="sampling",
        batch=64,
        good=Build(model=partial(sampled, noisy=False), inputs={"x": normal(64, 128)}),
        bad=Build(model=partial(sampled, noisy=True), inputs={"x": normal(64, 128)}),
    ),
)
