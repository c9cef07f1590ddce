"""Values that became wrong are told from another version of the model, and named."""

from __future__ import annotations

import re

import pytest
from example_runs import need
from judged import Judged
from owed import OWED, slow_subnormals

need("onnx", "onnxruntime", "torch")
pytestmark = pytest.mark.alone


@pytest.mark.parametrize("name", OWED["accuracy"])
def test_values_that_became_wrong_are_named(judged: Judged, name: str) -> None:
    assert not judged.wrong(name, OWED["accuracy"][name]), judged.said(name)


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("weight_disturbed", {"fc2.weight"}),
        ("layers_swapped", {"fc1.weight", "fc2.weight"}),
        ("statistics_not_loaded", {"1.running_mean", "1.running_var"}),
        ("decayed_channels", {"fc0.weight", "fc1.weight", "fc2.weight"}),
    ],
)
def test_other_weights_are_named_and_no_more(judged: Judged, name: str, tensors: set[str]) -> None:
    named = set(re.findall(r"fc\d\.weight|1\.running_\w+", judged.item(name)["reason"]))
    assert named == tensors, judged.said(name)


def test_channels_that_decayed_are_also_said_to_be_slow(judged: Judged) -> None:
    if not slow_subnormals():
        pytest.skip("subnormal values cost nothing on this CPU")
    assert "lost" in judged.item("decayed_channels")["reason"], judged.said("decayed_channels")
    assert judged.cause("decayed_channels")["kind"] == "data", judged.said("decayed_channels")
