"""Two versions of the records, or two targets, row by row: what changed, and why."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from pytest_portability import attribute, compare, parity, records
from pytest_portability.attribute import Cause
from pytest_portability.compare import Allowed, Comparison
from pytest_portability.effects import path_changes
from pytest_portability.errors import RecordError
from pytest_portability.records import Figures, Key, Record
from pytest_portability.verdicts import POLICY, Verdict
from pytest_portability.versions.sharing import each
from pytest_portability.versions.source import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One figure on both sides; None where it is not known."""

    old: float | None
    new: float | None

    @property
    def rel(self) -> float | None:
        """Change as a fraction; None where a side is not known."""
        if not self.old or self.new is None:
            return None
        return self.new / self.old - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One build in both versions.

    Attributes:
        old: key of the one it is held against; another target's where targets are compared.
        parity: what the outputs' sketches say of each other.
        throughput: items per second.
        unit: of these items.
        latency: median seconds of a synchronous call.
        memory: bytes, of the device where known, else of the process.
        kernels: how the kernel path differs, one sentence each.
        slower: whether it certainly is, beyond the tolerance; likewise ``larger`` in memory.
    """

    key: Key
    old: Key
    verdict: Verdict
    reason: str
    parity: str
    throughput: Pair
    unit: str
    latency: Pair
    memory: Pair
    kernels: tuple[str, ...]
    causes: tuple[Cause, ...]
    warnings: tuple[str, ...]
    slower: bool
    larger: bool

    @property
    def failed(self) -> bool:
        """Whether it is worse on the new side; of other weights, too, if it is slower or larger."""
        stale = self.verdict is Verdict.STALE and (self.slower or self.larger)
        return stale or POLICY[self.verdict].item == "fail"


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """Two versions.

    Attributes:
        only_old: rows that the new one lacks.
        only_new: rows that the old one lacks.
        problems: files that cannot be read, one message each.
    """

    old: str
    new: str
    rows: tuple[Row, ...]
    only_old: tuple[Key, ...]
    only_new: tuple[Key, ...]
    problems: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Whether anything is worse, or could not be read."""
        return bool(self.problems) or any(row.failed for row in self.rows)


def delta(old: Version, new: Version, allowed: Allowed | None = None) -> Delta:
    """Hold every row of a version against its row in another one."""
    models = sorted({*old.models(), *new.models()})
    found = list(each(partial(_of_model, old, new, allowed), models))
    return Delta(
        old=old.name,
        new=new.name,
        rows=tuple(row for part in found for row in part.rows),
        only_old=tuple(key for part in found for key in part.only_old),
        only_new=tuple(key for part in found for key in part.only_new),
        problems=tuple(text for part in found for text in part.problems),
    )


def between(old: Mapping[Key, Record], new: Mapping[Key, Record], names: tuple[str, str]) -> Delta:
    """Hold the records of one target against those of another one.

    Args:
        old: records of one target.
        new: of the other.
        names: of the two.
    """
    return _delta(old, new, names, allowed=None, across=True)


def _of_model(old: Version, new: Version, allowed: Allowed | None, model: str) -> Delta:
    (before, wrong_before), (after, wrong_after) = old.read(model), new.read(model)
    across = old.target != new.target
    found = _delta(before, after, (old.name, new.name), allowed=allowed, across=across)
    return replace(found, problems=tuple(dict.fromkeys((*wrong_before, *wrong_after))))


def _delta(
    before: Mapping[Key, Record],
    after: Mapping[Key, Record],
    names: tuple[str, str],
    *,
    allowed: Allowed | None,
    across: bool,
) -> Delta:
    pairs = list(_pairs(before, after, across=across))
    paired_old, paired_new = {o for o, _ in pairs}, {n for _, n in pairs}
    return Delta(
        old=names[0],
        new=names[1],
        rows=tuple(row(after[n], before[o], allowed) for o, n in pairs),
        only_old=tuple(sorted(before.keys() - paired_old)),
        only_new=tuple(sorted(after.keys() - paired_new)),
        problems=(),
    )


def _pairs(
    old: Mapping[Key, Record], new: Collection[Key], *, across: bool
) -> Iterator[tuple[Key, Key]]:
    """Rows of the same key; across targets then those of the same build, then of its family."""
    equal = sorted(old.keys() & set(new))
    yield from ((key, key) for key in equal)
    if not across:
        return
    before, after = sorted(old.keys() - set(equal)), sorted(set(new) - set(equal))
    for alike in (_build, _family):
        for key in tuple(after):
            same = [o for o in before if alike(o) == alike(key)]
            if same:
                best = max(same, key=lambda o: old[o].figures.throughput)
                before.remove(best)
                after.remove(key)
                yield best, key


def _build(key: Key) -> tuple[object, ...]:
    return key.model, key.runtime, key.precision, key.batch, key.profile


def _family(key: Key) -> tuple[object, ...]:
    return key.model, key.runtime.partition(".")[0], key.precision, key.batch, key.profile


def counterpart(version: Version, key: Key) -> Record | None:
    """The record that a new one is held against; None if there is none.

    Args:
        version: its records; where it names a target, that target's may stand in.
        key: of the new record.

    Raises:
        RecordError: a file of the model cannot be read.
    """
    name = records.path_of(version.directory, key.model, key.target).parent.name
    found, unreadable = version.read(name)
    if unreadable:
        raise RecordError(unreadable[0])
    pairs = _pairs(found, [key], across=bool(version.target))
    old = next((old for old, _ in pairs), None)
    if old is None:
        return None
    return found[old] if old.target == key.target else raw(found[old])


def row(record: Record, baseline: Record, allowed: Allowed | None = None) -> Row:
    """Hold two stored records against each other: parity first, then speed and memory."""
    across = record.key.target != baseline.key.target
    judged = parity.between(record.computed, baseline.computed)
    sides = (raw(record), raw(baseline)) if across else (record, baseline)
    comparison = compare.decide(*sides, parity=judged, allowed=allowed)
    if record == baseline:  # no interval says of a measurement whether it is itself
        ok, reason = Verdict.OK, "the same measurement"
        comparison = replace(comparison, verdict=ok, speed=ok, reason=reason)
    now, then = record.figures, baseline.figures
    return Row(
        key=record.key,
        old=baseline.key,
        verdict=comparison.verdict,
        reason=comparison.reason,
        parity=_parity(comparison, record, baseline),
        throughput=Pair(old=then.throughput, new=now.throughput),
        unit=now.unit,
        latency=Pair(old=then.latency_p50_s, new=now.latency_p50_s),
        memory=_memory(now, then),
        kernels=tuple(change.summary for change in path_changes(record, baseline)),
        causes=attribute.attribute(comparison),
        warnings=comparison.warnings,
        slower=comparison.speed is Verdict.REGRESSED,
        larger=comparison.memory_grew,
    )


def raw(record: Record) -> Record:
    """Without the yardstick: another target is as fast as it is, and no slower machine."""
    figures = record.figures
    wall = replace(figures.wall, ratio=math.nan)
    return replace(
        record,
        figures=replace(figures, wall=wall, busy=None, yardstick="", yardstick_s=math.nan),
    )


def _parity(comparison: Comparison, record: Record, baseline: Record) -> str:
    same = comparison.parity.same_model if comparison.parity else None
    words = {True: "same outputs", False: "other outputs", None: "whether the same is unknown"}
    then, now = baseline.parity.error_rel, record.parity.error_rel
    return f"{words[same]}; error against its reference {then:.2g} → {now:.2g}"


def _memory(now: Figures, then: Figures) -> Pair:
    """The first figure that both sides know: a device's bytes are not a process's."""
    for name in ("memory_device_bytes", "memory_process_bytes", "memory_arena_bytes"):
        old, new = getattr(then, name), getattr(now, name)
        if old is not None and new is not None:
            return Pair(old=old, new=new)
    return Pair(old=None, new=None)
