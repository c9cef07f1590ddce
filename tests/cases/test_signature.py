"""A changed signature is said before anything is compared, with both sides of it."""

from __future__ import annotations

import re

import pytest
from case import Judged, judge
from example_runs import need

need("onnx", "onnxruntime")


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return judge(tmp_path_factory.mktemp("signature"), "signature")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("output_dtypes", r"'logits' is float16.*float32.*'label' is int32.*int64"),
        ("output_order", r"order.*'label', 'logits'.*'logits', 'label'"),
        ("output_shape", r"'label' has shape \(32,\).*\(32, 1\)"),
        ("input_dtype", r"input 'ids' is int32.*int64"),
        ("input_name", r"'ids'.*missing.*'tokens'"),
    ],
)
def test_a_changed_signature_is_named(judged: Judged, name: str, words: str) -> None:
    assert judged.verdict(name) == "interface", judged.checked.output
    assert judged.cause(name)["kind"] == "interface", judged.said(name)
    assert re.search(words, judged.said(name)), judged.said(name)
