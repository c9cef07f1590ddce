"""The same model told in other words, and the same build on a bad day: nothing to flag."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from case import Build, Case
from graphs import Graph, normal
from onnx import helper, numpy_helper

Change = Callable[[onnx.ModelProto], onnx.ModelProto]

NEIGHBOUR = "import time\nend = time.time() + 2\nwhile time.time() < end: pass"
"""A program that keeps one core busy for two seconds."""


def network(*, opset: int = 17, change: Change | None = None, layers: int = 3) -> Any:
    """Products with activations between them, then told otherwise."""
    g = Graph(opset=opset)
    x = g.input("x", [64, 192])
    for _ in range(layers):
        x = g.node("Relu", g.linear(x, 192, 192))
    g.output(x, shape=[64, 192])
    made = g.model()
    return change(made) if change else made


def external(model: onnx.ModelProto) -> Any:
    """Its weights beside it, in a file of their own."""
    path = Path(tempfile.mkdtemp()) / "model.onnx"
    onnx.save(
        model, str(path), save_as_external_data=True, location="model.data", size_threshold=64
    )
    return path


def renamed(model: onnx.ModelProto) -> onnx.ModelProto:
    """Other names of nodes, values and weights, as another exporter gives them."""
    kept = {value.name for value in (*model.graph.input, *model.graph.output)}
    names: dict[str, str] = {}
    for i, node in enumerate(model.graph.node):
        node.name = f"/encoder/layer.{i}/{node.op_type}"
        for values in (node.input, node.output):
            values[:] = [
                v if v in kept else names.setdefault(v, f"onnx::{node.op_type}_{300 + len(names)}")
                for v in values
            ]
    for weight in model.graph.initializer:
        weight.name = names[weight.name]
    return model


def branches(*, reverse: bool) -> Any:
    """Branches that do not depend on each other, in either order."""
    g = Graph()
    x = g.input("x", [64, 192])
    weights = [g.drawn(192, 96) for _ in range(5)]
    ends = {}
    for i in reversed(range(5)) if reverse else range(5):
        ends[i] = g.node("Relu", g.node("MatMul", x, weights[i]))
    g.output(g.node("Concat", *(ends[i] for i in range(5)), axis=1))
    return g.model()


def reshapes(*, dynamic: bool) -> Any:
    """Reshapes to given shapes, or to shapes computed from a symbolic batch.

    The runtime folds the arithmetic away where the batch is known when it builds.
    """
    g = Graph()
    x = g.input("x", ["n" if dynamic else 4, 64])

    def reshaped(value: str, *rest: int) -> str:
        if not dynamic:
            return g.node("Reshape", value, g.weight(np.array([4, *rest])))
        batch = g.node("Gather", g.node("Shape", value), g.weight(np.array([0])), axis=0)
        shape = g.node("Concat", batch, g.weight(np.array(rest)), axis=0)
        return g.node("Reshape", value, shape)

    for _ in range(12):
        x = reshaped(g.node("Transpose", reshaped(x, 4, 16), perm=[0, 2, 1]), 64)
        x = g.node("Relu", g.node("MatMul", x, g.drawn(64, 64)))
    g.output(x, shape=["n" if dynamic else 4, 64])
    return g.model()


def annotated(model: onnx.ModelProto) -> onnx.ModelProto:
    """Another producer, metadata and doc strings."""
    model.producer_name, model.producer_version = "another exporter", "9.1"
    model.doc_string = model.graph.doc_string = "The same model."
    model.graph.name = "main_graph"
    helper.set_model_props(model, {"exported": "2026-01-01", "author": "somebody else"})
    for node in model.graph.node:
        node.doc_string = "File model.py, line 12, in forward"
    return model


def gemms(model: onnx.ModelProto) -> onnx.ModelProto:
    """Each product with its bias as one node, as another exporter writes it."""
    products, nodes = {}, []
    for node in model.graph.node:
        if node.op_type == "MatMul":
            products[node.output[0]] = node
        elif node.op_type == "Add" and node.input[0] in products:
            inputs = [*products[node.input[0]].input, node.input[1]]
            nodes.append(helper.make_node("Gemm", inputs, node.output, name=node.name))
        else:
            nodes.append(node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def constants(model: onnx.ModelProto) -> onnx.ModelProto:
    """Weights as Constant nodes, as old exporters write them."""
    nodes = [
        helper.make_node("Constant", [], [weight.name], value=weight)
        for weight in model.graph.initializer
    ]
    nodes += model.graph.node
    del model.graph.initializer[:]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def crowded(model: onnx.ModelProto) -> onnx.ModelProto:
    """A small weight that nothing reads, and the others in another order and encoding."""
    weights = [numpy_helper.to_array(w) for w in model.graph.initializer]
    names = [w.name for w in model.graph.initializer]
    typed = [
        helper.make_tensor(name, onnx.TensorProto.FLOAT, array.shape, array.ravel().tolist())
        for name, array in zip(names, weights, strict=True)
    ]
    unused = numpy_helper.from_array(np.ones(16, np.float32), "unused")
    del model.graph.initializer[:]
    model.graph.initializer.extend([unused, *reversed(typed)])
    return model


def padded(model: onnx.ModelProto) -> onnx.ModelProto:
    """Nodes that do nothing after each activation: Identity, Dropout and a Cast to the same."""
    nodes = []
    for i, node in enumerate(model.graph.node):
        nodes.append(node)
        if node.op_type == "Relu":
            (name,) = node.output
            node.output[:] = [f"{name}_a"]
            nodes += [
                helper.make_node("Identity", [f"{name}_a"], [f"{name}_b"], f"identity{i}"),
                helper.make_node("Dropout", [f"{name}_b"], [f"{name}_c"], f"dropout{i}"),
                helper.make_node("Cast", [f"{name}_c"], [name], f"cast{i}", to=1),
            ]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def symbolic(model: onnx.ModelProto, *, name: str) -> onnx.ModelProto:
    """A batch of any size, under that name."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = name
    return model


def functions(model: onnx.ModelProto) -> onnx.ModelProto:
    """Each activation as a call of a function that the file defines, as new exporters write."""
    body = [helper.make_node("Relu", ["x"], ["y"])]
    opset = list(model.opset_import)
    model.functions.append(helper.make_function("local", "Act", ["x"], ["y"], body, opset))
    model.opset_import.append(helper.make_opsetid("local", 1))
    for node in model.graph.node:
        if node.op_type == "Relu":
            node.op_type, node.domain = "Act", "local"
    return model


def steps(*, slow_calls: int = 0, nested: bool = False) -> Any:
    """Elementwise steps.

    Args:
        slow_calls: so many calls take half a second more, as the first ones of a build may.
        nested: inside other modules, whose input has the same name.
    """
    import torch  # noqa: PLC0415 - heavy

    class Steps(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.left = slow_calls

        def forward(self, x: Any) -> Any:
            if self.left:
                self.left -= 1
                time.sleep(0.5)
            for _ in range(25):
                x = (x * 1.01 + 0.1).clamp(-3.0, 3.0)
            return x

    class Outer(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(Steps())

        def forward(self, x: Any) -> Any:
            return self.inner(x)

    return (Outer() if nested else Steps()).eval()


def beside_neighbours() -> Any:
    """The network, built while two other processes take the cores."""
    for _ in range(2):
        subprocess.Popen([sys.executable, "-c", NEIGHBOUR])
    return network()


def sized(name: str) -> Any:
    """Makes the network with a batch of that name."""
    return partial(network, change=partial(symbolic, name=name))


def rows(batch: int, rng: Any) -> Any:
    """A matrix."""
    return [rng.standard_normal((batch, 256), dtype=np.float32)]


def told(name: str, good: Any, bad: Any, *shape: int, runtime: str = "onnxruntime.cpu") -> Case:
    """A case of two models that compute the same; a network's inputs unless a shape is given."""
    shape = shape or (64, 192)
    inputs = {"x": normal(*shape)}
    return Case(
        name=name,
        runtime=runtime,
        batch=shape[0],
        good=Build(model=good, inputs=inputs),
        bad=Build(model=bad, inputs=inputs),
    )


def torch_case(name: str, runtime: str, good: Any, bad: Any) -> Case:
    """A case of two torch modules that compute the same."""
    return Case(
        name=name,
        runtime=runtime,
        batch=64,
        good=Build(model=good, inputs=rows),
        bad=Build(model=bad, inputs=rows),
    )


SIX_LAYERS = partial(network, layers=6)

CASES = (
    told("external", network, partial(network, change=external)),
    told("renamed", network, partial(network, change=renamed)),
    told("reordered", partial(branches, reverse=False), partial(branches, reverse=True)),
    told("dynamic", partial(reshapes, dynamic=False), partial(reshapes, dynamic=True), 4, 64),
    told("annotated", network, partial(network, change=annotated)),
    told("gemms", network, partial(network, change=gemms)),
    told("opset", network, partial(network, opset=18)),
    told("constants", network, partial(network, change=constants)),
    told("crowded", network, partial(network, change=crowded)),
    told("padded", network, partial(network, change=padded)),
    told("symbolic", sized("batch"), sized("N")),
    told("functions", network, partial(network, change=functions)),
    told("same", SIX_LAYERS, SIX_LAYERS),
    told("same_openvino", SIX_LAYERS, SIX_LAYERS, runtime="openvino"),
    torch_case("nested", "torch", steps, partial(steps, nested=True)),
    torch_case("slow_start", "torch", steps, partial(steps, slow_calls=3)),
    torch_case("compiled", "torch.compile", steps, steps),
    # Last: its neighbours outlive it.
    told("neighbours", network, beside_neighbours),
)
