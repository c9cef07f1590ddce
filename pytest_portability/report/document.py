"""JSON reports as they are read again: of one run, or of the runners of a CI matrix together."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from pytest_portability.attribute import Cause
from pytest_portability.errors import UsageError
from pytest_portability.report.details import Details, Run, of_item, of_run
from pytest_portability.report.reading import Reader

SCHEMA = 1

OUTCOMES = ("pass", "warn", "fail", "skip", "xfail")

NO_TIME = {"parity", "memory", "unfit"}
"""Verdicts whose causes explain no lost time."""

CALM = {"ok", "improved"}
"""Verdicts that ask for nothing."""


def word(verdict: str, update: str) -> str:
    """The verdict, or that what failed is the record now."""
    return "recorded" if update == "written" and verdict not in CALM else verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One item of a report, as far as it is shown. Figures as in the JSON; None where unknown.

    Attributes:
        source: the file it is from, empty for this run.
        build: runtime and precision.
        outcome: what became of its test, one of ``OUTCOMES``.
    """

    nodeid: str
    source: str
    model: str
    target: str
    build: str
    batch: str
    verdict: str
    reason: str
    outcome: str
    update: str
    throughput: float | None
    unit: str
    memory_rel: float | None
    error_rel: float | None
    causes: tuple[Cause, ...]
    warnings: tuple[str, ...]
    details: Details

    @property
    def of_time(self) -> bool:
        """Whether the shares of its causes are of lost time."""
        return self.details.loss is not None and self.verdict not in NO_TIME

    @property
    def place(self) -> tuple[str, ...]:
        """What two runners must not both have measured."""
        return self.model, self.target, self.build, self.batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """Items of one or of several reports.

    Attributes:
        targets: ids of what was there.
        problems: what is wrong beside the items.
        runs: the facts of each report.
    """

    lines: tuple[Line, ...]
    targets: tuple[str, ...]
    problems: tuple[str, ...]
    runs: tuple[Run, ...]

    @property
    def failed(self) -> bool:
        """Whether anything fails, or nothing was measured."""
        measured = any(line.throughput is not None for line in self.lines)
        return bool(self.problems) or not measured or any(x.outcome == "fail" for x in self.lines)

    @property
    def summary(self) -> str:
        """Such as ``12 measured: 10 ok, 1 regressed, 1 skipped``."""
        measured = sum(line.throughput is not None for line in self.lines)
        counts = Counter(line.verdict for line in self.lines).most_common()
        return f"{measured} measured: {', '.join(f'{n} {word}' for word, n in counts) or 'nothing'}"


def schema() -> str:
    """The JSON Schema of a report."""
    folder = resources.files("pytest_portability.report")
    return folder.joinpath(f"portability-report-{SCHEMA}.schema.json").read_text(encoding="utf-8")


def read(path: Path) -> Document:
    """A report's file.

    Raises:
        UsageError: it cannot be read, or is no report of this schema; file and key are named.
    """
    try:
        tables = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        msg = f"{path}: cannot be read ({exc.strerror or exc})"
        raise UsageError(msg) from exc
    except (ValueError, RecursionError) as exc:
        msg = f"{path}: is no JSON ({exc}); expected what --portability-report=json:PATH wrote"
        raise UsageError(msg) from exc
    return of(tables, str(path))


def of(tables: Any, source: str) -> Document:
    """What is shown of a report's JSON.

    Args:
        tables: its plain values.
        source: the file, for messages and beside the items.

    Raises:
        UsageError: it is no report of this schema.
    """
    top = Reader(tables, source, "the report")
    if (schema := top.take("schema", int)) != SCHEMA:
        msg = f"{source}: key schema is {schema}, this release reads {SCHEMA}: use the one it is of"
        raise UsageError(msg)
    targets = [Reader(t, source, "targets").take("id", str) for t in top.take("targets", list)]
    return Document(
        lines=tuple(_line(item, source) for item in top.take("items", list)),
        targets=tuple(targets),
        problems=tuple(map(str, top.take("problems", list))),
        runs=(of_run(top),),
    )


def join(documents: Sequence[Document]) -> Document:
    """Several reports as one; what two of them both measured is a problem, by name."""
    lines = [line for document in documents for line in document.lines]
    seen: dict[tuple[str, ...], tuple[int, str]] = {}
    problems = [problem for document in documents for problem in document.problems]
    for number, line in (
        (n, line) for n, document in enumerate(documents) for line in document.lines
    ):
        if line.throughput is None:
            continue
        first, other = seen.setdefault(line.place, (number, line.source))
        if first != number:
            what = " ".join(line.place)
            problems.append(f"{what} is in {other} and in {line.source}: one of them is too many")
    targets = (target for document in documents for target in document.targets)
    return Document(
        lines=tuple(lines),
        targets=tuple(dict.fromkeys(targets)),
        problems=tuple(dict.fromkeys(problems)),
        runs=tuple(run for document in documents for run in document.runs),
    )


def _line(item: Any, source: str) -> Line:
    table = Reader(item, source, "items")
    parity = table.take("parity", (dict, type(None)))
    outcome = table.take("outcome", str)
    if outcome not in OUTCOMES:
        msg = f"{source}: key items.outcome is {outcome!r}; expected one of {', '.join(OUTCOMES)}"
        raise UsageError(msg)
    runtime, precision = (table.text(name) for name in ("runtime", "precision"))
    dims = [f"{name}={size}" for name, size in table.take("profile", dict).items()]
    return Line(
        source=source,
        build=f"{runtime}-{precision}" if runtime else "-",
        batch=" ".join([table.text("batch") or "-", *dims]),
        error_rel=Reader(parity, source, "items.parity").figure("error_rel") if parity else None,
        causes=tuple(_causes(table.take("causes", list), source)),
        warnings=tuple(map(str, table.take("warnings", list))),
        throughput=table.figure("throughput"),
        memory_rel=table.figure("memory_rel"),
        outcome=outcome,
        details=of_item(table),
        **{
            name: table.text(name)
            for name in ("nodeid", "model", "target", "verdict", "reason", "update", "unit")
        },
    )


def _causes(causes: Iterable[Any], source: str) -> Iterable[Cause]:
    for cause in causes:
        table = Reader(cause, source, "items.causes")
        yield Cause(
            kind=table.text("kind"),
            summary=table.text("summary"),
            share=table.figure("share"),
            evidence=table.typed("evidence", tuple[str, ...], ()),
        )
