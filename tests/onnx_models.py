"""Tiny seeded ONNX models for the tests, each with what it is there to show."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = npt.NDArray[Any]
Dims = Sequence[int | str | None]

FLOAT = TensorProto.FLOAT
WIDTH = 64


def tensor(name: str, *shape: int, seed: int = 0, scale: float = 0.1) -> onnx.TensorProto:
    """A seeded float32 initialiser."""
    values = np.random.default_rng([seed, *name.encode()]).standard_normal(shape) * scale
    return numpy_helper.from_array(values.astype(np.float32), name)


def constant(name: str, values: Array) -> onnx.TensorProto:
    """An initialiser of given values."""
    return numpy_helper.from_array(values, name)


def model(  # a model has that many parts
    nodes: Sequence[onnx.NodeProto],
    inputs: dict[str, Dims],
    outputs: dict[str, Dims],
    weights: Sequence[onnx.TensorProto] = (),
    *,
    opset: int = 20,
    dtype: int = FLOAT,
) -> onnx.ModelProto:
    """A checked model of one input and output type."""
    graph = helper.make_graph(
        list(nodes),
        "tiny",
        [helper.make_tensor_value_info(name, dtype, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, dims) for name, dims in outputs.items()],
        list(weights),
    )
    made = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", opset)],
        ir_version=10,
        producer_name="pytorch",
        producer_version="2.13.0+cpu",
    )
    onnx.checker.check_model(made)
    return made


def mlp(layers: int = 2, *, opset: int = 20, seed: int = 0) -> onnx.ModelProto:
    """MatMul, Add, Gelu per layer, dynamic batch; the product is shared so that BiasGelu fuses.

    With ``MatMul`` alone ONNX Runtime makes a Gemm of MatMul and Add before it looks for BiasGelu;
    a three-dimensional input keeps it from that.
    """
    nodes, weights, last = [], [], "x"
    for i in range(layers):
        weights += [tensor(f"w{i}", WIDTH, WIDTH, seed=seed), tensor(f"b{i}", WIDTH, seed=seed)]
        out = "y" if i == layers - 1 else f"h{i}"
        nodes += [
            helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"matmul{i}"),
            helper.make_node("Add", [f"m{i}", f"b{i}"], [f"a{i}"], name=f"add{i}"),
            helper.make_node("Gelu", [f"a{i}"], [out], name=f"gelu{i}"),
        ]
        last = out
    dims: Dims = ["batch", 4, WIDTH]
    return model(nodes, {"x": dims}, {"y": dims}, weights, opset=opset)


def mlp_expected(inputs: Array, layers: int = 2, seed: int = 0) -> Array:
    """What ``mlp`` computes, in float64."""
    erf = np.vectorize(math.erf)
    value = inputs.astype(np.float64)
    for i in range(layers):
        w = numpy_helper.to_array(tensor(f"w{i}", WIDTH, WIDTH, seed=seed)).astype(np.float64)
        b = numpy_helper.to_array(tensor(f"b{i}", WIDTH, seed=seed)).astype(np.float64)
        value = value @ w + b
        value = value * 0.5 * (1 + erf(value / np.sqrt(2)))
    return value


def conv() -> onnx.ModelProto:
    """Two convolutions with Relu and a residual sum, for blocked layouts."""
    nodes = [
        helper.make_node("Conv", ["x", "k0", "c0"], ["p"], name="conv0", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["p"], ["q"], name="relu0"),
        helper.make_node("Conv", ["q", "k1", "c1"], ["r"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["r", "q"], ["s"], name="residual"),
        helper.make_node("Relu", ["s"], ["y"], name="relu1"),
    ]
    weights = [tensor("k0", 16, 3, 3, 3), tensor("c0", 16)]
    weights += [tensor("k1", 16, 16, 3, 3), tensor("c1", 16)]
    return model(nodes, {"x": ["batch", 3, 8, 8]}, {"y": ["batch", 16, 8, 8]}, weights)


def lstm() -> onnx.ModelProto:
    """A recurrent layer whose state ``[1, batch, 8]`` has no leading batch; batch-second input."""
    nodes = [
        helper.make_node("LSTM", ["x", "w", "r", "", "", "h", "c"], ["y", "hn"], hidden_size=8)
    ]
    weights = [tensor("w", 1, 32, 5), tensor("r", 1, 32, 8)]
    state: Dims = [1, "batch", 8]
    return model(
        nodes,
        {"x": ("time", "batch", 5), "h": state, "c": state},
        {"y": ("time", 1, "batch", 8), "hn": state},
        weights,
    )


def quantised() -> onnx.ModelProto:
    """A product between quantise and dequantise nodes, weights stored as int8."""
    rng = np.random.default_rng(0)
    scale, zero = np.float32(0.02), np.int8(0)
    weights = [
        constant("w8", rng.integers(-90, 90, (WIDTH, WIDTH), dtype=np.int8)),
        constant("s", np.array(scale)),
        constant("z", np.array(zero)),
    ]
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], name="quantise"),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"], name="dequantise"),
        helper.make_node("DequantizeLinear", ["w8", "s", "z"], ["wd"], name="dequantise_w"),
        helper.make_node("MatMul", ["xd", "wd"], ["m"], name="matmul"),
        helper.make_node("QuantizeLinear", ["m", "s", "z"], ["mq"], name="quantise_out"),
        helper.make_node("DequantizeLinear", ["mq", "s", "z"], ["y"], name="dequantise_out"),
    ]
    dims: Dims = ["batch", WIDTH]
    return model(nodes, {"x": dims}, {"y": dims}, weights)


def attention(opset: int = 23) -> onnx.ModelProto:
    """A native ``Attention`` between two products: the OpenVINO provider leaves it to the CPU."""
    nodes = [
        helper.make_node("MatMul", ["x", "wi"], ["a"], name="into"),
        helper.make_node(
            "Attention", ["a", "a", "a"], ["t"], name="attend", q_num_heads=4, kv_num_heads=4
        ),
        helper.make_node("MatMul", ["t", "wo"], ["y"], name="out"),
    ]
    dims: Dims = ["batch", 8, WIDTH]
    weights = [tensor("wi", WIDTH, WIDTH), tensor("wo", WIDTH, WIDTH)]
    return model(nodes, {"x": dims}, {"y": dims}, weights, opset=opset)


def not_finite() -> onnx.ModelProto:
    """The logarithm of a negative number: every output is NaN."""
    nodes = [
        helper.make_node("Abs", ["x"], ["a"]),
        helper.make_node("Neg", ["a"], ["n"]),
        helper.make_node("Sub", ["n", "one"], ["m"]),
        helper.make_node("Log", ["m"], ["y"]),
    ]
    dims: Dims = ["batch", 4]
    return model(nodes, {"x": dims}, {"y": dims}, [constant("one", np.ones(1, np.float32))])


def huge() -> onnx.ModelProto:
    """An output of as many elements as the input says, to run out of memory."""
    graph = helper.make_graph(
        [
            helper.make_node("Expand", ["one", "n"], ["e"]),
            helper.make_node("Add", ["e", "e"], ["y"]),
        ],
        "huge",
        [helper.make_tensor_value_info("n", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", FLOAT, ["n"])],
        [constant("one", np.ones(1, np.float32))],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def text() -> onnx.ModelProto:
    """Strings in, strings out."""
    nodes = [helper.make_node("Identity", ["x"], ["y"])]
    return model(nodes, {"x": ["batch"]}, {"y": ["batch"]}, dtype=TensorProto.STRING)


def branching() -> onnx.ModelProto:
    """An ``If`` whose branches read a value from outside."""
    value = [helper.make_tensor_value_info("b", FLOAT, ["batch", 4])]
    then = helper.make_graph([helper.make_node("Relu", ["x"], ["b"])], "then", [], value)
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["b"])], "other", [], value)
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        helper.make_node("Cast", ["s"], ["f"], to=TensorProto.BOOL),
        helper.make_node("If", ["f"], ["y"], then_branch=then, else_branch=other),
    ]
    dims: Dims = ["batch", 4]
    return model(nodes, {"x": dims}, {"y": dims})


def renamed(original: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with other node and value names; inputs, outputs and weights keep theirs."""
    made = onnx.ModelProto()
    made.CopyFrom(original)
    graph = made.graph
    kept = {v.name for v in (*graph.input, *graph.output, *graph.initializer)}
    for node in graph.node:
        node.name = f"other_{node.name}"
        for names in (node.input, node.output):
            for i, name in enumerate(names):
                names[i] = name if not name or name in kept else f"other_{name}"
    return made


def reordered(original: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with its initialisers and, where order is free, its nodes turned round."""
    made = onnx.ModelProto()
    made.CopyFrom(original)
    weights = list(reversed(made.graph.initializer))
    known = {"", *(v.name for v in made.graph.input), *(w.name for w in weights)}
    waiting, order = list(reversed(made.graph.node)), []
    while waiting:
        node = next(n for n in waiting if known.issuperset(n.input))
        waiting.remove(node)
        order.append(node)
        known.update(node.output)
    del made.graph.node[:], made.graph.initializer[:]
    made.graph.node.extend(order)
    made.graph.initializer.extend(weights)
    return made


def annotated(original: onnx.ModelProto) -> onnx.ModelProto:
    """The same graph with metadata and doc strings, as an exporter leaves them."""
    made = onnx.ModelProto()
    made.CopyFrom(original)
    made.doc_string = "exported yesterday"
    made.metadata_props.add(key="stack_trace", value="/home/someone/model.py")
    for node in made.graph.node:
        node.doc_string = "from here"
        node.metadata_props.add(key="namespace", value="net.layer")
    return made


def save(made: onnx.ModelProto, path: Path) -> Path:
    """Write a model in one file."""
    onnx.save(made, str(path))
    return path


def save_external(made: onnx.ModelProto, path: Path) -> Path:
    """Write a model with its weights in ``<stem>.bin`` beside it."""
    copy = onnx.ModelProto()
    copy.CopyFrom(made)  # saving turns the given proto's tensors into references
    onnx.save(
        copy,
        str(path),
        save_as_external_data=True,
        location=f"{path.stem}.bin",
        size_threshold=0,
    )
    return path
