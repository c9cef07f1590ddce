"""One measuring run: what is here, which items that makes, and which records get written."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType

from pytest_portability import compare, records, runtimes, targets, worker, yardstick
from pytest_portability.compare import Comparison
from pytest_portability.errors import PortabilityError, RecordError, UsageError
from pytest_portability.pipeline import Item
from pytest_portability.records import Accepted, Key, Record
from pytest_portability.report import Entry
from pytest_portability.runtimes import Runtime
from pytest_portability.servers import Servers
from pytest_portability.targets import Absent, Device, Target

DEFAULT_RUNTIMES = ("onnxruntime.*", "torch", "torch.compile")


@dataclass(frozen=True, slots=True, kw_only=True)
class Discovery:
    """What hardware is here, what is not, and why."""

    targets: tuple[Target, ...]
    absents: tuple[Absent, ...]

    @property
    def handled(self) -> dict[str, list[str]]:
        """Runtime name → ids of the targets it can build for."""
        found: dict[str, list[str]] = {}
        for target in self.targets:
            for name in target.handles:
                found.setdefault(name, []).append(target.id)
        return found


def discover(
    servers: Servers, registered: Sequence[Runtime] = (), by_value: Sequence[ModuleType] = ()
) -> Discovery:
    """Ask every platform library, each in a child process of its own, which devices it sees.

    Args:
        servers: where the children run.
        registered: runtimes of a conftest or plugin. One that has a method ``devices`` is asked
            too; any other is taken to run on the CPU.
        by_value: modules the children cannot import.
    """
    devices: list[Device] = []
    absents: list[Absent] = []
    for package in runtimes.LIBRARIES:
        try:
            found, missing = servers.call(
                worker.probe, package, environment=yardstick.ENVIRONMENT, preload=("numpy",)
            )
        except PortabilityError as exc:
            absents.append(Absent(name=package, reason=_reason(exc)))
        else:
            devices += found
            absents += missing
    for runtime in registered:
        if not hasattr(runtime, "devices"):
            devices.append(targets.cpu_device(runtimes=(runtime.name,), handle="cpu"))
            continue
        try:
            found, missing = servers.call(worker.devices, runtime, by_value=by_value)
        except PortabilityError as exc:
            absents.append(Absent(name=runtime.name, reason=_reason(exc)))
        else:
            devices += found
            absents += missing
    return Discovery(targets=targets.merge(devices), absents=tuple(absents))


def _reason(exc: PortabilityError) -> str:
    known = "not installed", "present but unusable"
    reason = str(exc)
    return reason if any(word in reason for word in known) else f"present but unusable: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Absentee:
    """An item that cannot be measured here, with the reason it skips with."""

    id: str
    reason: str


def items(
    found: Discovery,
    registered: Sequence[Runtime],
    *,
    patterns: Sequence[str] | None,
    names: Sequence[str] | None,
    precisions: Sequence[str],
    batches: Sequence[int],
) -> Iterator[Item | Absentee]:
    """What a test is to be built for: targets × runtimes × precisions × batches.

    Args:
        found: the hardware.
        registered: runtimes of a conftest or plugin.
        patterns: targets asked for, None for the accelerators, else the CPU.
        names: runtimes asked for, names or patterns; None for the ones native to the target.
        precisions: numeric modes asked for.
        batches: batch sizes asked for.

    Raises:
        UsageError: a runtime that does not exist.
    """
    chosen = targets.select(found.targets, patterns)
    for pattern in patterns or ():
        if pattern != "all" and not any(targets.matches(t, pattern) for t in chosen):
            yield Absentee(id=f"{pattern}-not-here", reason=_no_target(found, pattern))
    own = [runtime.name for runtime in registered]
    asked = names if names is not None else (*DEFAULT_RUNTIMES, *own)
    for target in chosen:
        for pattern in asked:
            matching = sorted(n for n in target.handles if fnmatchcase(n, pattern))
            if not matching and names is not None:
                runtimes.load(pattern, registered) if not _is_pattern(pattern) else None
                reason = _no_runtime(found, target, pattern)
                yield Absentee(id=f"{target.id}-{pattern}-not-here", reason=reason)
            for name in matching:
                runtime = runtimes.load(name, registered)
                for precision in precisions:
                    for batch in batches:
                        yield Item(
                            target=target,
                            runtime=runtime,
                            precision=precision,
                            batch=batch,
                            named=names is not None,
                        )


def _is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def _no_target(found: Discovery, pattern: str) -> str:
    here = ", ".join(t.id for t in found.targets) or "none"
    why = "; ".join(f"{a.name}: {a.reason}" for a in found.absents)
    return f"no target here matches {pattern!r}; here: {here}" + (f"; not here: {why}" * bool(why))


def _no_runtime(found: Discovery, target: Target, pattern: str) -> str:
    here = ", ".join(sorted(target.handles)) or "none"
    family = pattern.partition(".")[0]
    why = "; ".join(f"{a.name}: {a.reason}" for a in found.absents if a.name.startswith(family))
    return f"no runtime {pattern!r} for {target.id}; here: {here}" + (f"; {why}" * bool(why))


def commit_of(directory: Path) -> str:
    """Abbreviated git commit checked out there, empty outside a repository or without git."""
    command = ["git", "-C", str(directory), "rev-parse", "--short=12", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """What ``--update-baselines`` does, by the one table in ``compare``.

    Attributes:
        directory: of the records.
        accept: reason for writing worse figures, empty if none was given.
    """

    directory: Path
    accept: str = ""

    def allows(self, comparison: Comparison) -> bool:
        """Whether the comparison may be written, so that its item passes."""
        return compare.writes(comparison, accepted=bool(self.accept)) != "no"

    def apply(self, entry: Entry) -> Entry:
        """Write the entry's record if the table says so; the entry says what was done."""
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
        try:
            wrote = records.write(path, {entry.key: record})
        except RecordError as exc:
            return replace(entry, update=f"refused: {exc}")
        done = "refreshed" if what == "facts" else "written"
        return replace(entry, update=done if wrote else "unchanged")

    def _with_history(self, record: Record, comparison: Comparison) -> Record:
        baseline = comparison.baseline
        if baseline is None:
            return record
        accepted = baseline.accepted
        if compare.POLICY[comparison.verdict].update != "yes" and self.accept:
            accepted += (
                Accepted(
                    date=datetime.now(timezone.utc).isoformat(timespec="seconds"),
                    reason=self.accept,
                    verdict=comparison.verdict.value,
                    before=baseline.figures.throughput,
                    after=record.figures.throughput,
                ),
            )
        return replace(record, accepted=accepted)


def _refusal(comparison: Comparison) -> str:
    verdict = comparison.verdict
    if compare.POLICY[verdict].update == "never":
        return f"{verdict.value} is never recorded"
    return f'{verdict.value} needs --portability-accept="why"'


def _refreshed(baseline: Record, record: Record) -> Record:
    """The baseline with the facts that changed at no cost; its figures stay what they were."""
    return replace(
        baseline,
        toolchain=record.toolchain,
        options=record.options,
        providers=record.providers,
        threads=record.threads,
        graph_breaks=record.graph_breaks,
        compiled=record.compiled,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What the baselines directory holds.

    Attributes:
        targets: target id → number of records.
        architectures: of those targets.
    """

    targets: Counter[str]
    architectures: frozenset[str]


def census(directory: Path) -> Census:
    """Count the records below a directory.

    Raises:
        RecordError: one of the files cannot be read as it is.
    """
    known = records.read_all(directory)
    return Census(
        targets=Counter(key.target for key in known),
        architectures=frozenset(record.arch for record in known.values()),
    )


class Claims:
    """Who claimed which record key in this run."""

    def __init__(self) -> None:
        self._by: dict[Key, str] = {}

    def claim(self, key: Key, nodeid: str) -> None:
        """Take a key.

        Raises:
            UsageError: another item has it; both are named.
        """
        other = self._by.setdefault(key, nodeid)
        if other != nodeid:
            msg = (
                f"two tests claim the record {key.model}/{key.target} {key.row}: {other} and "
                f"{nodeid}; give one of them another name= or profile="
            )
            raise UsageError(msg)
