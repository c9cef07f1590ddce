"""The first part of a model whose output is not the reference's is found by bisection."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import onnx_models
import pytest
from onnx import TensorProto, helper
from runtimes.fake import FakeRuntime

from pytest_portability import divergence, models, runtimes
from pytest_portability.models import Arrays
from pytest_portability.samples import Sampling
from pytest_portability.subject import Source
from pytest_portability.worker import Job

pytest.importorskip("onnxruntime", reason="the reference runs on it")

ROWS = {"x": np.random.default_rng(1).standard_normal((2, 4, onnx_models.WIDTH), dtype=np.float32)}


def job(folder: Path, model: Any, inputs: Arrays, runtime: Any, **changes: Any) -> Job:
    source = folder / "model"
    source.write_bytes(cloudpickle.dumps(model))
    fields: Mapping[str, Any] = {
        "source": Source(model=source, inputs=source, name="m"),
        "path": None,
        "runtime": runtime,
        "handle": "cpu",
        "platform": "cpu",
        "precision": "native",
        "options": {},
        "inputs": inputs,
        "sampling": Sampling(),
        "cache_dir": "",
    }
    return Job(**{**fields, **changes})


@pytest.mark.parametrize("layers", [1, 7])
@pytest.mark.parametrize("part", ["m", "a", "h"])
def test_the_first_of_many_nodes_is_named_with_its_error(
    tmp_path: Path, layers: int, part: str
) -> None:
    at = layers // 2
    tensor, op = {
        "m": (f"m{at}", "MatMul"),
        "a": (f"a{at}", "Add"),
        "h": (f"h{at}" if at < layers - 1 else "y", "Gelu"),
    }[part]
    model = onnx_models.mlp(layers)
    said = divergence.first(job(tmp_path, model, ROWS, FakeRuntime(spoils=tensor)), 1e-3)
    known = ", and what it is computed from does not"
    first = tensor == "m0"
    assert said == (
        f"first to diverge of {3 * layers} nodes: {op} (output '{tensor}': relative L2 error 0.1 "
        f"against the reference > 0.001){'' if first else known}"
    )


def test_a_branch_that_is_right_does_not_mislead(tmp_path: Path) -> None:
    """In the order of the nodes the right branch stands between the wrong node and the end."""
    nodes = [
        helper.make_node("Relu", ["x"], ["wrong"]),
        *(helper.make_node("Tanh", ["x" if i == 0 else f"t{i}"], [f"t{i + 1}"]) for i in range(20)),
        helper.make_node("Add", ["wrong", "t20"], ["sum"]),
        helper.make_node("Exp", ["sum"], ["y"]),
    ]
    dims: onnx_models.Dims = ["batch", 4, onnx_models.WIDTH]
    model = onnx_models.model(nodes, {"x": dims}, {"y": dims})
    said = divergence.first(job(tmp_path, model, ROWS, FakeRuntime(spoils="wrong")), 1e-3)
    assert "Relu (output 'wrong': " in said


def test_a_build_that_agrees_when_it_is_cut_is_said_to(tmp_path: Path) -> None:
    model = onnx_models.mlp()
    assert divergence.first(job(tmp_path, model, ROWS, FakeRuntime()), 1e-3) == (
        "cut behind its outputs, the model agrees with itself on the CPU"
    )


def test_values_that_a_branch_of_the_graph_captures_are_known(tmp_path: Path) -> None:
    """An If whose bodies read from outside, behind a tensor that is wrong."""
    shape: onnx_models.Dims = ["batch", 4, onnx_models.WIDTH]

    def body(op: str) -> Any:
        out = helper.make_tensor_value_info(f"{op}_out", onnx_models.FLOAT, shape)
        node = helper.make_node(op, ["wrong"], [f"{op}_out"])
        return helper.make_graph([node], op, [], [out])

    nodes = [
        helper.make_node("Tanh", ["x"], ["wrong"]),
        helper.make_node(
            "If", ["yes"], ["chosen"], then_branch=body("Abs"), else_branch=body("Neg")
        ),
        helper.make_node("Exp", ["chosen"], ["y"]),
    ]
    yes = onnx_models.constant("yes", np.array(True))
    model = onnx_models.model(nodes, {"x": shape}, {"y": shape}, [yes])
    said = divergence.first(job(tmp_path, model, ROWS, FakeRuntime(spoils="wrong")), 1e-3)
    assert "Tanh (output 'wrong': " in said
    said = divergence.first(job(tmp_path, model, ROWS, FakeRuntime(spoils="chosen")), 1e-3)
    assert "If (output 'chosen': " in said
    assert "and what it is computed from does not" in said


def test_behind_a_wrong_label_the_numbers_are_looked_at(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Tanh", ["x"], ["h"]),
        helper.make_node("ArgMax", ["h"], ["y"], axis=2, keepdims=0),
    ]
    graph = helper.make_graph(
        nodes,
        "labels",
        [helper.make_tensor_value_info("x", onnx_models.FLOAT, [2, 4, onnx_models.WIDTH])],
        [helper.make_tensor_value_info("y", TensorProto.INT64, [2, 4])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    said = divergence.first(job(tmp_path, model, ROWS, FakeRuntime(spoils="h")), 1e-3)
    assert "Tanh (output 'h': " in said


def test_a_search_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "MOST_CUTS", 2)
    found = divergence.first(
        job(tmp_path, onnx_models.mlp(7), ROWS, FakeRuntime(spoils="m3")), 1e-3
    )
    assert found == "the first node that diverges was not found in 2 cuts of the model"


def test_a_model_beside_its_data_is_cut_too(tmp_path: Path) -> None:
    path = onnx_models.save_external(onnx_models.mlp(3), tmp_path / "m.onnx")
    said = divergence.first(job(tmp_path, path, ROWS, FakeRuntime(spoils="a1")), 1e-3)
    assert "Add (output 'a1': " in said


def test_the_module_whose_values_overflow_is_named(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    linear = torch.nn.Linear(8, 8)
    torch.nn.init.constant_(linear.weight, 1e4)  # float16 ends at 65504
    model = torch.nn.Sequential(torch.nn.Identity(), linear, torch.nn.Softmax(-1))
    rows = {"0": np.full((2, 8), 3.0, np.float32)}
    made = job(tmp_path, model, rows, runtimes.load("torch"), precision="fp16")
    said = divergence.first(made, 1e-2)
    assert said.startswith("first to diverge of 3 modules as they ran: Linear '1' (output")
    assert "NaN, infinite or masked" in said


def test_a_module_on_another_branch_is_not_blamed(tmp_path: Path) -> None:
    """And what was left in training mode stays in it: its randomness is the fault."""
    torch = pytest.importorskip("torch")

    class Branches(torch.nn.Module):  # type: ignore[misc,name-defined] # mypy does not follow torch
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c = torch.nn.Dropout(0.5), torch.nn.Tanh(), torch.nn.ReLU(True)

        def forward(self, x: Any) -> Any:
            left, right = self.a(x), self.b(x)
            return self.c(left + right)

    model = Branches().eval()
    model.a.train()
    made = job(tmp_path, model, {"x": np.ones((64, 8), np.float32)}, runtimes.load("torch"))
    assert "Dropout 'a' (output" in divergence.first(made, 1e-3)


def test_a_module_that_overwrites_its_input_is_told(tmp_path: Path) -> None:
    """Every part agrees with itself, and the second run starts from what the first one left."""
    torch = pytest.importorskip("torch")

    class Scales(torch.nn.Module):  # type: ignore[misc,name-defined] # mypy does not follow torch
        def forward(self, x: Any) -> Any:
            return x.div_(255.0) + 1

    made = job(tmp_path, Scales(), {"x": np.ones((4, 8), np.float32)}, runtimes.load("torch"))
    assert divergence.first(made, 1e-3) == (
        "the module overwrites its input 0: the next run starts from that"
    )


def test_a_factory_without_a_seed_is_told(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    made = job(
        tmp_path,
        lambda: torch.nn.Linear(8, 8),
        {"0": np.ones((4, 8), np.float32)},
        runtimes.load("torch"),
    )
    said = divergence.first(made, 1e-3, "0" * 64)
    assert said == (
        "what makes the model made other weights than for the reference: give it a seed"
    )
    fixed = job(tmp_path, torch.nn.Linear(8, 8), made.inputs, made.runtime)
    weights = models.describe(fixed.source.load()).weights
    assert divergence.first(fixed, 1e-3, weights) == (
        "each of its modules agrees with itself on the CPU"
    )
