"""What a real provider does not take: the OpenVINO plugin leaves one operator to the CPU.

It has no kernel for the Attention of op-set 23; written out, as of an older op-set, it runs it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
from case import Build, Case
from graphs import Graph, normal

STEPS, WIDTH, HEADS = 256, 256, 4
"""Length of the sequence, and its width, which the heads share."""


def written_out(g: Graph, x: str) -> str:
    """Attention of a sequence to itself, by its definition."""
    split = g.weight(np.array([0, 0, HEADS, WIDTH // HEADS]))
    heads = g.node("Reshape", x, split)
    rows = g.node("Transpose", heads, perm=[0, 2, 1, 3])
    columns = g.node("Transpose", heads, perm=[0, 2, 3, 1])
    scale = g.weight(np.float32((WIDTH // HEADS) ** -0.5))
    scores = g.node("Mul", g.node("MatMul", rows, columns), scale)
    mixed = g.node("MatMul", g.node("Softmax", scores, axis=-1), rows)
    joined = g.node("Transpose", mixed, perm=[0, 2, 1, 3])
    return g.node("Reshape", joined, g.weight(np.array([0, 0, WIDTH])))


def attention(g: Graph, x: str, *, native: bool) -> str:
    """The same, as one operator or written out."""
    if not native:
        return written_out(g, x)
    return g.node("Attention", x, x, x, q_num_heads=HEADS, kv_num_heads=HEADS)


def network(*, native: bool, layers: int) -> Any:
    """Attention, behind so many dense layers."""
    g = Graph(opset=23 if native else 20)
    x = g.input("x", [1, STEPS, WIDTH])
    for _ in range(layers):
        x = g.node("Tanh", g.linear(x, WIDTH, WIDTH))
    g.output(attention(g, x, native=native))
    return g.model()


def case(name: str, layers: int) -> Case:
    """Written out, and then by the operator."""
    inputs = {"x": normal(1, STEPS, WIDTH)}
    return Case(
        name=name,
        runtime="onnxruntime.openvino",
        good=Build(model=partial(network, native=False, layers=layers), inputs=inputs),
        bad=Build(model=partial(network, native=True, layers=layers), inputs=inputs),
    )


CASES = (case("attention_left", layers=2), case("everything_left", layers=0))
