"""No case is without a test, and no test without its case."""

from __future__ import annotations

import importlib

import pytest
from example_runs import need
from owed import OWED

need("onnx", "onnxruntime", "torch")

ELSEWHERE = {"options": {"threads"}}
"""Cases whose own tests say what is right."""


@pytest.mark.parametrize("module", OWED)
def test_every_case_is_owed_something(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CASE_SET", raising=False)
    names = {case.name for case in importlib.import_module(module).CASES}
    assert names == {*OWED[module]} | ELSEWHERE.get(module, set())
