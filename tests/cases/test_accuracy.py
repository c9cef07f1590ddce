"""Values that became wrong are told from another version of the model, and named."""

from __future__ import annotations

import re

import pytest
from example_runs import need
from judged import Judged
from owed import OWED

need("onnx", "onnxruntime", "torch")


@pytest.mark.parametrize("name", OWED["accuracy"])
def test_values_that_became_wrong_are_named(judged: Judged, name: str) -> None:
    judged.hold(name, OWED["accuracy"][name])


@pytest.mark.parametrize(
    ("name", "tensors"),
    [
        ("weight_disturbed", {"fc2.weight"}),
        ("layers_swapped", {"fc1.weight", "fc2.weight"}),
        ("statistics_not_loaded", {"1.running_mean", "1.running_var"}),
    ],
)
def test_other_weights_are_named_and_no_more(judged: Judged, name: str, tensors: set[str]) -> None:
    named = set(re.findall(r"fc\d\.weight|1\.running_\w+", judged.item(name)["reason"]))
    assert named == tensors, judged.said(name)
