"""A builder of small seeded ONNX graphs: values have running names, weights are drawn or given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

Array = npt.NDArray[Any]
FLOAT = TensorProto.FLOAT


class Graph:
    """Nodes in the order in which they are added.

    Args:
        seed: of every drawn weight; two graphs that draw alike have the same weights.
        opset: of the default domain.
    """

    def __init__(self, *, seed: int = 0, opset: int = 17) -> None:
        self.rng = np.random.default_rng(seed)
        self._opset = opset
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._count = 0

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def input(self, name: str, shape: Sequence[int | str], dtype: int = FLOAT) -> str:
        """A graph input."""
        self._inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, value: str, name: str = "y", shape: Any = None, dtype: int = FLOAT) -> None:
        """Give a value out."""
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def weight(self, values: Any, name: str = "") -> str:
        """An initialiser of given values."""
        name = name or self._name("w")
        self._weights.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def drawn(self, *shape: int, name: str = "", dtype: Any = np.float32) -> str:
        """A normal weight, scaled so that a product with it keeps the size of values."""
        fan_in = shape[0] if len(shape) == 2 else math.prod(shape[1:])
        values = self.rng.standard_normal(shape) / math.sqrt(max(1, fan_in))
        return self.weight(values.astype(dtype), name)

    def node(self, op: str, *inputs: str, **attributes: Any) -> str:
        """A node with one output, whose name is returned."""
        made = self._name("v")
        name = f"{op}_{self._count}"
        self._nodes.append(helper.make_node(op, list(inputs), [made], name=name, **attributes))
        return made

    def model(self) -> onnx.ModelProto:
        """The model, with the shapes of its outputs inferred."""
        graph = helper.make_graph(self._nodes, "case", self._inputs, self._outputs, self._weights)
        opset = [helper.make_opsetid("", self._opset)]
        made = helper.make_model(graph, opset_imports=opset, ir_version=10)
        inferred: onnx.ModelProto = shape_inference.infer_shapes(made)
        del inferred.graph.value_info[:]
        return inferred

    def linear(self, x: str, wide: int, out: int) -> str:
        """A product with a drawn matrix, plus a bias."""
        bias = self.weight((0.01 * self.rng.standard_normal(out)).astype(np.float32))
        return self.node("Add", self.node("MatMul", x, self.drawn(wide, out)), bias)


def normal(*shape: int, seed: int = 2) -> Array:
    """Seeded normal float32 values."""
    return np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
