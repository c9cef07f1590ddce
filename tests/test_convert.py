"""A torch module becomes ONNX and half precision, with the names that everything else uses."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
ort = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

import torch_models  # noqa: E402 - needs torch
from torch_models import WIDTH, rows, seeded  # noqa: E402 - needs torch

from pytest_portability import convert  # noqa: E402 - after the checks for packages
from pytest_portability.errors import BuildError, ModelError, Unsupported  # noqa: E402
from pytest_portability.models import Arrays  # noqa: E402
from pytest_portability.runtimes import Request, load  # noqa: E402

SCALE = np.array(2.0, np.float32)


def _eager(module: Any, inputs: Arrays) -> Arrays:
    request = Request(model=torch_models.model(module), handle="cpu", platform="cpu")
    return load("torch").build(request).predict(inputs)


def _onnx(path: Path, inputs: Arrays) -> Arrays:
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(None, inputs), strict=True))


class Collecting(torch_models.Named):
    """Takes whatever it is given by name."""

    def forward(self, *values: Any, **named: Any) -> Any:
        return super().forward(*values, **named)


@pytest.mark.parametrize(
    ("module_type", "inputs", "more"),
    [
        (torch_models.Mlp, rows(2, WIDTH), rows(5, WIDTH)),
        (torch_models.Mlp, rows(1, WIDTH), rows(3, WIDTH)),
        (torch_models.Mlp, rows(2, WIDTH, name="x"), rows(3, WIDTH, name="x")),
        (torch_models.Attention, rows(2, 6, WIDTH), rows(3, 6, WIDTH)),
        (
            torch_models.Named,
            {**rows(1, WIDTH), "scale": SCALE},
            {**rows(4, WIDTH), "scale": SCALE},
        ),
        (Collecting, {**rows(2, WIDTH), "scale": SCALE}, {**rows(4, WIDTH), "scale": SCALE}),
    ],
    ids=["mlp", "batch-1", "by-name", "attention", "named-outputs", "collecting"],
)
def test_an_export_takes_the_same_arrays_and_gives_the_same_names(
    module_type: Any, inputs: Arrays, more: Arrays, tmp_path: Path
) -> None:
    """For any batch size; one example of size 1 is no constant."""
    module = seeded(module_type)
    facts = convert.export(module, inputs, tmp_path / "model.onnx")
    assert facts["batch"] == "dynamic"
    for batch in (inputs, more):
        expected = _eager(module, batch)
        found = _onnx(tmp_path / "model.onnx", batch)
        assert list(found) == list(expected)
        for name, array in expected.items():
            np.testing.assert_allclose(found[name], array, atol=1e-5)


def test_the_facts_name_exporter_and_opset(tmp_path: Path) -> None:
    """They alone decide which fusions fire."""
    facts = convert.export(seeded(torch_models.Mlp), rows(2, WIDTH), tmp_path / "m.onnx", opset=18)
    assert facts["exporter"].startswith(f"torch.onnx dynamo (torch {torch.__version__}, onnxscript")
    assert facts["opset"] == "18"
    model = onnx.load(tmp_path / "m.onnx")
    assert {entry.version for entry in model.opset_import if not entry.domain} == {18}


def test_a_half_precision_module_keeps_fp32_inputs(tmp_path: Path) -> None:
    """As the torch runtime does, so that one set of arrays feeds both."""
    module = seeded(torch_models.Mlp).half()
    inputs = rows(2, WIDTH)
    convert.export(module, inputs, tmp_path / "model.onnx")
    expected = _eager(module, inputs)["output"]
    found = _onnx(tmp_path / "model.onnx", inputs)["output"]
    assert found.dtype == expected.dtype == np.float16
    np.testing.assert_allclose(found, expected, atol=2e-2)


def test_a_module_that_cannot_be_exported_says_why(tmp_path: Path) -> None:
    """The exporter's own words, after which module and which op-set."""
    with pytest.raises(BuildError) as caught:
        convert.export(seeded(torch_models.Breaking), rows(2, WIDTH), tmp_path / "model.onnx")
    assert str(caught.value).startswith("torch.onnx could not export Breaking to op-set 20: ")
    assert not (tmp_path / "model.onnx").exists()


def test_fp16_is_made_by_a_named_converter(tmp_path: Path) -> None:
    """Weights in half precision, inputs and outputs as they were."""
    inputs = rows(2, WIDTH)
    module = seeded(torch_models.Mlp)
    convert.export(module, inputs, tmp_path / "model.onnx")
    facts = convert.to_precision(tmp_path / "model.onnx", "fp16", tmp_path / "half.onnx")
    assert facts == {"converter": f"onnxruntime.transformers.float16 {ort.__version__}"}
    weights = onnx.load(tmp_path / "half.onnx").graph.initializer
    assert onnx.TensorProto.FLOAT16 in {weight.data_type for weight in weights}
    found = _onnx(tmp_path / "half.onnx", inputs)["output"]
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, _eager(module, inputs)["output"], atol=2e-2)


def test_bf16_is_refused_with_the_way_out(tmp_path: Path) -> None:
    """The converter has no bf16."""
    with pytest.raises(Unsupported) as caught:
        convert.to_precision(tmp_path / "model.onnx", "bf16", tmp_path / "half.onnx")
    assert str(caught.value) == (
        "bf16: onnxruntime.transformers.float16 converts an ONNX file to fp16 only; give a model "
        "that is already bf16, with precision 'native'"
    )


def test_a_file_that_is_no_model_is_named(tmp_path: Path) -> None:
    """Not a protobuf message without a name."""
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\xff\xff not a model")
    with pytest.raises(ModelError, match=r"cannot read '.*model\.onnx' as ONNX: "):
        convert.to_precision(path, "fp16", tmp_path / "half.onnx")


@pytest.mark.parametrize("package", ["onnx", "onnxscript"])
def test_a_missing_exporter_says_what_to_install(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Package, purpose, pip line, original error."""
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(Unsupported) as caught:
        convert.export(seeded(torch_models.Mlp), rows(2, WIDTH), tmp_path / "model.onnx")
    assert str(caught.value) == (
        f"{package} is not installed: it is needed to export a torch module to op-set 20 for the "
        "ONNX runtimes; pip install 'pytest-portability[torch]' (ModuleNotFoundError: import of "
        f"{package} halted; None in sys.modules)"
    )


def test_a_missing_converter_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Never a build of ONNX Runtime that would overwrite the vendor's."""
    monkeypatch.setitem(sys.modules, "onnxruntime.transformers.float16", None)
    with pytest.raises(Unsupported) as caught:
        convert.to_precision(tmp_path / "model.onnx", "fp16", tmp_path / "half.onnx")
    assert "is needed to convert an ONNX file to fp16" in str(caught.value)
    assert "pip install onnxruntime (or your vendor's build of it)" in str(caught.value)
