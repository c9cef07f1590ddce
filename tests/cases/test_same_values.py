"""Nothing is flagged that computes the same, however its file looks."""

from __future__ import annotations

import pytest
from case import Judged, judge
from example_runs import HARMLESS, need

need("onnx", "onnxruntime", "torch")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judge(tmp_path_factory.mktemp("same_values"), "same_values")


@pytest.mark.parametrize(
    "name",
    [
        "initialisers_turned",
        "weights_as_nodes",
        "weights_transposed",
        "held_by_float16",
        "same_nan",
        "dropout_at_rest",
    ],
)
def test_the_same_values_from_another_file_are_not_flagged(judged: Judged, name: str) -> None:
    assert judged.verdict(name) in HARMLESS, judged.said(name)
