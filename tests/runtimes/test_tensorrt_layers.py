"""TensorRT's engines by its inspector: a fake of the package, and layers in the documented shape.

``vendor_outputs/tensorrt_engine.json`` was written by hand to NVIDIA's documentation.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_portability.kernels import KernelPath, effective_precision
from pytest_portability.runtimes import tensorrt_layers
from pytest_portability.runtimes.tensorrt_layers import Layer

TOLD = (Path(__file__).parents[1] / "vendor_outputs" / "tensorrt_engine.json").read_text("utf-8")
OPS = {
    "Conv_0": "Conv",
    "Relu_1": "Relu",
    "MatMul_3": "MatMul",
    "Add_4": "Add",
    "MatMul_5": "MatMul",
}


class Engine:
    """What a deserialised engine is asked for."""

    def __init__(self, told: str) -> None:
        self._told = told

    def create_engine_inspector(self) -> Any:
        return SimpleNamespace(get_engine_information=lambda form: self._told if form else "")


def tensorrt(engines: dict[bytes, Engine]) -> Any:
    """A fake of the package as far as it is used."""
    opener = SimpleNamespace(deserialize_cuda_engine=engines.get)
    logger = type("Logger", (), {"ERROR": 1, "__init__": lambda _self, _level: None})
    return SimpleNamespace(
        __version__="10.13.2",
        Logger=logger,
        Runtime=lambda _logger: opener,
        LayerInformationFormat=SimpleNamespace(JSON=2),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "TensorrtExecutionProvider_TRTKernel_graph_0_0_fp16_sm80.engine").write_bytes(b"e")
    return tmp_path


def test_layers_are_read_from_the_engines_that_the_provider_left(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt({b"e": Engine(TOLD)}))
    layers = tensorrt_layers.read(folder)
    assert [layer["LayerType"] for layer in layers if not isinstance(layer, str)] == [
        *("Reformat", "CaskConvolution", "gemm", "CaskGemmMatrixMultiply")
    ]
    assert not tensorrt_layers.names_only(layers)


@pytest.mark.parametrize(
    ("engines", "reason"),
    [
        ({}, "TensorRT 10.13.2 does not read the engine that was built"),
        ({b"e": Engine(json.dumps({"Layers": []}))}, "the engine does not tell its layers"),
    ],
    ids=["another version", "nothing"],
)
def test_an_engine_that_does_not_tell_is_refused_with_the_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch, engines: dict[bytes, Engine], reason: str
) -> None:
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt(engines))
    with pytest.raises(ValueError, match=reason):
        tensorrt_layers.read(folder)


def test_no_engine_and_no_package_are_reasons(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="no engine was left"):
        tensorrt_layers.read(tmp_path_factory.mktemp("empty"))
    monkeypatch.setitem(sys.modules, "tensorrt", None)
    with pytest.raises(ImportError, match="tensorrt"):
        tensorrt_layers.read(folder)


def test_a_layer_is_a_kernel_with_its_type_and_what_it_fuses() -> None:
    uses = tensorrt_layers.uses(json.loads(TOLD)["Layers"], OPS)
    assert {use.kernel.provider for use in uses} == {"TensorrtExecutionProvider"}
    assert {(u.launches, u.share) for u in uses} == {(1, None)}
    found = {u.kernel.op: (u.kernel.role, u.kernel.precision, u.kernel.absorbs) for u in uses}
    assert found == {
        "Reformat": ("move", "fp32", ()),
        "CaskConvolution": ("compute", "fp16", ("Conv", "Relu")),
        "gemm": ("compute", "tf32", ("Add", "MatMul")),
        "CaskGemmMatrixMultiply": ("compute", "int8", ("MatMul",)),
    }


NAMES = (
    "Reformatting CopyNode for Input Tensor 0 to Conv_0 + Relu_1",
    "Conv_0 + Relu_1",
    "Conv_0 || Conv_7",
    "Conv_7 + PWN(PWN(/act/Sigmoid), PWN(/act/Mul))",
    "PWN(PWN(/act/Sigmoid), node_of_(z))",
    "{ForeignNode[MatMul_3 + Add_4.../head/Softmax]}",
    "Reformatting CopyNode for Output Tensor 0 to {ForeignNode[MatMul_3 + Add_4.../head/Softmax]}",
    "Transpose_8 + (Unnamed Layer* 229) [Shuffle]",
    "(Unnamed Layer* 353) [Activation]",
    "onnx::Concat_987 copy",
)
"""In the forms of the layer files and logs that others published."""

NAMED_OPS = {
    **OPS,
    "Conv_7": "Conv",
    "/act/Sigmoid": "Sigmoid",
    "/act/Mul": "Mul",
    "(z)": "Add",
    "/head/Softmax": "Softmax",
    "Transpose_8": "Transpose",
    "onnx::Concat_987": "Concat",
}


def test_the_name_of_a_layer_tells_what_it_fuses(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that an engine built by ONNX Runtime's provider tells (microsoft/onnxruntime #28582)."""
    told = json.dumps({"Layers": NAMES, "Bindings": ["x", "z"]})
    monkeypatch.setitem(sys.modules, "tensorrt", tensorrt({b"e": Engine(told)}))
    layers = tensorrt_layers.read(folder)
    assert tensorrt_layers.names_only(layers)
    found = {
        (u.kernel.op, u.kernel.role, u.kernel.absorbs): u.launches
        for u in tensorrt_layers.uses(layers, NAMED_OPS)
    }
    assert found == {
        ("Reformat", "move", ()): 3,
        ("layer", "compute", ("Conv", "Relu")): 1,
        ("layer", "compute", ("Conv", "Conv")): 1,
        ("layer", "compute", ("Conv", "Mul", "Sigmoid")): 1,
        ("pointwise", "compute", ("Add", "Sigmoid")): 1,
        ("ForeignNode", "compute", ("Add", "MatMul", "Softmax")): 1,
        ("layer", "layout", ("Transpose",)): 1,
        ("layer", "compute", ()): 1,
    }


def test_layers_that_are_only_named_leave_the_precision_unknown() -> None:
    uses = tensorrt_layers.uses(NAMES, NAMED_OPS)
    assert {(u.kernel.precision, u.kernel.implementation, u.share) for u in uses} == {
        ("", "", None)
    }
    assert effective_precision(KernelPath(runtime="onnxruntime.tensorrt", uses=uses)) == ""


def test_a_detailed_layer_without_metadata_is_known_by_its_name() -> None:
    layers: list[Layer] = [{"Name": "Conv_0 + PWN(Relu_1)", "LayerType": "CaskConvolution"}]
    (use,) = tensorrt_layers.uses(layers, OPS)
    assert (use.kernel.op, use.kernel.absorbs) == ("CaskConvolution", ("Conv", "Relu"))


def test_the_effective_precision_is_that_of_the_products_in_the_engine() -> None:
    layers = [layer for layer in json.loads(TOLD)["Layers"] if layer["LayerType"] != "gemm"][:2]
    path = KernelPath(runtime="onnxruntime.tensorrt", uses=tensorrt_layers.uses(layers, OPS))
    assert effective_precision(path) == "fp16"


def test_another_tactic_is_no_other_kernel() -> None:
    """Which one wins changes from build to build."""
    layers = json.loads(TOLD)["Layers"]
    again = [{**layer, "TacticName": "another", "TacticValue": "0x1"} for layer in layers[:2]]
    assert tensorrt_layers.uses(again, OPS) == tensorrt_layers.uses(layers[:2], OPS)


def test_engines_are_kept_and_built_with_the_measured_builds_timings(tmp_path: Path) -> None:
    found = tensorrt_layers.settings(tmp_path, "/cache")
    assert found["trt_engine_cache_path"] == tmp_path.as_posix()
    assert found["trt_engine_cache_enable"] == "1"
    assert found["trt_timing_cache_path"] == "/cache"
    assert "trt_timing_cache_path" not in tensorrt_layers.settings(tmp_path, "")
