"""No case is without a test, and no test without its case."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from example_runs import Run, need
from judged import Judged
from owed import NOTHING, OWED, Owed

need("onnx", "onnxruntime", "torch")

ELSEWHERE = {"options": {"threads"}}
"""Cases whose own tests say what is right."""


APART = {"fallbacks"}
"""Modules of cases whose own tests say what is right: their runtime refuses some processors."""


def test_every_module_of_cases_is_owed_something() -> None:
    folder = Path(__file__).parent
    found = {p.stem for p in folder.glob("*.py") if "\nCASES" in p.read_text(encoding="utf-8")}
    assert found == {*OWED} | APART


@pytest.mark.parametrize("module", OWED)
def test_every_case_is_owed_something(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CASE_SET", raising=False)
    names = {case.name for case in importlib.import_module(module).CASES}
    assert names == {*OWED[module]} | ELSEWHERE.get(module, set())


def judged(verdict: str) -> Judged:
    """A run of one case with that verdict, and nothing else said of it."""
    item = {"model": "case", "verdict": verdict, "reason": "", "causes": []}
    done = Run(code=0, root=Path(), output="", report={"items": [item]})
    return Judged(recorded=done, checked=done)


def test_a_fault_that_does_not_show_here_is_skipped_unless_it_is_flagged() -> None:
    unseen = Owed("parity", "precision", where=lambda: False)
    with pytest.raises(pytest.skip.Exception, match="does not show"):
        judged("ok").hold("case", unseen)
    with pytest.raises(AssertionError, match="verdict parity"):
        judged("parity").hold("case", unseen)


def test_what_is_harmless_everywhere_is_not_skipped() -> None:
    judged("ok").hold("case", NOTHING)
    with pytest.raises(AssertionError, match="verdict ok, owed parity"):
        judged("ok").hold("case", Owed("parity", "precision"))
