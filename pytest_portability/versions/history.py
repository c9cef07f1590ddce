"""Every row through git: the commits of the baselines directory are the database."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice, pairwise
from pathlib import Path

from pytest_portability import records
from pytest_portability.errors import RecordError, UsageError
from pytest_portability.loss import usable
from pytest_portability.records import Key
from pytest_portability.versions.git import AT_ONCE, Blob, Checkout
from pytest_portability.versions.sharing import pool

STEP_REL = 0.05
"""Change of throughput from which a commit is named: the default tolerance."""

MANY_BLOBS = 100
"""From so many on, reading is shared among processes: a file of 12 rows takes some 6 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """How fast a row was.

    Attributes:
        throughput: items per second.
        ratio: wall time per batch ÷ the yardstick's; NaN where not known.
        yardstick: which one.
    """

    throughput: float
    unit: str
    ratio: float
    yardstick: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A row as one commit left it; the date is ISO 8601."""

    commit: str
    date: str
    speed: Speed


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A commit that changed the throughput; ``change`` is a fraction, negative is slower."""

    point: Point
    change: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One row through time.

    Attributes:
        points: oldest first, one for each commit that changed its throughput.
        gone: whether the newest commit no longer has it.
    """

    key: Key
    points: tuple[Point, ...]
    gone: bool

    @property
    def steps(self) -> tuple[Step, ...]:
        """Commits that changed it by ``STEP_REL`` or more."""
        changes = (Step(point=b, change=_change(a, b)) for a, b in pairwise(self.points))
        return tuple(step for step in changes if abs(step.change) >= STEP_REL)

    @property
    def change(self) -> float:
        """From the first to the last point, step by step, as a fraction."""
        return math.prod(1 + _change(a, b) for a, b in pairwise(self.points)) - 1


def _change(before: Point, after: Point) -> float:
    """By the same yardstick where there is one: another machine is no other build."""
    old, new = before.speed, after.speed
    same = old.yardstick.split()[:2] == new.yardstick.split()[:2] != []
    if same and usable(old.ratio) and usable(new.ratio):
        return old.ratio / new.ratio - 1
    return new.throughput / old.throughput - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """Rows through time, and what is wrong with old files that cannot be read.

    Attributes:
        shallow: whether this clone lacks older commits.
    """

    lines: tuple[Line, ...]
    problems: tuple[str, ...]
    shallow: bool = False


def history(baselines: Path, model: str = "*", target: str = "*") -> History:
    """The rows of a directory through the commits that touched it.

    Args:
        baselines: the directory.
        model: pattern of models.
        target: pattern of targets.

    Raises:
        UsageError: it is in no git checkout, or no row fits the patterns.
    """
    checkout = Checkout.of(baselines)
    changes = [c for c in checkout.changes() if re.fullmatch(r"[^/]+/[^/]+\.toml", c.path)]
    first = {change.id: change for change in reversed(changes) if change.id}
    known = dict(zip(first, _read(checkout, list(first.values())), strict=True))
    every = list(_lines(changes, known))
    lines = [
        line
        for line in every
        if fnmatchcase(line.key.model, model) and fnmatchcase(line.key.target, target)
    ]
    if every and not lines:
        models = ", ".join(sorted({line.key.model for line in every}))
        msg = f"no commit touched a record of {model!r} on {target!r}; models in git: {models}"
        raise UsageError(msg)
    problems = (
        f"{first[blob].commit[:12]}: {found}"
        for blob, found in known.items()
        if isinstance(found, str)
    )
    return History(lines=tuple(lines), problems=tuple(problems), shallow=checkout.shallow)


_Found = dict[Key, Speed] | str  # or why there is none


def _read(checkout: Checkout, blobs: Sequence[Blob]) -> Iterator[_Found]:
    contents = checkout.read([blob.id for blob in blobs])
    paths = (blob.path for blob in blobs)
    if len(blobs) < MANY_BLOBS:
        yield from map(_speeds, paths, contents)
        return
    with pool() as processes:
        # Part by part: the pool would read everything that it is given at once.
        for _ in range(0, len(blobs), AT_ONCE):
            part = [list(islice(side, AT_ONCE)) for side in (paths, contents)]
            yield from processes.map(_speeds, *part, chunksize=20)


def _speeds(path: str, data: bytes) -> _Found:
    try:
        found = records.loads(Path(path), data.decode())
    except UnicodeDecodeError as exc:
        return f"{path}: is not UTF-8 ({exc.reason})"
    except RecordError as exc:
        return str(exc)
    return {
        key: Speed(
            throughput=record.figures.throughput,
            unit=record.figures.unit,
            ratio=record.figures.wall.ratio,
            yardstick=record.figures.yardstick,
        )
        for key, record in found.items()
    }


def _lines(changes: Iterable[Blob], known: Mapping[str, _Found]) -> Iterator[Line]:
    points: dict[Key, list[Point]] = {}
    held: dict[str, set[Key]] = {}
    for change in changes:
        found = known[change.id] if change.id else {}
        if isinstance(found, str):
            continue  # what cannot be read says nothing, not even that a row is gone
        held[change.path] = set(found)
        for key, speed in found.items():
            so_far = points.setdefault(key, [])
            if not so_far or so_far[-1].speed.throughput != speed.throughput:
                so_far.append(Point(commit=change.commit, date=change.date, speed=speed))
    now = {key for keys in held.values() for key in keys}
    for key, of_key in sorted(points.items()):
        yield Line(key=key, points=tuple(of_key), gone=key not in now)
