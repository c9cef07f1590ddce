"""What a JSON report tells of a run and of an item beyond its line in the table, as types."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_portability.parity import ParityVerdict
from pytest_portability.records import Record
from pytest_portability.report.reading import Reader
from pytest_portability.samples import Window
from pytest_portability.targets import Absent
from pytest_portability.versions.delta import Delta


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Loss of throughput on one axis; fractions, NaN where the report has no number.

    Attributes:
        relative: whether both sides were divided by the same yardstick.
    """

    value: float
    low: float
    high: float
    relative: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss(Span):
    """The loss on the axis that decided.

    Attributes:
        axis: that axis.
        tolerance: what was allowed, a fraction.
        tolerance_source: who set it.
    """

    axis: str = ""
    tolerance: float = math.nan
    tolerance_source: str = ""
    busy: Span | None = None
    wall: Span | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Writes:
    """What ``--update-baselines`` writes of an item: ``all``, ``facts`` or ``no``.

    Attributes:
        plain: by itself.
        accepted: with ``--portability-accept``.
    """

    plain: str
    accepted: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Details:
    """One item; what the report does not have is None or empty.

    Attributes:
        again: arguments that make pytest measure it again.
        parity: what the outputs said.
        moved_rel: output name → distance from what the baseline's build computed, a fraction.
        windows: of each repeat, in order.
    """

    worker: str = ""
    again: tuple[str, ...] = ()
    writes: Writes | None = None
    loss: Loss | None = None
    machine_rel: float | None = None
    parity: ParityVerdict | None = None
    moved_rel: Mapping[str, float] = field(default_factory=dict)
    windows: tuple[tuple[Window, ...], ...] = ()
    record: Record | None = None
    baseline: Record | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A target that was there, as far as it is known."""

    id: str
    vendor: str = ""
    arch: str = ""
    product: str = ""
    platform: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Unused:
    """A record that no test asked for."""

    model: str
    target: str
    row: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run.

    Attributes:
        source: the report's file, empty for this run.
        session: commit, versions, time and what hooks added.
        recorded: target → number of its records.
        across: each further target held against the first one.
    """

    source: str
    session: Mapping[str, str]
    targets: tuple[Place, ...]
    absent: tuple[Absent, ...]
    unused: tuple[Unused, ...]
    recorded: Mapping[str, int]
    across: tuple[Delta, ...]


def of_item(item: Reader) -> Details:
    """The details of an item.

    Raises:
        UsageError: one of them is of a wrong type.
    """
    return Details(
        worker=item.typed("worker", str, ""),
        again=item.typed("again", tuple[str, ...], ()),
        writes=item.typed("writes", Writes | None, None),
        loss=item.typed("loss", Loss | None, None),
        machine_rel=item.typed("machine_rel", float | None, None),
        parity=item.typed("parity_verdict", ParityVerdict | None, None),
        moved_rel=item.typed("moved_rel", Mapping[str, float], {}),
        windows=item.typed("windows", tuple[tuple[Window, ...], ...], ()),
        record=item.typed("record", Record | None, None),
        baseline=item.typed("baseline", Record | None, None),
    )


def of_run(top: Reader) -> Run:
    """The facts of a run.

    Raises:
        UsageError: one of them is of a wrong type.
    """
    return Run(
        source=top.source,
        session=top.typed("session", Mapping[str, str], {}),
        targets=top.typed("targets", tuple[Place, ...], ()),
        absent=top.typed("absent", tuple[Absent, ...], ()),
        unused=top.typed("unused", tuple[Unused, ...], ()),
        recorded=top.typed("recorded", Mapping[str, int], {}),
        across=top.typed("across", tuple[Delta, ...], ()),
    )
