"""All comparisons of a run, ready to render. Knows nothing of how a rendering looks."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections import Counter
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_portability.attribute import Cause
from pytest_portability.compare import Comparison
from pytest_portability.errors import UsageError, error_text
from pytest_portability.records import Key, Record
from pytest_portability.samples import Measurement
from pytest_portability.targets import Absent, Target, require
from pytest_portability.verdicts import WRONG
from pytest_portability.versions.delta import Delta, between


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One item of a run.

    Attributes:
        nodeid: the test item.
        worker: the xdist worker that measured it, empty without xdist.
        measurement: raw samples, None where nothing was measured.
        update: what ``--update-baselines`` did: ``written``, ``refreshed``, ``unchanged``,
            ``refused: …`` (by the table), ``failed: …`` (by the file), or empty without it.
        again: arguments that make pytest measure this item again, empty for its id; None where it
            was not held against the baselines, so that nothing is to be recorded.
        outcome: what the verdict did to the test, one of ``document.OUTCOMES``.
    """

    nodeid: str
    key: Key
    comparison: Comparison
    causes: tuple[Cause, ...] = ()
    measurement: Measurement | None = None
    worker: str = ""
    update: str = ""
    again: tuple[str, ...] | None = ()
    outcome: str = "pass"

    @property
    def arguments(self) -> tuple[str, ...]:
        """As ``again``, and nothing where there are none."""
        return () if self.again is None else self.again or (self.nodeid,)

    @property
    def who(self) -> str:
        """The item, and the worker that measured it."""
        return f"{self.nodeid} on {self.worker}" if self.worker else self.nodeid


@dataclass(slots=True, kw_only=True)
class Report:
    """A whole run.

    Attributes:
        session: facts of the run, such as the commit and the versions of pytest and ourselves.
        recorded: the records among the baselines.
        whole: whether the whole suite ran, so that a record which no item has is of no use.
        deselected: whether tests of ours were not selected.
        searched: whether any worker looked for hardware: only a test that asks for it does.
        problems: what went wrong beside the items, one message each; such a run is not green.
    """

    targets: tuple[Target, ...] = ()
    absents: tuple[Absent, ...] = ()
    searched: bool = False
    recorded: frozenset[Key] = frozenset()
    whole: bool = False
    deselected: bool = False
    session: MutableMapping[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def forget(self, nodeid: str, worker: str) -> None:
        """Drop the entries of an item that runs again."""
        self.entries[:] = [e for e in self.entries if (e.nodeid, e.worker) != (nodeid, worker)]

    def found(self, targets: Iterable[Target], absents: Iterable[Absent]) -> None:
        """Add what a worker found; the same target on several workers is one."""
        self.searched = True
        here = {t.id: t for t in (*self.targets, *targets)}
        self.targets = tuple(here.values())
        self.absents = tuple(dict.fromkeys((*self.absents, *absents)))

    def lacks(self, required: Sequence[str]) -> str:
        """Which required targets are not here, and why; empty if all are."""
        try:
            require(self.targets, self.absents, required)
        except UsageError as exc:
            return str(exc)
        return ""

    @property
    def complaints(self) -> list[str]:
        """Why this run is not green whatever its items say; empty if it may be."""
        if self.measured:
            return self.problems
        reasons = Counter(e.comparison.reason for e in self.entries)
        why = "; ".join(f"{n} × {reason}" for reason, n in reasons.most_common(3))
        more = "; and more, see -rs" if len(reasons) > 3 else ""
        nothing = why + more or "no test that ran called portability.check"
        if self.deselected and not why:
            here = ", ".join(t.id for t in self.targets) or "no target"
            nothing += f", and those that do were deselected (here: {here})"
        return [*self.problems, f"nothing was measured, so this run is not green: {nothing}"]

    @property
    def measured(self) -> int:
        """How many items were really measured."""
        return sum(e.measurement is not None for e in self.entries)

    @property
    def across(self) -> list[Delta]:
        """Each target that was measured, held against the first one of this run by raw figures.

        The first is that of the first worker, so that the order of ``--tx`` chooses it.
        """
        found: dict[str, dict[Key, Record]] = {}
        for entry in sorted(self.entries, key=lambda e: (len(e.worker), e.worker)):
            record = entry.comparison.record
            if record is not None and entry.comparison.verdict not in WRONG:
                found.setdefault(entry.key.target, {})[entry.key] = record
        first, *others = found or ("",)
        deltas = (between(found[first], found[o], (first, o)) for o in others)
        return [delta for delta in deltas if delta.rows]

    @property
    def missing_targets(self) -> dict[str, int]:
        """Targets that have records but are not here → number of records."""
        here = {t.id for t in self.targets}
        counts = Counter(key.target for key in self.recorded)
        return {target: n for target, n in sorted(counts.items()) if target not in here}

    @property
    def unused(self) -> list[Key]:
        """Records on targets that are here which no item of the whole suite has.

        An item that skipped or broke may not have told the name of its model: records of its
        runtime are left out.
        """
        if not self.whole:
            return []
        here = {t.id for t in self.targets}
        unheard = {e.key.runtime for e in self.entries if e.comparison.record is None}
        left = self.recorded - {e.key for e in self.entries}
        return sorted((k for k in left if k.target in here and k.runtime not in unheard), key=str)


def ready(kind: str, path: Path) -> None:
    """Refuse a report that cannot be written here, before anything is measured for it.

    Raises:
        UsageError: a package is missing; it says which, and how to install it. Or no file can be
            written at the path.
    """
    if why := _closed(path):
        msg = f"the report {kind}:{path} cannot be written, {why}: give another path"
        raise UsageError(msg)
    try:
        _renderer(kind)
    except ImportError as exc:
        msg = (
            "an HTML report is drawn by jinja2 and vl-convert-python, which cannot be imported "
            f"({exc}): pip install 'pytest-portability[html]'"
        )
        raise UsageError(msg) from exc


def _closed(path: Path) -> str:
    """Why no file can be written at a path; empty if nothing speaks against it."""
    path = Path(os.path.realpath(path))  # as ``save`` writes it
    try:
        if path.is_dir():
            return "it is a directory"
        if path.exists() and not path.is_file():  # a pipe or a device is written in its place
            return "" if os.access(path, os.W_OK) else "it is not writable"
        folder = next(parent for parent in path.parents if parent.exists())
    except OSError as exc:
        return f"{exc.strerror}"
    if not folder.is_dir():
        return f"{folder} is no directory"
    return "" if os.access(folder, os.W_OK) else f"{folder} is not writable"


def write(report: Report, kind: str, path: Path) -> None:
    """Write a report; that it cannot be written is one of its problems.

    Args:
        report: what to write.
        kind: ``html``, ``json`` or ``markdown``.
        path: the file.
    """
    try:
        save(_renderer(kind)(report), path)
    except Exception as exc:  # noqa: BLE001 - what one cannot show must not lose the others
        why = getattr(exc, "strerror", None) or error_text(exc)
        report.problems.append(f"the report {kind}:{path} was not written: {why}")


def _renderer(kind: str) -> Callable[[Report], str]:
    """Renderers import this module, and HTML is for those who installed what draws it."""
    from pytest_portability.report import document, json  # noqa: PLC0415 - see above

    if kind == "json":
        return json.render
    renderer = importlib.import_module(f"pytest_portability.report.{kind}")

    def render(report: Report) -> str:
        text: str = renderer.render(document.of(json.tables(report), ""))
        return text

    return render


def save(text: str, path: Path) -> None:
    """Write a file whole or not at all; its folders are made.

    Raises:
        OSError: it cannot be written.
    """
    if path.exists() and not path.is_file():  # a pipe or a device stays what it is
        path.write_text(text, encoding="utf-8")
        return
    path = Path(os.path.realpath(path))  # a link stays a link
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
