"""What looks like another model, another precision or lost accuracy, and computes the same."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import onnx
from accuracy import dropping, eleven_negative, logarithm
from case import Build, Case
from graphs import Graph, normal
from onnx import TensorProto, numpy_helper

WIDTH = 128


def exported(
    *, turned: bool = False, named: str = "fc", constants: bool = False, transposed: bool = False
) -> Any:
    """Three dense layers as several exporters write them.

    Args:
        turned: initialisers in the opposite order, and another producer.
        named: prefix of the weights' names.
        constants: the weights are nodes.
        transposed: a Gemm of the transposed weight stands for MatMul and Add.
    """
    g = Graph()
    x = g.input("x", [64, WIDTH])
    for i in range(3):
        weight = normal(WIDTH, WIDTH, seed=i) / np.float32(11)
        bias = g.weight(normal(WIDTH, seed=10 + i), f"{named}{i}.bias")
        if transposed:
            w = g.weight(np.ascontiguousarray(weight.T), f"{named}{i}.weight")
            x = g.node("Gemm", x, w, bias, transB=1)
        else:
            if constants:
                w = g.node("Constant", value=numpy_helper.from_array(weight))
            else:
                w = g.weight(weight, f"{named}{i}.weight")
            x = g.node("Add", g.node("MatMul", x, w), bias)
        x = g.node("Relu", x)
    g.output(x)
    made = g.model()
    if turned:
        weights = list(reversed(made.graph.initializer))
        del made.graph.initializer[:]
        made.graph.initializer.extend(weights)
        made.producer_name, made.producer_version = "another exporter", "2.0"
    return made


def halves(*, stored: bool) -> Any:
    """Weights that float16 can hold, kept as such with a Cast behind them, or as float32."""
    g = Graph()
    x = g.input("x", [64, WIDTH])
    for i in range(3):
        values = (normal(WIDTH, WIDTH, seed=i) / np.float32(11)).astype(np.float16)
        if stored:
            w = g.node("Cast", g.weight(values, f"fc{i}.weight"), to=TensorProto.FLOAT)
        else:
            w = g.weight(values.astype(np.float32), f"fc{i}.weight")
        x = g.node("Relu", g.node("MatMul", x, w))
    g.output(x)
    return g.model()


def same_with_metadata(model: Any) -> Any:
    """Another producer and a note beside the same graph."""
    made: onnx.ModelProto = model()
    made.producer_name = "another exporter"
    made.metadata_props.add(key="exported", value="today")
    return made


def without_dropout() -> Any:
    """The same torch module, whose dropout was taken out because it does nothing."""
    import torch  # noqa: PLC0415 - heavy

    module = dropping(training=False)
    module[2] = torch.nn.Identity()
    return module


ROWS = {"x": normal(64, WIDTH)}
MANY_ROWS = [normal(512, 128)]
"""So many that the call that does nothing is no measurable part of the time."""

EXPORTED = Build(model=exported, inputs=ROWS)
NEGATIVE = {"x": eleven_negative()}
NAN = partial(logarithm, spoiled=False)

CASES = (
    Case(
        name="initialisers_turned",
        batch=64,
        good=EXPORTED,
        bad=Build(model=partial(exported, turned=True, named="onnx::MatMul_"), inputs=ROWS),
    ),
    Case(
        name="weights_as_nodes",
        batch=64,
        good=EXPORTED,
        bad=Build(model=partial(exported, constants=True), inputs=ROWS),
    ),
    Case(
        name="weights_transposed",
        batch=64,
        good=EXPORTED,
        bad=Build(model=partial(exported, transposed=True), inputs=ROWS),
    ),
    Case(
        name="held_by_float16",
        batch=64,
        good=Build(model=partial(halves, stored=False), inputs=ROWS),
        bad=Build(model=partial(halves, stored=True), inputs=ROWS),
    ),
    Case(
        name="same_nan",
        batch=32,
        good=Build(model=NAN, inputs=NEGATIVE),
        bad=Build(model=partial(same_with_metadata, NAN), inputs=NEGATIVE),
    ),
    Case(
        name="dropout_at_rest",
        runtime="torch",
        batch=512,
        good=Build(model=without_dropout, inputs=MANY_ROWS),
        bad=Build(model=partial(dropping, training=False), inputs=MANY_ROWS),
    ),
)
