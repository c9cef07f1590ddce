"""One measuring run: what is here, and which items that makes.

Knows nothing of pytest: what hooks answered comes in as plain values.
"""

from __future__ import annotations

import platform
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_portability import records, runtimes, targets, worker, yardstick
from pytest_portability.attribute import KINDS, Cause
from pytest_portability.errors import ChildFailed, DoesNotFit, PortabilityError, UsageError
from pytest_portability.pipeline import Item
from pytest_portability.records import Key
from pytest_portability.runtimes import Runtime
from pytest_portability.servers import Servers
from pytest_portability.settings import Setting
from pytest_portability.targets import Absent, Device, Target
from pytest_portability.versions.source import Sources, Version

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
            found, missing = _asked(
                servers,
                worker.probe,
                package,
                environment=yardstick.ENVIRONMENT,
                preload=("numpy",),
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
            found, missing = _asked(servers, worker.devices, runtime, by_value=by_value)
        except PortabilityError as exc:
            absents.append(Absent(name=runtime.name, reason=_reason(exc)))
        else:
            devices += found
            absents += missing
    return Discovery(targets=targets.merge(devices), absents=tuple(absents))


def _asked(servers: Servers, question: Callable[..., Any], who: object, **given: Any) -> Any:
    """What a library answers; it is asked once more if the child that asked it died.

    Whatever kills one child, as the kernel does for want of memory, must not make every item of
    that library skip.
    """
    try:
        return servers.call(question, who, **given)
    except (ChildFailed, DoesNotFit):
        return servers.call(question, who, **given)


def _reason(exc: PortabilityError) -> str:
    known = "not installed", "present but unusable"
    reason = str(exc)
    return reason if any(word in reason for word in known) else f"present but unusable: {reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Absentee:
    """An item that cannot be measured here, with the reason it skips with.

    Attributes:
        target: id of the target, or the pattern that none matches.
        runtime: the one asked for that is not here, empty where the target is not.
    """

    id: str
    reason: str
    target: str
    runtime: str = ""


def items(
    found: Discovery,
    registered: Sequence[Runtime],
    *,
    patterns: Sequence[str] | None,
    names: Sequence[str] | None,
    precisions: Sequence[str],
    batches: Sequence[int],
) -> Sequence[Item | Absentee]:
    """What a test is to be built for: targets × runtimes × precisions × batches.

    Args:
        found: the hardware.
        registered: runtimes of a conftest or plugin.
        patterns: targets asked for, None for the accelerators, else the CPU.
        names: runtimes asked for, names or patterns; None for the ones native to the target.
        precisions: numeric modes asked for.
        batches: batch sizes asked for.

    Returns:
        Never empty: what cannot be had is an ``Absentee``. None is there twice.

    Raises:
        UsageError: a runtime that does not exist.
    """
    for name in names or ():
        if not _is_pattern(name):
            try:
                runtimes.load(name, registered)
            except UsageError as exc:
                where = "runtimes= of the marker, or the ini key portability_runtimes"
                msg = f"{where}: {exc}"
                raise UsageError(msg) from exc
    chosen = targets.select(found.targets, patterns)
    nowhere = [
        pattern
        for pattern in dict.fromkeys(patterns or ())
        if pattern != "all" and not any(targets.matches(t, pattern) for t in chosen)
    ]
    made: list[Item | Absentee] = [
        Absentee(id=f"{pattern}-not-here", reason=_no_target(found, pattern), target=pattern)
        for pattern in nowhere or (() if chosen else ("all",))
    ]
    asked = names if names is not None else (*DEFAULT_RUNTIMES, *(r.name for r in registered))
    for target in chosen:
        handled, absent = _handled(found, target, asked, named=names is not None)
        made += absent
        made += [
            Item(
                target=target,
                runtime=runtimes.load(name, registered),
                precision=precision,
                batch=batch,
                named=names is not None,
            )
            for name in handled
            for precision in dict.fromkeys(precisions)
            for batch in dict.fromkeys(batches)
        ]
    return made


def _handled(
    found: Discovery, target: Target, asked: Sequence[str], *, named: bool
) -> tuple[list[str], list[Absentee]]:
    """Runtimes of a target among those asked for, each once, and what is missing of them."""
    matching = {
        pattern: sorted(n for n in target.handles if fnmatchcase(n, pattern)) for pattern in asked
    }
    handled = list(dict.fromkeys(name for names in matching.values() for name in names))
    missing = [pattern for pattern, names in matching.items() if not names]
    if not named:
        # Of the default runtimes some are always missing; only that all are is worth a word.
        missing = [] if handled else [" or ".join(asked)]
    return handled, [
        Absentee(
            id=f"{target.id}-{pattern if named else 'runtime'}-not-here",
            reason=_no_runtime(found, target, pattern),
            target=target.id,
            runtime=pattern,
        )
        for pattern in missing
    ]


def _is_pattern(text: str) -> bool:
    return any(character in text for character in "*?[")


def _no_target(found: Discovery, pattern: str) -> str:
    here = ", ".join(f"{t.id} ({t.platform}, {t.arch})" for t in found.targets) or "none"
    why = "; ".join(f"{a.name}: {a.reason}" for a in found.absents)
    lacks = f"no target here matches {pattern!r}" if found.targets else "there is no target at all"
    return f"{lacks}; here: {here}" + (f"; not here: {why}" * bool(why))


def _no_runtime(found: Discovery, target: Target, pattern: str) -> str:
    here = ", ".join(sorted(target.handles)) or "none"
    family = pattern.partition(".")[0]
    why = "; ".join(f"{a.name}: {a.reason}" for a in found.absents if a.name.startswith(family))
    return f"no runtime {pattern!r} for {target.id}; here: {here}" + (f"; {why}" * bool(why))


def commit_of(directory: Path) -> str:
    """Git commit checked out there, ``-dirty`` if files differ; empty without git or repository."""
    describe = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    command = ["git", "-C", str(directory), *describe]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Census:
    """What the baselines directory holds.

    Attributes:
        keys: of the records.
        targets: target id → number of records.
        architectures: of those targets, as names that a marker can have.
        unreadable: what is wrong with the files that cannot be read, one message each.
    """

    keys: frozenset[Key]
    targets: Counter[str]
    architectures: frozenset[str]
    unreadable: tuple[str, ...]


def census(directory: Path) -> Census:
    """Count the records below a directory; a file that cannot be read does not hide the others.

    Raises:
        UsageError: it is no directory; one that does not exist yet is empty.
    """
    if directory.exists() and not directory.is_dir():
        msg = f"the baselines, {directory}, are a file; expected the directory of the records"
        raise UsageError(msg)
    known, unreadable = records.read_all(directory)
    return Census(
        keys=frozenset(known),
        targets=Counter(key.target for key in known),
        architectures=frozenset(
            re.sub(r"\W", "_", record.arch) for record in known.values() if record.arch
        ),
        unreadable=unreadable,
    )


def against(baselines: Path, given: Setting[str], updates: object) -> Version | None:
    """What a run is held against instead of the baselines; None for these.

    Raises:
        UsageError: nothing of that name is known, or the run would also write the baselines.
    """
    if not given.value:
        return None
    if updates is not None:
        msg = f"--portability-against={given.value} only compares: not with --update-baselines"
        raise UsageError(msg)
    return Sources(baselines).version(given.value)


def session(commit: str, pytest_version: str) -> dict[str, str]:
    """Facts of the run for the report; nothing that tells whose machine it is."""
    return {
        "pytest_portability": metadata.version("pytest-portability"),
        "pytest": pytest_version,
        "python": platform.python_version(),
        "commit": commit,
        "finished": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def options_for(
    item: Item, options: Mapping[str, Any], registered: Sequence[Runtime]
) -> dict[str, Any]:
    """The user's options for an item: those of its family, then those of its very runtime.

    Raises:
        UsageError: options for a runtime that does not exist, or that are no mapping.
    """
    families = {*runtimes.BUILT_IN, *(runtime.family for runtime in registered)}
    for name, values in options.items():
        if not isinstance(name, str):
            msg = f"options= has the key {name!r}; expected the name of a runtime or family"
            raise UsageError(msg)
        if name not in families:
            try:
                runtimes.load(name, registered)
            except UsageError as exc:
                msg = f"options[{name!r}]: {exc}; options are given by runtime, such as "
                msg += f"options={{{item.runtime.family!r}: {{{name!r}: {values!r}}}}}"
                raise UsageError(msg) from exc
        if not isinstance(values, Mapping):
            msg = f"options[{name!r}] is {values!r}; expected a mapping from option to value"
            raise UsageError(msg)
    runtime = item.runtime
    return {**options.get(runtime.family, {}), **options.get(runtime.name, {})}


# --- what hooks answer -----------------------------------------------------------------------


def registered_runtimes(answers: Iterable[Any]) -> list[Runtime]:
    """The answers of ``pytest_portability_runtimes`` in one list.

    Raises:
        UsageError: something in it is no runtime, or two have one name.
    """
    found: list[Runtime] = []
    for runtime in _each("pytest_portability_runtimes", answers):
        if isinstance(runtime, type) or not isinstance(runtime, Runtime):
            lacks = [
                name
                for name in (*Runtime.__annotations__, "supports", "build", "trace")
                if not hasattr(runtime, name)
            ]
            why = f"lacks {', '.join(lacks)}"
            if isinstance(runtime, type):
                why = "is a class; give an object of it"
            msg = f"hook pytest_portability_runtimes gave {runtime!r}, which {why}"
            raise UsageError(msg)
        if runtime.name in {r.name for r in found}:
            msg = f"hook pytest_portability_runtimes gave two runtimes named {runtime.name!r}"
            raise UsageError(msg)
        found.append(runtime)
    return found


def added_causes(answers: Iterable[Any], own: Sequence[Cause]) -> tuple[Cause, ...]:
    """The answers of ``pytest_portability_causes`` among our own causes, by share.

    Raises:
        UsageError: something in them is no cause.
    """
    added = list(_each("pytest_portability_causes", answers))
    for cause in added:
        if not isinstance(cause, Cause) or cause.kind not in KINDS:
            msg = (
                f"hook pytest_portability_causes gave {cause!r}; expected "
                f"pytest_portability.Cause objects with a kind of {', '.join(KINDS)}"
            )
            raise UsageError(msg)
    # The sort is stable: where no share is known the project's own word comes first.
    return tuple(sorted((*added, *own), key=lambda c: (c.kind == "unexplained", -(c.share or 0))))


def checked_environment(environment: Mapping[Any, Any]) -> dict[str, str]:
    """What ``pytest_portability_environment`` made of the variables.

    Raises:
        UsageError: a name or a value is no text.
    """
    for name, value in environment.items():
        if not isinstance(name, str) or not isinstance(value, str):
            msg = (
                f"hook pytest_portability_environment set {name!r} to {value!r}; "
                "names and values of environment variables are text"
            )
            raise UsageError(msg)
    return dict(environment)


def _each(hook: str, answers: Iterable[Any]) -> Iterator[Any]:
    for answer in answers:
        if isinstance(answer, (str, bytes)) or not isinstance(answer, Iterable):
            msg = f"hook {hook} gave {answer!r}; expected a list"
            raise UsageError(msg)
        yield from answer
