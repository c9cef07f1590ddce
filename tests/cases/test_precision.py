"""Coarser arithmetic is lost accuracy, also where no type changed and whoever chose it."""

from __future__ import annotations

import re

import pytest
from case import Judged, judge
from example_runs import HARMLESS, need

need("onnx", "onnxruntime", "openvino", "torch")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judge(tmp_path_factory.mktemp("precision"), "precision")


@pytest.fixture(scope="module")
def bf16_cpu() -> bool:
    """Whether OpenVINO chooses bf16 here by itself."""
    import openvino  # noqa: PLC0415 - heavy

    return "BF16" in openvino.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


@pytest.mark.parametrize("name", ["overflow", "vanished_epsilon"])
def test_values_beyond_the_range_of_float16_are_seen_in_one_row_of_many(
    judged: Judged, name: str
) -> None:
    assert judged.verdict(name) == "parity", judged.checked.output
    assert judged.cause(name)["kind"] in {"data", "precision"}, judged.said(name)
    assert re.search(r"NaN|non-finite", judged.said(name)), judged.said(name)


@pytest.mark.parametrize("name", ["tf32_like", "autocast"])
def test_operands_of_fewer_bits_are_lost_accuracy_of_unchanged_types(
    judged: Judged, name: str
) -> None:
    assert judged.verdict(name) == "parity", judged.checked.output
    assert judged.cause(name)["kind"] == "precision", judged.said(name)
    assert re.search(r"relative L2", judged.said(name)), judged.said(name)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("silent_bf16", {"precision"}),
        # Here another option was asked for, of which the precision is a consequence.
        ("accuracy_mode_lost", {"options", "precision"}),
    ],
)
def test_a_precision_that_the_runtime_chose_by_itself_is_named(
    judged: Judged, name: str, kinds: set[str], *, bf16_cpu: bool
) -> None:
    if not bf16_cpu:
        assert judged.verdict(name) in HARMLESS, judged.said(name)
        pytest.skip("OpenVINO computes in float32 on this CPU")
    assert judged.verdict(name) == "parity", judged.checked.output
    assert judged.cause(name)["kind"] in kinds, judged.said(name)
    assert "fp32 → bf16" in judged.said(name), judged.said(name)


def test_weights_that_went_through_float16_are_another_version_of_the_model(
    judged: Judged,
) -> None:
    assert judged.verdict("half_weights") == "stale", judged.checked.output
    assert "conv0.weight" in judged.item("half_weights")["reason"], judged.said("half_weights")


@pytest.mark.parametrize(
    "name", ["small_scale", "zero_point", "weight_scale", "activations_quantised"]
)
def test_bad_quantisation_parameters_are_the_first_cause(judged: Judged, name: str) -> None:
    assert judged.verdict(name) == "parity", judged.checked.output
    assert judged.cause(name)["kind"] == "quantization", judged.said(name)


def test_compiled_bfloat16_is_held_against_fp64_and_not_against_eager(judged: Judged) -> None:
    assert judged.verdict("compiled_chain") in HARMLESS, judged.said("compiled_chain")
