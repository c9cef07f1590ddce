"""An operator that a real provider leaves to the CPU is named, or fails where it is all there is.

The OpenVINO plugin accepts Intel processors only: what is right of speed and of the first cause of
a loss was not seen on one yet, so that only what follows from the placement is asserted.
"""

from __future__ import annotations

import importlib
from typing import Any

import onnx_models
import pytest
from example_runs import HARMLESS, need
from judged import Judged, judge
from owed import Owed

from pytest_portability import models
from pytest_portability.errors import RuntimeUnavailable
from pytest_portability.runtimes import Request

need("onnx", "onnxruntime", "onnxruntime_ep_openvino")
pytestmark = pytest.mark.alone

RUNTIME = "onnxruntime.openvino"
OPENVINO, CPU = "OpenVINOExecutionProvider", "CPUExecutionProvider"


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    """The cases, if the plugin accepts this machine."""
    adapter = importlib.import_module("pytest_portability.runtimes.onnxruntime")
    model = models.load(onnx_models.mlp())
    try:
        runtime = adapter.runtime(RUNTIME)
        runtime.build(Request(model=model, handle="cpu", platform="cpu")).close()
    except RuntimeUnavailable as exc:
        pytest.skip(str(exc))
    return judge(tmp_path_factory.mktemp("fallbacks"), "fallbacks")


def left(item: Any) -> list[str]:
    """What computed on the CPU provider."""
    uses = [use["kernel"] for use in item["record"]["path"]["uses"]]
    return [k["op"] for k in uses if (k["provider"], k["role"]) == (CPU, "compute")]


def test_the_older_op_set_is_not_left_to_the_cpu(judged: Judged) -> None:
    for name in ("attention_left", "everything_left"):
        assert set(judged.recorded.record(name, RUNTIME).providers) == {OPENVINO}


def test_one_operator_on_the_cpu_is_named(judged: Judged) -> None:
    """It costs little or nothing, so that it may be a warning; a loss has it among its causes."""
    item = judged.item("attention_left")
    assert item["record"]["providers"][CPU] == 1
    assert item["record"]["providers"][OPENVINO] >= 1
    assert left(item) == ["Attention"]
    words = "\n".join([judged.said("attention_left"), *item["warnings"]])
    assert item["verdict"] in {*HARMLESS, "regressed"}, words
    if item["verdict"] != "inconclusive":
        assert "Attention" in words, words
    if item["verdict"] == "regressed":
        assert "fallback" in {cause["kind"] for cause in item["causes"]}, words


def test_a_model_of_nothing_else_is_not_held_to_be_the_provider_s(judged: Judged) -> None:
    judged.hold("everything_left", Owed("placement", "fallback", CPU))
    assert left(judged.item("everything_left")) == ["Attention"]
