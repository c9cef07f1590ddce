"""Trained models through the public way, each under several runtimes, and what is seen of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from example_runs import HARMLESS, MODELS, SHORT, Run, copy, need, run

from pytest_portability import kernel_changes

need("onnx", "onnxruntime", "openvino", "torch", "safetensors", "tokenizers", "PIL", *MODELS)

TEXTS = """
import numpy as np
import pytest
import test_minilm as minilm
from minilm import load

@pytest.mark.portability(
    batches=[2], runtimes=["torch", "onnxruntime.cpu", "openvino"], precisions=["fp32"]
)
def test_embedder(portability):
    portability.check(
        load, minilm.inputs, metric=minilm.pair_margin, profile={"seq": minilm.LENGTH}
    )

UNFUSED = {"disabled_optimizers": ["BiasGeluFusion", "SkipLayerNormFusion"]}

@pytest.mark.portability(batches=[2], runtimes=["onnxruntime.cpu"], precisions=["fp32"])
def test_unfused(portability):
    portability.check(
        load,
        minilm.inputs,
        profile={"seq": minilm.LENGTH},
        options={"onnxruntime": UNFUSED},
    )

def layer():
    return load().layers[0]

def states(batch, rng):
    x = rng.standard_normal((batch, 32, 384), dtype=np.float32)
    return [x, np.zeros((batch, 1, 1, 32), np.float32)]

@pytest.mark.portability(runtimes=["torch"], precisions=["native", "bf16"])
def test_layer(portability):
    portability.check(layer, states, options={"torch": {"num_threads": 1}})
"""

SOUNDS = """
import pytest
import test_silero as silero
from packaged import file_of

UNROLLED = file_of("silero_vad", "data/silero_vad_op18_ifless.onnx")
HALF = file_of("silero_vad", "data/silero_vad_half.onnx")

@pytest.mark.portability(
    batches=[2], runtimes=["onnxruntime.cpu", "openvino"], precisions=["fp32", "fp16"]
)
def test_voice(portability):
    portability.check(UNROLLED, silero.inputs, metric=silero.false_alarms)

@pytest.mark.portability(
    batches=[2], runtimes=["openvino"], known={"cpu-*": ("error", "Conv of unknown rank in an If")}
)
def test_branches(portability):
    portability.check(silero.MODEL, silero.inputs)

@pytest.mark.portability(batches=[2])
def test_default(portability):
    portability.check(silero.MODEL, silero.inputs)

def without_rate(batch, rng):
    given = silero.inputs(batch, rng)
    del given["sr"]
    return given

@pytest.mark.portability(batches=[2], runtimes=["onnxruntime.cpu"])
def test_half(portability):
    portability.check(HALF, without_rate)
"""

FILES = """
import pytest
import test_magika as magika

@pytest.mark.portability(runtimes=["openvino"], parity=0.5)
def test_types(portability):
    portability.check(magika.MODEL, magika.inputs, metric=magika.types_known)

def halved():
    import tempfile
    from pathlib import Path

    import onnx
    from pytest_portability import convert

    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "half.onnx"
        convert.to_precision(magika.MODEL, "fp16", out)
        return onnx.load(str(out))

@pytest.mark.portability(runtimes=["onnxruntime.cpu"])
def test_halved(portability):
    portability.check(halved, magika.inputs, metric=magika.types_known)
"""

PICTURES = """
import os

import numpy as np
import pytest
from packaged import file_of
from PIL import Image, ImageDraw, ImageFont

MODEL = file_of("rapidocr", "models/ch_ppocr_mobile_v2.0_cls_mobile.onnx")
TEXTS = ["Hello world", "Invoice 2026", "Total amount", "Open the door", "Keep it simple"]

def picture(text):
    image = Image.new("RGB", (192, 48), "white")
    font = ImageFont.load_default(32)
    ImageDraw.Draw(image).text((6, 4), text, "black", font=font)
    return (np.asarray(image, np.float32) / 127.5 - 1).transpose(2, 0, 1)

UPRIGHT = np.stack([picture(text) for text in TEXTS])

def turned_found(predict):
    (upright,), (turned,) = (
        predict([x]).values() for x in (UPRIGHT, np.ascontiguousarray(UPRIGHT[:, :, ::-1, ::-1]))
    )
    right = np.concatenate([upright[:, 0], turned[:, 1]])
    return {"accuracy": float((right > 0.5).mean()), "confidence": float(right.mean())}

OFF = os.environ.get("PICTURES_WITHOUT", "").split()

@pytest.mark.portability(
    batches=[2], runtimes=["onnxruntime.cpu", "openvino"], precisions=["fp32"]
)
def test_direction(portability):
    portability.check(
        MODEL,
        lambda batch, rng: [UPRIGHT[:batch]],
        metric=turned_found,
        options={"onnxruntime": {"disabled_optimizers": OFF}} if OFF else None,
    )
"""

INI = """
[pytest]
addopts = --strict-markers
pythonpath = examples examples/recurrent examples/targets_and_tolerances examples/torch_module
portability_targets = cpu-*
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project of the four test files beside a copy of the examples, whose functions they use."""
    root = tmp_path_factory.mktemp("real") / "project"
    copy(root / "examples")
    files = {"texts": TEXTS, "sounds": SOUNDS, "files": FILES, "pictures": PICTURES}
    for name, text in files.items():
        (root / f"test_{name}.py").write_text(text, encoding="utf-8")
    (root / "pytest.ini").write_text(INI, encoding="utf-8")
    return root


@pytest.fixture(scope="module")
def recorded(project: Path) -> Run:
    """The run that wrote the records."""
    paths = sorted(path.name for path in project.glob("test_*.py"))
    once = ("-o", "portability_repeats=1")  # no figure is judged here
    return run(project, *SHORT, *once, "--update-baselines", *paths)


# --- the same answers everywhere ----------------------------------------------------------------

BUILDS = [
    ("embedder", "torch", "margin", 0.3355),
    ("embedder", "onnxruntime.cpu", "margin", 0.3355),
    ("embedder", "openvino", "margin", 0.3355),
    ("voice", "onnxruntime.cpu", "highest_probability", 0.048),
    ("voice", "openvino", "highest_probability", 0.048),
    ("direction", "onnxruntime.cpu", "confidence", 1.0),
    ("direction", "openvino", "confidence", 1.0),
]


@pytest.mark.parametrize(("model", "runtime", "metric", "value"), BUILDS)
def test_a_trained_model_gives_the_same_answers_under_every_runtime(
    recorded: Run, model: str, runtime: str, metric: str, value: float
) -> None:
    """Asked for fp32 it runs in fp32, near its reference, with the task metric it is known for."""
    item = recorded.item(model, runtime, "fp32")
    assert item["verdict"] == "missing", recorded.output
    # OpenVINO does not tell what runs inside a branch, and all of this network is in one.
    unseen = (model, runtime) == ("voice", "openvino")
    assert item["record"]["effective"] == ("" if unseen else "fp32")
    assert item["parity"]["error_rel"] < 1e-4
    metrics = item["parity"]["metrics"]
    assert metrics.get("accuracy", 1.0) == 1.0
    assert metrics[metric] == pytest.approx(value, rel=0.02)


def test_all_runtimes_are_held_against_one_reference(recorded: Run) -> None:
    """What was exported is compared with what the module computes in fp64."""
    references = {
        recorded.record("embedder", runtime).parity.reference
        for runtime in ("torch", "onnxruntime.cpu", "openvino")
    }
    assert references == {"torch eager on the CPU in fp64"}


@pytest.mark.parametrize("runtime", ["onnxruntime.cpu", "openvino"])
def test_an_exported_module_records_its_exporter_and_op_set(recorded: Run, runtime: str) -> None:
    """They alone decide which fusions fire."""
    config = recorded.record("embedder", runtime).model.config
    assert config["conversion.opset"] == "20"
    assert config["conversion.batch"] == "dynamic"
    assert config["conversion.exporter"].startswith("torch.onnx dynamo (torch ")
    assert "onnxscript" in config["conversion.exporter"]
    assert "conversion.opset" not in recorded.record("embedder", "torch").model.config


def test_the_model_version_does_not_depend_on_the_runtime(recorded: Run) -> None:
    """Same weights, tensor by tensor, and same graph, whatever they were converted to."""
    versions = [
        recorded.record("embedder", runtime).model
        for runtime in ("torch", "onnxruntime.cpu", "openvino")
    ]
    assert len({version.weights for version in versions}) == 1
    assert len({version.graph for version in versions}) == 1
    assert {version.parameters for version in versions} == {22_565_376}
    assert len(versions[0].tensors) == 101


# --- precision ----------------------------------------------------------------------------------


def _has_bf16() -> bool:
    import openvino as ov  # noqa: PLC0415 - heavy

    return "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def test_openvino_left_to_itself_is_seen_to_run_in_bf16(recorded: Run) -> None:
    """Everything is still recognised, but outputs are a hundred thousand times further off."""
    if not _has_bf16():
        pytest.skip("this CPU has no bf16, so OpenVINO runs in fp32")
    record = recorded.record("types", "openvino")
    assert record.key.precision == "native"
    assert record.effective == "bf16"
    assert record.parity.metrics["accuracy"] == 1.0
    assert 1e-3 < record.parity.error_rel < 0.5
    precisions = {use.kernel.precision for use in record.path.uses if use.kernel.role == "compute"}
    assert "bf16" in precisions


def test_autocast_is_seen_in_the_kernels_and_in_the_outputs(recorded: Run) -> None:
    """The same trained layer: every product in bf16, casts between them, a larger error."""
    native, half = (recorded.record("layer", "torch", p) for p in ("native", "bf16"))
    assert (native.effective, half.effective) == ("fp32", "bf16")
    assert native.parity.error_rel < 1e-5 < half.parity.error_rel
    changes = {
        change.kind: change.summary for change in kernel_changes.diff(native.path, half.path)
    }
    assert changes["precision"].startswith("fp32 → bf16: addmm ×6")
    assert "_to_copy ×0 → ×" in changes["move"]


def test_half_precision_files_are_seen_to_be_computed_in_fp32_on_a_cpu(recorded: Run) -> None:
    """One that is published so, and one converted here."""
    published, converted = (recorded.record(m, "onnxruntime.cpu") for m in ("half", "halved"))
    assert (published.effective, converted.effective) == ("fp32", "fp32")
    assert converted.parity.metrics["accuracy"] == 1.0
    casts = sum(use.launches for use in converted.path.uses if use.kernel.op == "Cast")
    assert casts > 6  # what the fp32 file has


# --- what cannot be done ------------------------------------------------------------------------


def test_what_a_cpu_cannot_do_is_skipped_with_its_reason(recorded: Run) -> None:
    """fp16 is no precision of ONNX Runtime's CPU kernels nor, on most CPUs, of OpenVINO's."""
    item = recorded.item("voice", "onnxruntime.cpu", "fp16")
    assert item["verdict"] == "skipped"
    assert item["reason"] == "the CPU provider computes fp16 nodes in fp32"
    item = recorded.item("voice", "openvino", "fp16")
    assert item["verdict"] == "missing" or "fp16: the device CPU computes" in item["reason"]


@pytest.mark.parametrize("runtime", ["torch", "torch.compile"])
def test_a_runtime_of_another_kind_of_model_is_skipped_with_the_way_out(
    recorded: Run, runtime: str
) -> None:
    """Without ``runtimes=`` an ONNX model meets torch too."""
    item = recorded.item("default", runtime)
    assert item["verdict"] == "skipped"
    assert item["reason"] == (
        f"{runtime} builds torch models and this one is onnx; "
        "runtimes=['onnxruntime.*'] on the marker leaves this item out"
    )
    assert recorded.item("default", "onnxruntime.cpu")["verdict"] == "missing"


def test_a_known_failure_carries_the_library_s_own_words(recorded: Run) -> None:
    """OpenVINO cannot convert the branches of this file; expected, so the run is green."""
    item = recorded.item("branches", "openvino")
    assert item["verdict"] == "error"
    assert "openvino cannot read the model" in item["reason"]
    assert "rank has to be known" in item["reason"]
    assert item["record"] is None
    assert recorded.code == 0, recorded.output


# --- lost fusions -------------------------------------------------------------------------------


def test_a_lost_fusion_of_a_transformer_is_named(recorded: Run) -> None:
    """All six layers, with what runs in place of each fused kernel."""
    fused, unfused = (recorded.record(m, "onnxruntime.cpu") for m in ("embedder", "unfused"))
    assert unfused.options["disabled_optimizers"] == "BiasGeluFusion,SkipLayerNormFusion"
    lost = [
        c.summary for c in kernel_changes.diff(fused.path, unfused.path) if c.kind == "fusion lost"
    ]
    assert any(text.startswith("BiasGelu ×6 no longer fused: now ") for text in lost), lost
    assert any(text.startswith("SkipLayerNormalization ×12 no longer fused") for text in lost), lost
    gained = [c.summary for c in kernel_changes.diff(unfused.path, fused.path)]
    assert any("now fused: BiasGelu ×6" in text for text in gained), gained


def test_a_check_names_the_fusion_that_an_option_took_away(
    recorded: Run, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it cost on this machine: a cause where it cost something, else a note."""
    assert recorded.item("direction", "onnxruntime.cpu")["verdict"] == "missing"
    monkeypatch.setenv("PICTURES_WITHOUT", "ConvActivationFusion NchwcTransformer")
    loose = "--portability-tolerance=0.9"
    checked = run(project, *SHORT, loose, "--portability", "test_pictures.py")
    item = checked.item("direction", "onnxruntime.cpu")
    texts = [*item["warnings"], *(cause["summary"] for cause in item["causes"])]
    assert any(text.startswith("FusedConv ×") and "no longer fused" in text for text in texts), (
        checked.output
    )
    assert item["record"]["options"]["disabled_optimizers"] == (
        "ConvActivationFusion,NchwcTransformer"
    )
    assert checked.item("direction", "openvino")["verdict"] in HARMLESS, checked.output
