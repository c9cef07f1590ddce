"""Holds a record against its baseline, in the order that the domain demands."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median

from pytest_portability import footprint, kernel_changes, preconditions
from pytest_portability.loss import (
    CLAIM,
    INSIDE,
    Interval,
    Sample,
    crowding,
    expected,
    loss,
    memory_drift,
    usable,
)
from pytest_portability.parity import ParityVerdict
from pytest_portability.records import Figures, Record
from pytest_portability.samples import Measurement
from pytest_portability.sensors import disturbance
from pytest_portability.verdicts import POLICY, Verdict


def writes(comparison: Comparison, *, accepted: bool) -> str:
    """What ``--update-baselines`` writes: ``all``, ``facts`` or ``no``.

    Args:
        comparison: the comparison to record.
        accepted: whether ``--portability-accept`` gave a reason.
    """
    update = POLICY[comparison.verdict].update
    if comparison.record is None:
        return "no"  # nothing was measured, whatever was accepted
    if is_quieter(comparison) or (accepted and is_spoilt(comparison)):
        return "all"
    worse = comparison.speed in {Verdict.REGRESSED, Verdict.INCONCLUSIVE} or comparison.memory_grew
    if update == "refresh":
        return "facts"
    if update == "yes" or (update == "accept" and accepted):
        return "all"
    return "all" if update == "unless worse" and (accepted or not worse) else "no"


def is_spoilt(comparison: Comparison) -> bool:
    """Whether nothing can be told because neighbours disturbed the baseline's own measurement."""
    then = comparison.baseline.figures.contended if comparison.baseline else None
    return comparison.verdict is Verdict.INCONCLUSIVE and (then or 0.0) > CONTENTION_LIMIT


def is_quieter(comparison: Comparison) -> bool:
    """Whether neighbours disturbed an equal baseline, and not what is to take its place."""
    record, baseline = comparison.record, comparison.baseline
    if comparison.verdict is not Verdict.OK or not (record and baseline):
        return False
    now, then = record.figures.contended, baseline.figures.contended
    return now is not None and now <= CONTENTION_LIMIT < (then or 0.0)


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
        memory_grew: whether that is beyond the memory tolerance.
        speed: the verdict of the throughput alone, None where speed was not compared.
        parity: what the outputs said, None where they were not judged.
        contended: share (0–1) of the processor that neighbours took on the worse of the two
            sides, None where unknown.
        fading_rel: slowdown within a repeat, None where unknown.
        closest: the record shown instead of a missing baseline.
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
    memory_grew: bool = False
    speed: Verdict | None = None
    parity: ParityVerdict | None = None
    contended: float | None = None
    fading_rel: float | None = None
    closest: Record | None = None
    warnings: tuple[str, ...] = ()


CONFIRM_REPEATS = 3
"""Fewest repeats for a certain loss or gain: on a machine where one process in five is odd, two odd
ones in a row are no rarity."""

UNCERTAIN = 0.2
"""Width of an interval beyond which it is no pass: of the work per batch, also what keeps wall time
alone from deciding anything."""

CONTENTION_LIMIT = 0.10
"""Share of the processor taken by neighbours beyond which wall time says nothing."""

CONTENTION_MILD = 0.03
"""Beyond this neighbours excuse a wide interval of wall time, though not a certain loss."""

FADING_LIMIT = 0.10
"""Slowdown from first to last third of the windows beyond which a speed is not sustained."""

MOST_OPTIONS = 3
"""Options that changed, of which each is said."""

MEMORY_DRIFT = 0.02
"""What slower memory may have added to the time beyond which it is said."""

UPDATED_SPREAD = 0.03
"""What another version of the yardstick's library may add: the kernel of a plain GEMM seldom
changes, and where it does by more, the interval is what it is for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a comparison allows, as fractions, and who said so.

    Attributes:
        loss: of throughput.
        source: who set it: ``default``, ``ini``, ``command line`` or ``marker``.
        memory: growth of memory, beside ``footprint.FLOOR_BYTES``.
    """

    loss: float = 0.05
    source: str = "default"
    memory: float = 0.05


def decide(
    record: Record,
    baseline: Record | None,
    *,
    measurement: Measurement | None = None,
    parity: ParityVerdict | None = None,
    allowed: Allowed | None = None,
) -> Comparison:
    """Hold a record against its baseline: comparable? parity? throughput? memory? placement?

    Args:
        record: of now.
        baseline: the committed one, None if there is none for this key.
        measurement: what the record was made of; without it (two stored records) fading and the
            asked-for provider are unknown.
        parity: what the outputs said; None is not judged.
        allowed: what is allowed, the defaults if None.
    """
    allowed = allowed or Allowed()
    repeats = measurement.repeats if measurement else ()
    shown = Comparison(
        verdict=Verdict.MISSING,
        reason=f"no record of {record.key.model} {record.key.row} on {record.key.target}",
        record=record,
        baseline=baseline,
        tolerance=allowed.loss,
        tolerance_source=allowed.source,
        parity=parity,
        contended=_most(
            _median(r.contended for r in repeats),
            record.figures.contended,
            baseline.figures.contended if baseline else None,
        ),
        fading_rel=_median(r.fading_rel for r in repeats),
    )
    same_batch = baseline and baseline.figures.batch_effective == record.figures.batch_effective
    if baseline is not None and same_batch:
        shown = _judged(shown, record, baseline, allowed)
    doubts = preconditions.doubts(record, baseline, repeats, parity)
    if baseline is None and (taken := record.figures.contended or 0.0) > CONTENTION_LIMIT:
        doubts = (*doubts, f"{_neighbours(taken)} meanwhile: record it on a quieter machine")
    shown = replace(shown, warnings=(*shown.warnings, *doubts))
    found = preconditions.unmet(record, baseline, measurement, parity)
    if found is None:
        return shown
    reason = found[1]
    if found[0] is Verdict.STALE and shown.speed not in (Verdict.OK, None):
        reason += f"; {shown.reason}"
    return replace(shown, verdict=found[0], reason=reason)


def with_closest(comparison: Comparison, closest: Record | None, why: str = "") -> Comparison:
    """A ``missing`` comparison that shows the closest record and the portability delta to it.

    Args:
        comparison: of a record without baseline.
        closest: the record to show, None if none is close.
        why: how it was chosen, such as ``same architecture``.
    """
    record = comparison.record
    if closest is None or record is None:
        return replace(comparison, reason=f"{comparison.reason}, and none that is close")
    there, here = closest.figures.throughput, record.figures.throughput
    times = f" ({here / there:.2f} ×)" if usable(there) else ""
    reason = (
        f"{comparison.reason}; closest ({why or 'same model'}): {closest.key.row} on "
        f"{closest.key.target}: {there:.4g} {closest.figures.unit}/s there, {here:.4g} here{times}"
    )
    return replace(comparison, reason=reason, closest=closest)


def _most(*shares: float | None) -> float | None:
    known = [share for share in shares if share is not None]
    return max(known) if known else None


def _median(values: Iterator[float]) -> float | None:
    known = [value for value in values if math.isfinite(value)]
    return median(known) if known else None


def _judged(shown: Comparison, record: Record, baseline: Record, allowed: Allowed) -> Comparison:
    """Throughput, memory and placement of two comparable records."""
    now, then = record.figures, baseline.figures
    same = _same_work(now.yardstick, then.yardstick)
    updated = same and now.yardstick != then.yardstick
    drift = memory_drift(record, baseline) if same else 0.0
    machine = 0.0
    if same and usable(now.yardstick_s) and usable(then.yardstick_s):
        machine = now.yardstick_s / then.yardstick_s - 1
    axes = []
    for axis, mine, other in (("busy", now.busy, then.busy), ("wall", now.wall, then.wall)):
        if mine is not None and other is not None:
            prior = expected(axis, record, baseline, shown.contended, machine)
            if updated:
                prior = replace(prior, spread_rel=math.hypot(prior.spread_rel, UPDATED_SPREAD))
            crowd = crowding(axis, record, baseline)
            check, base = Sample(mine, now.repeats), Sample(other, then.repeats)
            axes.append(loss(axis, check, base, prior, relative=same, drift=drift + crowd))
    shown = replace(shown, axes=tuple(a for a in axes if a is not None), machine_rel=machine)
    speed, reason, deciding = _speed(shown, _disordered(record, baseline))
    why = disturbance(now.throttled, then.throttled, now.neighbours)
    if why and speed is not Verdict.OK:
        speed, reason = Verdict.INCONCLUSIVE, f"{why}; {reason}"
    rel, grew = footprint.growth(now, then, allowed.memory)
    regressed = speed is Verdict.REGRESSED
    warnings = [grew] if grew and regressed else []
    if speed is Verdict.OK and (shown.contended or 0.0) > CONTENTION_LIMIT:
        warnings.append(_blind(shown))
    if not regressed:
        # What a change cost is known only where the speed is.
        fast = speed is Verdict.IMPROVED or (deciding and speed is Verdict.OK and deciding.low <= 0)
        free = fast and not grew
        cost = ", at no cost" if free else ""
        warnings += [f"{change}{cost}" for change in _details(record, baseline)]
    if updated:
        warnings.append(f"the yardstick's library changed: {then.yardstick} → {now.yardstick}")
    warnings += _machine(now, then, machine, drift)
    memory_decides = bool(grew) and not regressed
    return replace(
        shown,
        verdict=Verdict.MEMORY if memory_decides else speed,
        reason=grew if memory_decides else reason,
        loss=deciding,
        speed=speed,
        memory_rel=rel,
        memory_grew=bool(grew),
        warnings=tuple(warnings),
    )


def _machine(now: Figures, then: Figures, slower: float, drift: float) -> list[str]:
    """What changed about the machine: ``slower`` by the yardstick, ``drift`` by its memory."""
    found = []
    if abs(slower) > 0.1:
        word = "slower" if slower > 0 else "faster"
        found.append(
            f"by the yardstick this machine is {abs(slower):.0%} {word} than the baseline's"
        )
    if abs(drift) > MEMORY_DRIFT:
        copied = [(side.copy_bandwidth or 0.0) / 1e9 for side in (then, now)]
        found.append(
            f"this machine copied {copied[0]:.1f} GB/s in memory then, {copied[1]:.1f} GB/s now: "
            f"that may have made the build up to {math.expm1(abs(drift)):.0%} "
            f"{'slower' if drift > 0 else 'faster'}"
        )
    return found


def _same_work(now: str, then: str) -> bool:
    """Whether two yardsticks do the same work in the same library, of whatever version."""
    return bool(now) and now.split()[:2] == then.split()[:2]


_Speed = tuple[Verdict, str, Interval | None]


def _disordered(record: Record, baseline: Record) -> str:
    """Why the work per batch of several threads is no constant; empty if it is one."""
    if record.threads != baseline.threads:
        return "other threads change the CPU time"
    now, then = record.figures.contended, baseline.figures.contended
    several = record.parallel or baseline.parallel
    if several and None not in (now, then) and abs((now or 0.0) - (then or 0.0)) > CONTENTION_LIMIT:
        return (
            "what several threads cost changes with what neighbours take of the processor: "
            f"{then:.0%} when the record was made, {now:.0%} now"
        )
    return ""


def _speed(shown: Comparison, disordered: str) -> _Speed:
    """The verdict of the throughput alone, its reason, and the axis that decided.

    Args:
        shown: with its axes.
        disordered: why the work per batch cannot be judged where wall time cannot either.
    """
    axes = {axis.axis: axis for axis in shown.axes}
    busy, wall = axes.get("busy"), axes.get("wall")
    if busy is None and wall is None:
        return Verdict.INCONCLUSIVE, "no usable time on either side: nothing to compare", None
    if (shown.contended or 0.0) <= CONTENTION_LIMIT:
        return _unhindered(shown, busy, wall)
    blind = _blind(shown)
    if busy is None or disordered:
        why = disordered if busy else "CPU time is not known"
        return Verdict.INCONCLUSIVE, f"{blind}, and {why}", busy or wall
    verdict, reason, deciding = _certain(shown, [busy])
    return verdict, f"{reason}; {blind}", deciding


def _unhindered(shown: Comparison, busy: Interval | None, wall: Interval | None) -> _Speed:
    judged = [axis for axis in (busy, wall) if axis is not None]
    if faded := _faded(shown, busy, wall):
        return Verdict.INCONCLUSIVE, faded, wall or busy
    if busy and wall and _gained(wall, shown.tolerance):
        judged = [wall]  # more threads: more work for each batch, and done sooner
    verdict, reason, deciding = _certain(shown, judged)
    if busy and wall and deciding is wall and _wide(busy):
        # Work per batch that nobody can tell makes a time per batch that nobody should trust: the
        # build settled in one of several states, as threads that share a core do.
        return Verdict.INCONCLUSIVE, f"work per batch is too uncertain to judge by: {busy}", busy
    neighbours = shown.contended or 0.0
    wide = verdict is Verdict.INCONCLUSIVE and deciding is wall and neighbours > CONTENTION_MILD
    if busy and wide and wall and wall.value < shown.tolerance:
        verdict, reason, deciding = _certain(shown, [busy])
        reason += f"; wall time too noisy to judge beside neighbours: {wall}"
    apart = busy is not None and wall is not None and busy.high < min(wall.low, shown.tolerance)
    if verdict is Verdict.REGRESSED and deciding is wall and apart:
        reason += f"; work per batch did not grow with it ({busy}): host-bound or less parallel"
    return verdict, reason, deciding


def _wide(axis: Interval) -> bool:
    return axis.high - axis.low > UNCERTAIN


def _blind(shown: Comparison) -> str:
    then = shown.baseline.figures.contended if shown.baseline else None
    worse = then is not None and then == shown.contended
    when = " when the record was made" if worse else ""
    return f"wall time not judged: {_neighbours(shown.contended or 0.0)}{when}"


def _neighbours(share: float) -> str:
    return f"neighbours took {share:.0%} of the processor"


def _lost(axis: Interval, tolerance: float) -> bool:
    return axis.certain and axis.value > tolerance


def _gained(axis: Interval, tolerance: float) -> bool:
    return axis.certain and axis.value < -tolerance


def _certain(shown: Comparison, judged: list[Interval]) -> _Speed:
    """The rule: certainly lost on any axis, certainly gained, or every interval inside."""
    limit = shown.tolerance
    allowed = f"the {100 * limit:.3g} % tolerance ({shown.tolerance_source})"
    if lost := [axis for axis in judged if _lost(axis, limit)]:
        deciding = min(lost, key=lambda axis: axis.high - axis.low)
        return Verdict.REGRESSED, f"throughput: {deciding}, beyond {allowed}", deciding
    widest = max(judged, key=lambda axis: axis.high)
    gained = [axis for axis in judged if _gained(axis, limit)]
    if gained and widest.high < limit:
        deciding = gained[-1]
        return Verdict.IMPROVED, f"throughput: {deciding}; the record is behind", deciding
    if widest.high < limit and not any(map(_wide, judged)):
        inside = "inside" if abs(widest.value) <= limit else "no certain gain beyond"
        return Verdict.OK, f"throughput: {widest}, {inside} {allowed}", widest
    reason = f"too noisy to tell: {widest}, with {allowed}"
    if widest.low > limit:
        needed, shown_at = (f"{100 * level:.5g} %" for level in (CLAIM, INSIDE))
        reason += f"; a claim needs {needed} certainty, the range has {shown_at}"
    return Verdict.INCONCLUSIVE, reason, widest


def _faded(shown: Comparison, busy: Interval | None, wall: Interval | None) -> str:
    """Why a speed that changed during the measurement says nothing; empty if it does."""
    fading, limit = shown.fading_rel or 0.0, shown.tolerance
    if abs(fading) <= FADING_LIMIT or (busy and _lost(busy, limit)):
        return ""
    if fading < 0:
        return f"still warming up: the last third ran {-fading:.0%} faster than the first"
    # A loss much larger than the fading is no effect of it.
    if wall and _lost(wall, limit) and wall.value - fading / (1 + fading) > limit:
        return ""
    return f"fading: the last third of the windows took {fading:.0%} longer than the first"


def _details(record: Record, baseline: Record) -> list[str]:
    """What is deterministic and differs."""
    found = []
    for word, old, new in (
        ("threads", baseline.threads, record.threads),
        ("graph breaks", baseline.graph_breaks, record.graph_breaks),
        ("compiled", baseline.compiled, record.compiled),
    ):
        if old != new and None not in (old, new):
            found.append(f"{word}: {old} → {new}")
    if record.key.runtime != baseline.key.runtime or record.vendor != baseline.vendor:
        return found
    names = sorted({*record.options, *baseline.options})
    changed = [n for n in names if record.options.get(n) != baseline.options.get(n)]
    for name in changed[:MOST_OPTIONS]:
        was, now = (side.options.get(name, "unset") for side in (baseline, record))
        found.append(f"option {name}: {was} → {now}")
    if len(changed) > MOST_OPTIONS:
        found.append(f"and {len(changed) - MOST_OPTIONS} more options")
    changes = kernel_changes.diff(baseline.path, record.path)
    return [*found, *(change.summary for change in changes)]


def undecided(comparison: Comparison) -> bool:
    """Whether another repeat may change the verdict: too noisy, or certain on too few repeats."""
    record, baseline = comparison.record, comparison.baseline
    if record is None or comparison.verdict is Verdict.PARITY:
        return False
    blind = (comparison.contended or 0.0) > CONTENTION_LIMIT
    if blind and baseline and _disordered(record, baseline):
        return False  # nor would more of them be of use
    if comparison.verdict is Verdict.MEMORY:
        return True  # the least over more processes can only fall
    if comparison.speed is Verdict.INCONCLUSIVE:
        return comparison.verdict in (Verdict.INCONCLUSIVE, Verdict.STALE)
    certain = comparison.verdict in (Verdict.REGRESSED, Verdict.IMPROVED)
    few = record.figures.repeats < CONFIRM_REPEATS
    return certain and few and comparison.speed is comparison.verdict


def error(reason: str, *, skipped: bool = False) -> Comparison:
    """No measurement: it went wrong, or this build cannot be done here."""
    verdict = Verdict.SKIPPED if skipped else Verdict.ERROR
    return Comparison(verdict=verdict, reason=reason, record=None, baseline=None)


def unfit(reason: str, baseline: Record | None) -> Comparison:
    """No measurement, because no batch fits into memory."""
    return Comparison(verdict=Verdict.UNFIT, reason=reason, record=None, baseline=baseline)
