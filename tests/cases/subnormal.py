"""Values that are slow for what they are: below the smallest normal float32."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from accuracy import WIDTH, layers
from case import Build, Case
from graphs import Graph, normal

SMALLEST = np.float32(2e-39)
"""Below the smallest normal float32; its products with values near 1 stay subnormal."""


def channels(*, scale: float) -> Any:
    """Three layers without an activation, an eighth of whose channels are scaled."""
    g = Graph()
    x = g.input("x", [32, WIDTH])
    for i in range(3):
        values = normal(WIDTH, WIDTH, seed=i) / np.float32(16)
        values[:, ::8] *= np.float32(scale)
        x = g.node("MatMul", x, g.weight(values, f"fc{i}.weight"))
    g.output(x)
    return g.model()


def pruned(*, decayed: bool) -> Any:
    """Half of the rows of every layer are zero, or have only decayed to almost that."""
    weights = [np.abs(normal(WIDTH, WIDTH, seed=i)) / np.float32(128) for i in range(3)]
    for values in weights:
        values[::2] = SMALLEST if decayed else 0
    return layers(weights)


ROWS = {"x": normal(64, WIDTH)}
FEW_ROWS = {"x": normal(32, WIDTH)}
FLUSHED = {"onnxruntime": {"config": {"session.set_denormal_as_zero": "1"}}}

CASES = (
    Case(
        name="decayed_channels",
        batch=32,
        good=Build(model=partial(channels, scale=1), inputs=FEW_ROWS),
        bad=Build(model=partial(channels, scale=1e-38), inputs=FEW_ROWS),
    ),
    Case(
        name="almost_pruned",
        batch=64,
        good=Build(model=partial(pruned, decayed=False), inputs=ROWS),
        bad=Build(model=partial(pruned, decayed=True), inputs=ROWS),
    ),
    Case(
        name="no_longer_flushed",
        batch=64,
        good=Build(model=partial(pruned, decayed=True), inputs=ROWS, options=FLUSHED),
        bad=Build(model=partial(pruned, decayed=True), inputs=ROWS),
    ),
)
