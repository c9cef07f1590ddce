"""The rules that ``benchmarks/detection.py`` holds against each other, on made-up sessions."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import rules
import subjects
import synthetic
from rules import Session, Shot

from pytest_portability.samples import Repeat


def repeat(rng: np.random.Generator, level: float) -> Repeat:
    """One process whose windows spread by 1 %."""
    (one,) = synthetic.measurement(repeats=1).repeats
    slower = level * np.exp(rng.normal(0, 0.01, len(one.windows)))
    windows = tuple(
        replace(w, wall_s=w.wall_s * factor, busy_s=(w.busy_s or 0.0) * factor)
        for w, factor in zip(one.windows, slower, strict=True)
    )
    return replace(one, windows=windows)


def session(number: int, percent: int = 0, state: str = "idle", threads: int = 1) -> Session:
    rng = np.random.default_rng([number, abs(percent)])
    level = 1 + percent / 100
    calls = 0.01 * level * np.exp(rng.normal(0, 0.01, 50))
    shots = tuple(
        Shot(repeat=repeat(rng, level), calls=calls, seconds=2.0, parameters=0)
        for _ in range(rules.MOST_REPEATS)
    )
    return Session(
        subject="compute",
        runtime="onnxruntime.cpu",
        threads=threads,
        state=state,
        number=number,
        percent=percent,
        shots=shots,
    )


@pytest.mark.parametrize("name", rules.RULES)
def test_on_a_quiet_machine_every_rule_passes_identical_builds_and_catches_a_large_loss(
    name: str,
) -> None:
    rule = rules.RULES[name]
    base = session(0)
    assert rule(base, session(1))[0] == "pass"
    assert rule(base, session(1, percent=60))[0] == "slower"


def test_ours_takes_two_processes_where_they_decide() -> None:
    assert rules.ours(session(0), session(1)) == ("pass", 4.0)


def test_pairs_are_of_one_subject_and_one_state_or_recorded_idle() -> None:
    some = [session(0), session(1), session(0, 8), session(0, state="steady")]
    found = {(c.base.state, c.base.number, c.check.state, c.percent) for c in rules.cases(some)}
    assert found == {
        ("idle", 0, "idle", 0),
        ("idle", 1, "idle", 0),
        ("idle", 0, "idle", 8),
        ("idle", 1, "idle", 8),
        ("idle", 1, "steady", 0),
    }


def test_fewer_threads_are_a_case_of_their_own() -> None:
    fewer = session(0, rules.FEWER_THREADS, threads=2)
    (case,) = rules.cases([session(0, threads=2), fewer, session(0, threads=1)])
    assert (case.base.percent, case.percent) == (0, rules.FEWER_THREADS)


def test_the_table_has_a_line_for_each_rule_and_group() -> None:
    text = rules.table([session(0), session(1), session(0, 25)])
    lines = text.splitlines()
    assert lines[0] == (
        "| rule | checks | false alarms | +25 % caught | 2 → 1 threads caught | unsure | median s |"
    )
    assert "| pytest-portability | 4 | 0.0% of 2 | 100.0% of 2 | – | 0.0% | 5.0 |" in lines
    assert lines[-1].startswith("| ours, onnxruntime.cpu on 1 thread | 4 |")


@pytest.mark.parametrize(
    "subject", subjects.all_subjects(Path), ids=lambda subject: f"{subject.runtime}-{subject.name}"
)
def test_more_units_are_more_work_of_the_same_kind(subject: subjects.Subject) -> None:
    """Where the model is an ONNX file: as many more nodes, or as much more input."""
    pytest.importorskip("onnx")
    if subject.runtime.startswith("torch") or subject.name == "silero-vad":
        more = subject.inputs(106).keys() == subject.inputs(100).keys()
        assert more
        return
    nodes = [len(subject.make(units).graph.node) for units in (50, 100)]
    rows = [len(subject.inputs(units)["x"]) for units in (50, 100)]
    assert nodes[1] == 2 * nodes[0] or rows[1] == 2 * rows[0]
