"""Verdicts: the statistics of a loss and the one table of what each verdict does."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_portability.records import Record


class Verdict(str, Enum):
    """The outcome of holding a record against its baseline."""

    OK = "ok"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    PARITY = "parity"
    INTERFACE = "interface"
    PLACEMENT = "placement"
    MEMORY = "memory"
    UNFIT = "unfit"
    STALE = "stale"
    MISSING = "missing"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Loss of throughput on one axis: 0.31 is 31 % slower, negative is faster; all fractions.

    Attributes:
        axis: ``busy`` or ``wall``.
        value: the estimate.
        low: lower end of the confidence interval.
        high: upper end.
        relative: whether both sides were divided by the same yardstick; False means raw seconds.
    """

    axis: str
    value: float
    low: float
    high: float
    relative: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A record held against its baseline.

    Attributes:
        reason: one sentence: what was asked, what was found.
        loss: the deciding axis, None where speed was not compared.
        axes: every axis compared.
        tolerance: allowed loss (fraction).
        tolerance_source: who set it: ``default``, ``ini``, ``command line`` or ``marker``.
        machine_rel: this machine's yardstick time ÷ the baseline's, minus 1; 0.1 is 10 % slower.
        memory_rel: growth of the compared memory figure, None where not comparable.
        warnings: what changed and cost nothing, one sentence each.
    """

    verdict: Verdict
    reason: str
    record: Record | None
    baseline: Record | None
    loss: Interval | None = None
    axes: tuple[Interval, ...] = ()
    tolerance: float = 0.05
    tolerance_source: str = "default"
    machine_rel: float = 0.0
    memory_rel: float | None = None
    warnings: tuple[str, ...] = ()
