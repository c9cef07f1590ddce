"""What ``benchmarks/attribution.py`` counts, on made-up rows."""

from __future__ import annotations

from typing import Any

from attribution import Row, table
from owed import NOTHING, Owed

FUSION = Owed("regressed", "fusion")


def row(case: str, owed: Owed, **other: Any) -> Row:
    """One that is all right, and half of whose loss is explained."""
    given: dict[str, Any] = {
        "runtime": "onnxruntime.cpu",
        "shows": True,
        "verdict": "regressed",
        "cause": "fusion",
        "problems": (),
        "explained": 0.5,
        "seconds": 1.0,
    }
    return Row(case=case, owed=owed, **{**given, **other})


def test_a_fault_that_does_not_show_here_is_neither_caught_nor_harmless() -> None:
    lines = table(
        [
            row("seen", FUSION),
            row("unseen", FUSION, shows=False, verdict="ok", explained=None),
            row("flagged", FUSION, shows=False, problems=("verdict regressed, owed ok",)),
            row("harmless", NOTHING, verdict="ok", cause="–", explained=None),
        ]
    ).splitlines()
    assert "verdicts right: 1 of 1 faults" in lines
    assert "first cause and its evidence right: 1 of 1" in lines
    assert "harmless changes flagged: 0 of 1" in lines
    assert "does not show here: 2 (unseen, flagged), of which flagged: 1" in lines


def test_what_was_blamed_on_something_else_counts_in_the_share_that_is_explained() -> None:
    """By the cause that is owed, and by none at all as nothing."""
    wrong = ("first cause options, owed fusion",)
    *_, last = table(
        [
            row("right", FUSION, explained=0.9),
            row("wrong", FUSION, cause="options", problems=wrong, explained=None),
            row("also wrong", FUSION, cause="options", problems=wrong, explained=0.2),
            row("another kind", Owed("regressed", "options"), explained=1.0),
        ]
    ).splitlines()
    assert last == "share of the loss explained, median of 3 cases of fusion or kernel: 20%"
