"""How often simulated machines make identical builds fail, and slower ones pass."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from synthetic import figures, measurement, record

from pytest_portability.compare import decide, undecided
from pytest_portability.verdicts import Verdict


class Machine:
    """Draws what fresh processes of one build measure."""

    def __init__(self, seed: int, busy: float, wall: float, odd: float = 0.0) -> None:
        self.rng = np.random.default_rng(seed)
        self.busy, self.wall, self.odd = busy, wall, odd

    def repeats(self, count: int, level: float) -> tuple[list[float], list[float]]:
        """Busy and wall ratios of that many processes about a level."""
        shared = self.rng.normal(0, self.busy, count)
        extra = self.rng.normal(0, math.sqrt(max(0.0, self.wall**2 - self.busy**2)), count)
        jump = np.where(self.rng.random(count) < self.odd, 0.25, 0.0)
        busy = level * np.exp(shared + jump)
        return list(busy), list(busy * np.exp(extra))


def sequential(machine: Machine, slow: float = 1.0, **witnesses: float) -> tuple[Verdict, int]:
    """The verdict after up to six repeats, as ``pipeline`` asks for them, and their number."""
    contended = witnesses.get("contended", 0.0)
    seen = measurement(contended=contended, windows=3)
    base = record(
        figures=figures(*machine.repeats(4, 10.0)), threads=int(witnesses.get("threads", 1))
    )
    busy, wall = machine.repeats(6, 10.0 * slow)
    for count in range(2, 7):
        check = replace(base, figures=figures(busy[:count], wall[:count]))
        some = decide(check, base, measurement=seen)
        if not undecided(some):
            break
    return some.verdict, count


def verdicts(pairs: int, *args: float, slow: float = 1.0, **more: float) -> list[Verdict]:
    machine = Machine(20260301, *args)
    return [sequential(machine, slow, **more)[0] for _ in range(pairs)]


@pytest.mark.parametrize(
    ("busy", "wall", "contended"),
    [
        (0.007, 0.008, 0.0),  # idle
        (0.016, 0.15, 0.3),  # bursty neighbours
        (0.017, 0.04, 0.08),  # a little of both
        (0.05, 0.06, 0.0),  # a prior twice too good
        (0.07, 0.09, 0.0),  # and three times
    ],
)
def test_identical_builds_are_hardly_ever_called_regressed(
    busy: float, wall: float, contended: float
) -> None:
    found = verdicts(2000, busy, wall, contended=contended)
    assert found.count(Verdict.REGRESSED) <= 0.003 * len(found)
    assert found.count(Verdict.IMPROVED) <= 0.003 * len(found)


def test_identical_builds_on_an_idle_machine_pass_and_do_so_quickly() -> None:
    machine = Machine(7, 0.007, 0.008)
    found = [sequential(machine) for _ in range(300)]
    assert sum(verdict is Verdict.OK for verdict, _ in found) >= 0.97 * len(found)
    assert np.mean([count for _, count in found]) < 3.2


def test_a_machine_where_one_process_in_ten_is_odd_flags_no_identical_builds() -> None:
    found = verdicts(2000, 0.007, 0.008, 0.10)
    assert found.count(Verdict.REGRESSED) <= 0.003 * len(found)


@pytest.mark.parametrize(
    ("slow", "contended", "at_least"), [(1.08, 0.0, 0.9), (1.12, 0.0, 0.99), (1.12, 0.3, 0.99)]
)
def test_a_slowdown_is_caught_also_beside_neighbours(
    slow: float, contended: float, at_least: float
) -> None:
    wall = 0.15 if contended else 0.008
    found = verdicts(300, 0.007, wall, slow=slow, contended=contended)
    assert found.count(Verdict.REGRESSED) >= at_least * len(found)


def test_a_machine_that_drifts_with_its_yardstick_flags_nothing() -> None:
    """Recorded in the cold, checked at 0.7 of the clock: seconds differ, ratios do not."""
    machine = Machine(11, 0.007, 0.008)
    found: list[Verdict] = []
    for _ in range(100):
        base = record(figures=figures(*machine.repeats(4, 10.0)))
        hot: Sequence[list[float]] = machine.repeats(4, 10.0)
        check = record(figures=figures(*hot, yardstick_s=0.0014))
        found.append(decide(check, base, measurement=measurement()).verdict)
    assert Verdict.REGRESSED not in found
    assert found.count(Verdict.OK) >= 95
