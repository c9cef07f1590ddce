"""Core ML's plans, from a fake of coremltools that answers in the shapes of its classes.

``vendor_outputs/coreml_plan.json`` and ``coreml_model.mil`` were written by hand to the source of
coremltools 9.0 and to programs of others: they were not recorded on a device.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_portability.errors import BuildError, RuntimeUnavailable
from pytest_portability.kernels import KernelPath, effective_precision
from pytest_portability.runtimes import coreml_plan
from pytest_portability.runtimes.coreml_plan import Operation

VENDOR = Path(__file__).parents[1] / "vendor_outputs"
TOLD = json.loads((VENDOR / "coreml_plan.json").read_text("utf-8"))
PROGRAM, NETWORK = {"program": TOLD["program"]}, {"neuralnetwork": TOLD["neuralnetwork"]}
ENGINE = "CoreMLExecutionProvider:NeuralEngine"


@pytest.fixture(autouse=True)
def _coremltools(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("coremltools", "coremltools.models", "coremltools.models.compute_plan"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.syspath_prepend(VENDOR / "packages")


def left(folder: Path, *plans: dict[str, Any]) -> Path:
    """Compiled models as ONNX Runtime's cache holds them, one for each part of the graph."""
    for index, plan in enumerate(plans):
        part = folder / "4711" / f"{index}_static_mlprogram" / "model"
        model = part / "compiled_model.mlmodelc"
        model.mkdir(parents=True)
        (model / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
        (model / "model.mil").write_text((VENDOR / "coreml_model.mil").read_text("utf-8"))
    return folder


def test_operations_that_run_are_read_with_device_type_and_estimate(tmp_path: Path) -> None:
    (plan,) = coreml_plan.read(left(tmp_path, PROGRAM))
    assert plan == [
        Operation(op="cast", device="CPU", precision="fp16", weight=0.05),
        Operation(op="conv", device="NeuralEngine", precision="fp16", weight=0.625),
        Operation(op="relu", device="NeuralEngine", precision="fp16", weight=0.075),
        Operation(op="linear", device="GPU", precision="fp32", weight=0.25),
    ]


def test_a_neural_network_is_read_by_its_layers(tmp_path: Path) -> None:
    """The provider's default format; it has neither types nor estimates."""
    (plan,) = coreml_plan.read(left(tmp_path, NETWORK))
    assert plan == [
        Operation(op="convolution", device="NeuralEngine", precision="fp16"),
        Operation(op="activation", device="NeuralEngine", precision="fp16"),
        Operation(op="innerProduct", device="CPU"),
    ]
    assert {use.share for use in coreml_plan.uses([plan])} == {None}


def test_operations_inside_of_others_are_read_too(tmp_path: Path) -> None:
    inner = [{"operator_name": "add", "outputs": ["a"], "device": "CPU", "weight": 0.1}]
    whole = {"operator_name": "cond", "outputs": ["b"], "device": "CPU", "blocks": [inner]}
    (plan,) = coreml_plan.read(left(tmp_path, {"program": [whole]}))
    assert [operation.op for operation in plan] == ["cond", "add"]


def test_the_plan_is_asked_for_the_units_of_the_session(tmp_path: Path) -> None:
    (plan,) = coreml_plan.read(left(tmp_path, PROGRAM), "CPUOnly")
    assert {operation.device for operation in plan} == {"CPU"}


def test_an_operation_is_a_kernel_of_the_device_that_is_preferred(tmp_path: Path) -> None:
    uses = coreml_plan.uses(coreml_plan.read(left(tmp_path, PROGRAM)))
    found = {u.kernel.op: (u.kernel.provider, u.kernel.role, u.launches, u.share) for u in uses}
    assert found == {
        "cast": ("CoreMLExecutionProvider:CPU", "move", 1, 0.05),
        "conv": (ENGINE, "compute", 1, 0.625),
        "relu": (ENGINE, "compute", 1, 0.075),
        "linear": ("CoreMLExecutionProvider:GPU", "compute", 1, 0.25),
    }
    assert effective_precision(KernelPath(runtime="onnxruntime.coreml", uses=uses)) == "fp16"


def test_estimates_of_several_models_are_no_shares(tmp_path: Path) -> None:
    """Each is a part of its own model's work, and nothing tells how the models compare."""
    uses = coreml_plan.uses(coreml_plan.read(left(tmp_path, PROGRAM, PROGRAM)))
    assert {(use.launches, use.share) for use in uses} == {(2, None)}


def test_models_are_asked_for_in_a_folder(tmp_path: Path) -> None:
    assert coreml_plan.settings(tmp_path) == {"ModelCacheDirectory": tmp_path.as_posix()}


def test_what_does_not_tell_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="no compiled model was left"):
        coreml_plan.read(tmp_path)
    silent = {"program": [{"operator_name": "conv", "outputs": ["c"]}]}
    with pytest.raises(BuildError, match="a plan names no device for any operation"):
        coreml_plan.read(left(tmp_path, silent))


@pytest.mark.parametrize("system", ["13.6.9", "14.3", "14"])
def test_a_system_that_is_too_old_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    monkeypatch.setattr(platform, "mac_ver", lambda: (system, ("", "", ""), "arm64"))
    with pytest.raises(RuntimeUnavailable, match=f"from macOS 14.4 on; this is macOS {system}"):
        coreml_plan.read(left(tmp_path, PROGRAM))


def test_what_coremltools_refuses_is_said_in_its_words(tmp_path: Path) -> None:
    """So it does where it was installed for another system."""
    with pytest.raises(ValueError, match="MLComputePlan is not supported"):
        coreml_plan.read(left(tmp_path, {"refuses": "MLComputePlan is not supported."}))


def test_without_coremltools_the_reason_names_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "coremltools", None)
    with pytest.raises(RuntimeUnavailable, match="plans are read by the package coremltools: "):
        coreml_plan.read(left(tmp_path, PROGRAM))
