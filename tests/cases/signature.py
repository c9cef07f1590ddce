"""What a caller sees of a model changed: names, order, shapes, dtypes."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from case import Build, Case
from graphs import FLOAT, Graph, normal
from onnx import TensorProto


def classifier(*, small_types: bool = False, swapped: bool = False, squeezed: bool = False) -> Any:
    """Logits and label of each row, and what a re-export may make of them.

    Args:
        small_types: float16 and int32 instead of float32 and int64.
        swapped: the label first.
        squeezed: the label without its last dimension of 1.
    """
    g = Graph()
    logits = g.linear(g.input("x", [32, 64]), 64, 10)
    label = g.node("ArgMax", logits, axis=-1, keepdims=0 if squeezed else 1)
    types = (FLOAT, TensorProto.INT64)
    if small_types:
        types = (TensorProto.FLOAT16, TensorProto.INT32)
        logits, label = (
            g.node("Cast", v, to=t) for v, t in zip((logits, label), types, strict=True)
        )
    outputs = [("logits", logits, types[0]), ("label", label, types[1])]
    for name, value, dtype in reversed(outputs) if swapped else outputs:
        g.output(value, name, dtype=dtype)
    return g.model()


def embedding(*, dtype: int, name: str = "ids") -> Any:
    """Rows looked up by ids of that type, and a product."""
    g = Graph()
    table = g.drawn(64, 32)
    found = g.node("Gather", table, g.input(name, [16, 8], dtype))
    g.output(g.linear(found, 32, 32))
    return g.model()


def ids(dtype: type[np.integer[Any]], name: str = "ids") -> Any:
    """The same ids in either type."""
    return {name: np.random.default_rng(3).integers(0, 64, (16, 8)).astype(dtype)}


ROWS = {"x": normal(32, 64)}
GOOD = Build(model=classifier, inputs=ROWS)
GOOD_IDS = Build(model=partial(embedding, dtype=TensorProto.INT64), inputs=ids(np.int64))

CASES = (
    Case(
        name="output_dtypes",
        batch=32,
        good=GOOD,
        bad=Build(model=partial(classifier, small_types=True), inputs=ROWS),
    ),
    Case(
        name="output_order",
        batch=32,
        good=GOOD,
        bad=Build(model=partial(classifier, swapped=True), inputs=ROWS),
    ),
    Case(
        name="output_shape",
        batch=32,
        good=GOOD,
        bad=Build(model=partial(classifier, squeezed=True), inputs=ROWS),
    ),
    Case(
        name="input_dtype",
        batch=16,
        good=GOOD_IDS,
        bad=Build(model=partial(embedding, dtype=TensorProto.INT32), inputs=ids(np.int32)),
    ),
    Case(
        name="input_name",
        batch=16,
        good=GOOD_IDS,
        bad=Build(
            model=partial(embedding, dtype=TensorProto.INT64, name="tokens"),
            inputs=ids(np.int64, "tokens"),
        ),
    ),
)
