"""What a run has measured, each key once, and which of it becomes a record."""

from __future__ import annotations

import base64
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pytest_portability import compare, kernel_changes, records, verdicts
from pytest_portability.compare import Comparison
from pytest_portability.errors import RecordError, UsageError, error_text
from pytest_portability.pipeline import Item
from pytest_portability.records import Accepted, Key, Record
from pytest_portability.report import Entry, Report
from pytest_portability.run import Absentee

UNCHECKED = "the test asked for portability and never called check: nothing was measured"
UNFINISHED = "check still went on when the test had ended: it has to wait for its threads"
CRASHED = "the xdist worker that ran the test crashed: nothing was measured"
UNPARAMETRIZED = (
    "portability is an argument of a test or fixture: pytest cannot parametrize it for "
    "getfixturevalue() or in a unittest.TestCase; take it as an argument of a test function, or "
    "of a method of a class that is no TestCase"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """What ``--update-baselines`` does, by the one table in ``verdicts``.

    Attributes:
        directory: of the records.
        accept: reason for writing worse figures, empty if none was given.
    """

    directory: Path
    accept: str = ""

    def allows(self, comparison: Comparison) -> bool:
        """Whether the comparison may be written, so that its item passes."""
        return compare.writes(comparison, accepted=bool(self.accept)) != "no"

    def refuse(self, entry: Entry) -> Entry:
        """An entry of a test that failed for a reason of its own: it is not to be written."""
        if not self.allows(entry.comparison):
            return entry  # the table says why
        return replace(entry, update="refused: the test failed after its check")

    def apply(self, entry: Entry) -> Entry:
        """Write the entry's record if the table says so; the entry says what was done.

        Raises:
            RecordError: the file cannot be read or written; it is as it was.
        """
        comparison = entry.comparison
        record, baseline = comparison.record, comparison.baseline
        what = compare.writes(comparison, accepted=bool(self.accept))
        if record is None:
            return replace(entry, update="")
        if what == "no":
            return replace(entry, update=f"refused: {_refusal(comparison)}")
        if what == "facts" and baseline is not None:
            record = _refreshed(baseline, record)
        else:
            record = self._with_history(record, comparison)
        path = records.path_of(self.directory, entry.key.model, entry.key.target)
        wrote = records.write(path, {entry.key: record})
        done = "refreshed" if what == "facts" else "written"
        return replace(entry, update=done if wrote else "unchanged")

    def _with_history(self, record: Record, comparison: Comparison) -> Record:
        baseline = comparison.baseline
        if baseline is None:
            return record
        accepted = baseline.accepted
        if compare.writes(comparison, accepted=False) == "no":
            accepted += (
                Accepted(
                    date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                    reason=self.accept,
                    verdict=comparison.verdict.value,
                    before=baseline.figures.throughput,
                    after=record.figures.throughput,
                    loss=comparison.loss.value if comparison.loss else None,
                ),
            )
        return replace(record, accepted=accepted)


def _refusal(comparison: Comparison) -> str:
    verdict = comparison.verdict
    if compare.is_spoilt(comparison):
        why = "neighbours disturbed the record that is there"
        return f'{why}: --portability-accept="why" puts this one in its place'
    if verdict is verdicts.Verdict.INCONCLUSIVE:
        return "inconclusive is never recorded: measure it on a quieter machine"
    if verdicts.POLICY[verdict].update == "never":
        return f"{verdict.value} is never recorded"
    return f'{verdict.value} needs --portability-accept="why"'


def _refreshed(baseline: Record, record: Record) -> Record:
    """The baseline with the facts that changed at no cost; its figures stay what they were."""
    rerouted = kernel_changes.diff(baseline.path, record.path)
    metrics = {**record.parity.metrics, **baseline.parity.metrics}  # one may have been added
    seen = record.path.evidence != "none"  # what is known by the path alone is not lost with it
    return replace(
        baseline,
        model=record.model,
        parity=replace(baseline.parity, metrics=metrics),
        effective=record.effective if seen else record.effective or baseline.effective,
        # Shares of time differ at every run: only another path is another fact.
        path=record.path if rerouted else baseline.path,
        toolchain=record.toolchain,
        options=record.options,
        providers=record.providers if seen else record.providers or baseline.providers,
        threads=record.threads,
        graph_breaks=record.graph_breaks,
        compiled=record.compiled,
    )


class Claims:
    """Who claimed which record key in this run."""

    def __init__(self) -> None:
        self._by: dict[Key, str] = {}

    def forget(self, who: str) -> None:
        """Give back what an item took: it runs again."""
        self._by = {key: other for key, other in self._by.items() if other != who}

    def claim(self, key: Key, who: str) -> None:
        """Take a key.

        Args:
            key: of the record.
            who: the item, with its xdist worker if it has one.

        Raises:
            UsageError: another has it, or this one has it already; both are named.
        """
        other = self._by.setdefault(key, "")
        self._by[key] = other or who
        record = f"the record {key.model}/{key.target} {key.row}"
        if other == who:
            msg = (
                f"{record} is claimed twice, by {who}: two checks of one test want the same "
                "record; give one name= or profile="
            )
            raise UsageError(msg)
        if other:
            msg = (
                f"{record} is claimed twice, by {other} and by {who}; give one of two tests "
                "another name= or profile=, and let one of two workers on equal machines measure it"
            )
            raise UsageError(msg)


class Ledger:
    """Takes in the entries of a run as they come, each key once, and writes their records.

    Args:
        report: gets the entries.
        updates: what is written, None where this run records nothing.
    """

    def __init__(self, report: Report, updates: Updates | None) -> None:
        self._report = report
        self._updates = updates
        self._claims = Claims()

    def forget(self, nodeid: str, worker: str) -> None:
        """Drop the entries of an item that runs again."""
        for entry in self._report.entries:
            if (entry.nodeid, entry.worker) == (nodeid, worker):
                self._claims.forget(entry.who)
        self._report.forget(nodeid, worker)

    def take(self, entry: Entry, held: Path | None = None) -> str:
        """Add an entry to the report.

        Args:
            entry: what an item measured.
            held: the records here, where it was held against those of another machine.

        Returns:
            Why its item fails after all, empty if it does not: another item or worker delivered
            the same key, the other machine has another record, or it could not be written.
        """
        problem = ""
        try:
            if entry.comparison.record is not None:
                self._claims.claim(entry.key, entry.who)
                if held is not None:
                    _refuse_other_record(held, entry)
            if self._updates is not None and not entry.update:
                entry = self._updates.apply(entry)
        except UsageError as exc:
            problem = str(exc)
            entry = replace(
                entry, comparison=compare.error(problem), update="refused: see its reason"
            )
        except RecordError as exc:
            problem = f"the record was not written: {exc}"
            entry = replace(entry, update=f"failed: {exc}")
        except Exception as exc:  # noqa: BLE001 - pytest would end the run of all the others
            text = error_text(exc)
            problem = f"the record was not written: {text}"
            entry = replace(entry, update=f"failed: {text}")
        self._report.entries.append(replace(entry, outcome="fail") if problem else entry)
        return problem


def _refuse_other_record(directory: Path, entry: Entry) -> None:
    """Insist that another machine held an item against the record that is here.

    Raises:
        UsageError: it had another one, or none; both are told.
        RecordError: the record here cannot be read.
    """
    key, there = entry.key, entry.comparison.baseline
    path = records.path_of(directory, key.model, key.target)
    here = records.read(path).get(key) if path.exists() else None
    if repr(there) != repr(here):  # a figure may be NaN, which is not equal to itself
        msg = (
            f"{entry.who} was held against another record than the one here (there: "
            f"{_told(there)}; here: {_told(here)}): bring the checkout there up to date, records "
            "included, and run it again"
        )
        raise UsageError(msg)


def _told(record: Record | None) -> str:
    if record is None:
        return "none"
    return f"{record.figures.throughput:.5g} {record.figures.unit}/s of {record.measured}"


def asked(node: Any) -> Item | Absentee | None:
    """What the portability fixture of a pytest item was parametrized with, if it was."""
    found = getattr(getattr(node, "callspec", None), "params", {}).get("portability")
    return found if isinstance(found, (Item, Absentee)) else None


def unparametrized(nodeid: str, model: str) -> Entry:
    """The entry of an item that asked for the fixture where pytest cannot parametrize it."""
    nowhere = Absentee(id="", reason=UNPARAMETRIZED, target="-")
    return unmeasured(nodeid, model, nowhere, UNPARAMETRIZED, skipped=False)


def crashed(nodeid: str) -> Entry:
    """The entry of an item whose worker crashed before it said what the item is."""
    model = nodeid.rpartition("::")[2].partition("[")[0].removeprefix("test_")
    unknown = Absentee(id="", reason=CRASHED, target="-")
    return unmeasured(nodeid, model, unknown, CRASHED, skipped=False)


def unmeasured(
    nodeid: str, model: str, item: Item | Absentee, reason: str, *, skipped: bool
) -> Entry:
    """The entry of an item that ended before it was measured: no item is missing in a report.

    Args:
        nodeid: the test item.
        model: the name its record would have had.
        item: what was asked for.
        reason: why it skipped or failed.
        skipped: whether it skipped.
    """
    if isinstance(item, Absentee):
        key = Key(model=model, target=item.target, runtime=item.runtime, precision="", batch=0)
    else:
        key = Key(
            model=model,
            target=item.target.id,
            runtime=item.runtime.name,
            precision=item.precision,
            batch=item.batch,
        )
    comparison = compare.error(reason, skipped=skipped)
    outcome = "skip" if skipped else "fail"
    return Entry(nodeid=nodeid, key=key, comparison=comparison, outcome=outcome)


def with_outcome(entries: Sequence[Entry], report: Any) -> list[Entry]:
    """Entries with what became of their test, where that is not what their verdicts did to it.

    Args:
        entries: of one test.
        report: pytest's, of the phase that they came with.
    """
    expected = report.skipped and hasattr(report, "wasxfail")
    if report.failed and not any(entry.outcome == "fail" for entry in entries):
        return [replace(entry, outcome="fail") for entry in entries]  # for a reason of its own
    if expected:
        return [replace(e, outcome="xfail") if e.outcome == "fail" else e for e in entries]
    return [*entries]


def packed(value: object) -> str:
    """Text that xdist can carry from a worker to the controller."""
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(text: str) -> Any:
    """What ``packed`` was given; None of an empty text."""
    return pickle.loads(base64.b64decode(text)) if text else None
