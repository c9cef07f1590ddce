"""Values that became wrong are told from another version of the model, and named."""

from __future__ import annotations

import re
import time

import numpy as np
import pytest
from case import Judged, judge
from example_runs import HARMLESS, need

need("onnx", "onnxruntime", "torch")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judge(tmp_path_factory.mktemp("accuracy"), "accuracy")


@pytest.fixture(scope="module")
def slow_subnormals() -> bool:
    """Whether products with subnormal values cost time here; there are CPUs that do not mind."""
    left = np.ones((128, 128), np.float32)
    took = []
    for scale in (1, 1e-39):
        right = left * np.float32(scale)
        tries = []
        for _ in range(50):
            began = time.thread_time_ns()
            np.einsum("ij,jk->ik", left, right)  # by a loop in this thread, not by a pool
            tries.append(time.thread_time_ns() - began)
        took.append(min(tries))
    return took[1] > 2 * took[0]


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("weight_disturbed", {"fc2.weight"}),
        ("layers_swapped", {"fc1.weight", "fc2.weight"}),
        ("statistics_not_loaded", {"1.running_mean", "1.running_var"}),
        ("decayed_channels", {"fc0.weight", "fc1.weight", "fc2.weight"}),
    ],
)
def test_other_weights_are_another_version_of_the_model_and_named(
    judged: Judged, name: str, tensors: set[str]
) -> None:
    assert judged.verdict(name) == "stale", judged.checked.output
    named = set(re.findall(r"fc\d\.weight|1\.running_\w+", judged.item(name)["reason"]))
    assert named == tensors, judged.said(name)


@pytest.mark.parametrize("name", ["weight_disturbed", "layers_swapped", "statistics_not_loaded"])
def test_other_weights_are_the_first_cause(judged: Judged, name: str) -> None:
    assert judged.cause(name)["kind"] == "weights", judged.said(name)


def test_channels_that_decayed_are_also_said_to_be_slow(
    judged: Judged, *, slow_subnormals: bool
) -> None:
    if not slow_subnormals:
        pytest.skip("subnormal values cost nothing on this CPU")
    assert "lost" in judged.item("decayed_channels")["reason"], judged.said("decayed_channels")
    assert judged.cause("decayed_channels")["kind"] == "data", judged.said("decayed_channels")


def test_weights_that_changed_by_less_than_any_tolerance_are_judged_by_their_speed(
    judged: Judged, *, slow_subnormals: bool
) -> None:
    if not slow_subnormals:
        assert judged.verdict("almost_pruned") in HARMLESS, judged.said("almost_pruned")
        pytest.skip("subnormal values cost nothing on this CPU")
    assert judged.verdict("almost_pruned") == "regressed", judged.checked.output
    assert judged.cause("almost_pruned")["kind"] == "data", judged.said("almost_pruned")
    assert "subnormal" in judged.said("almost_pruned")


def test_subnormal_values_that_are_no_longer_flushed_are_a_loss_by_that_option(
    judged: Judged, *, slow_subnormals: bool
) -> None:
    name = "no_longer_flushed"
    if not slow_subnormals:
        assert judged.verdict(name) in HARMLESS, judged.said(name)
        pytest.skip("subnormal values cost nothing on this CPU")
    assert judged.verdict(name) == "regressed", judged.checked.output
    assert judged.cause(name)["kind"] in {"options", "data"}, judged.said(name)
    assert "set_denormal_as_zero" in judged.said(name)


def test_more_nan_than_the_record_has_are_counted(judged: Judged) -> None:
    assert judged.verdict("all_nan") == "parity", judged.checked.output
    assert judged.cause("all_nan")["kind"] in {"data", "graph"}, judged.said("all_nan")
    assert re.search(r"\b32\b.*\b11\b|\b11\b.*\b32\b", judged.said("all_nan")), judged.said(
        "all_nan"
    )


def test_an_overflow_for_one_row_of_many_is_seen(judged: Judged) -> None:
    name = "softmax_overflow"
    assert judged.verdict(name) == "parity", judged.checked.output
    assert judged.cause(name)["kind"] in {"data", "graph"}, judged.said(name)
    assert re.search(r"NaN|non-finite", judged.said(name)), judged.said(name)


def test_arithmetic_that_cancels_for_these_values_is_lost_accuracy(judged: Judged) -> None:
    assert judged.verdict("cancellation") == "parity", judged.checked.output
    assert judged.cause("cancellation")["kind"] in {"data", "graph"}, judged.said("cancellation")
    assert re.search(r"relative L2", judged.said("cancellation")), judged.said("cancellation")


@pytest.mark.parametrize("name", ["dropout", "sampling"])
def test_outputs_that_differ_from_run_to_run_are_random(judged: Judged, name: str) -> None:
    assert judged.verdict(name) == "parity", judged.checked.output
    assert judged.cause(name)["kind"] == "nondeterminism", judged.said(name)
    assert "repeats differ" in judged.item(name)["reason"], judged.said(name)
