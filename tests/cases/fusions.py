"""Fusions and foldings that fire in the good build and not in the bad one."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from case import Build, Case
from graphs import Graph, normal
from onnx import TensorProto


def layer_norm(g: Graph, x: str, width: int, *, moments: bool = False) -> str:
    """Written out: by the deviations, which runtimes know, or by E[x²] − E[x]²."""
    scale = g.weight((1 + 0.01 * g.rng.standard_normal(width)).astype(np.float32))
    shift = g.weight((0.01 * g.rng.standard_normal(width)).astype(np.float32))
    mean = g.node("ReduceMean", x, axes=[-1], keepdims=1)
    centred = g.node("Sub", x, mean)
    if moments:
        second = g.node("ReduceMean", g.node("Mul", x, x), axes=[-1], keepdims=1)
        variance = g.node("Sub", second, g.node("Mul", mean, mean))
    else:
        squares = g.node("Pow", centred, g.weight(np.float32(2)))
        variance = g.node("ReduceMean", squares, axes=[-1], keepdims=1)
    root = g.node("Sqrt", g.node("Add", variance, g.weight(np.float32(1e-5))))
    return g.node("Add", g.node("Mul", g.node("Div", centred, root), scale), shift)


def norms(*, moments: bool) -> Any:
    """Six of them in a row."""
    g = Graph()
    x = g.input("x", [8, 128, 256])
    for _ in range(6):
        x = layer_norm(g, g.node("Add", x, g.weight(np.float32(0.01))), 256, moments=moments)
    g.output(x)
    return g.model()


def convolutions(*, overridable: bool) -> Any:
    """Conv, BatchNormalization, Relu; its statistics constants, or inputs with a default."""
    g = Graph()
    x, channels = g.input("x", [1, 3, 112, 112]), 3
    for _ in range(6):
        x = g.node("Conv", x, g.drawn(16, channels, 1, 1), kernel_shape=[1, 1])
        draws = (1 + 0.1 * np.abs(g.rng.standard_normal((4, 16)))).astype(np.float32)
        statistics = [g.weight(values) for values in draws]
        for name in statistics if overridable else ():
            g.input(name, [16])
        x, channels = g.node("Relu", g.node("BatchNormalization", x, *statistics)), 16
    g.output(x)
    return g.model()


def products(*, double: bool) -> Any:
    """Products with biases, which fuse; not where the products alone are in fp64."""
    g = Graph()
    x = g.input("x", [64, 384])
    for _ in range(4):
        weight, bias = g.drawn(384, 384), g.drawn(384)
        if double:
            wide = (g.node("Cast", value, to=TensorProto.DOUBLE) for value in (x, weight))
            made = g.node("Cast", g.node("MatMul", *wide), to=TensorProto.FLOAT)
        else:
            made = g.node("MatMul", x, weight)
        x = g.node("Relu", g.node("Add", made, bias))
    g.output(x)
    return g.model()


def attention(*, written_out: bool) -> Any:
    """Causal attention by torch's own function, or by hand with a mask of −inf."""
    import torch  # noqa: PLC0415 - heavy

    class Attention(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            mask = torch.full((512, 512), float("-inf")).triu(1)
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, q: Any, k: Any, v: Any) -> Any:
            if written_out:
                return torch.softmax(q @ k.transpose(-1, -2) / 8.0 + self.mask, -1) @ v
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    return Attention().eval()


def heads(batch: int, rng: Any) -> Any:
    """Queries, keys and values."""
    return [rng.standard_normal((batch, 8, 512, 64), dtype=np.float32) for _ in range(3)]


NORMS = {"x": normal(8, 128, 256)}
ROWS = {"x": normal(64, 384)}
PICTURE = {"x": normal(1, 3, 112, 112)}

CASES = (
    Case(
        name="layer_norm",
        batch=8,
        good=Build(model=partial(norms, moments=False), inputs=NORMS),
        bad=Build(model=partial(norms, moments=True), inputs=NORMS),
    ),
    Case(
        name="batch_norm",
        good=Build(model=partial(convolutions, overridable=False), inputs=PICTURE),
        bad=Build(model=partial(convolutions, overridable=True), inputs=PICTURE),
    ),
    Case(
        name="products",
        batch=64,
        good=Build(model=partial(products, double=False), inputs=ROWS),
        bad=Build(model=partial(products, double=True), inputs=ROWS),
    ),
    Case(
        name="attention",
        runtime="torch",
        batch=2,
        good=Build(model=partial(attention, written_out=False), inputs=heads),
        bad=Build(model=partial(attention, written_out=True), inputs=heads),
    ),
)
