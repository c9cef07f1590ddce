"""A fusion that no longer fires is named, with the time that it costs."""

from __future__ import annotations

import re

import pytest
from case import Judged, judge
from example_runs import need

need("onnx", "onnxruntime", "torch")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judge(tmp_path_factory.mktemp("fusions"), "fusions")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("layer_norm", r"LayerNormalization ×6"),
        ("batch_norm", r"BatchNormalization ×6"),
        ("attention", r"scaled_dot_product|flash"),
    ],
)
def test_a_fusion_that_no_longer_fires_is_the_first_cause(
    judged: Judged, name: str, words: str
) -> None:
    assert judged.verdict(name) == "regressed", judged.checked.output
    cause = judged.cause(name)
    assert cause["kind"] == "fusion", judged.said(name)
    assert re.search(words, cause["summary"]), cause["summary"]
    assert cause["share"] >= 0.5, judged.said(name)
