"""What CI systems show beside a run: GitHub's annotations, and properties in JUnit's XML."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pytest_portability.report import Entry, Report
from pytest_portability.report.terminal import cause_line, harmless

_LEVELS = {"fail": "error", "warn": "warning"}

Places = Mapping[str, tuple[Path, int]]
"""Test id → its file and the line, from 1, where it begins."""


def github(report: Report, places: Places, environment: Mapping[str, str]) -> Iterator[str]:
    """GitHub's workflow commands, one for each item that failed or warned; none elsewhere.

    GitHub shows ten of a kind for each step, so that what failed comes first.

    Args:
        report: the run.
        places: where its tests are.
        environment: of the process; GitHub sets ``GITHUB_ACTIONS``, and in ``GITHUB_WORKSPACE``
            the folder to which paths are relative.
    """
    if environment.get("GITHUB_ACTIONS") != "true":
        return
    workspace = environment.get("GITHUB_WORKSPACE") or str(Path.cwd())
    for outcome, level in _LEVELS.items():
        for entry in report.entries:
            if entry.outcome == outcome and entry.nodeid in places:
                path, line = places[entry.nodeid]
                where = _property(_relative(path, workspace))
                title = _property(f"{entry.comparison.verdict.value.upper()}: {_what(entry)}")
                yield f"::{level} file={where},line={line},title={title}::{_data(_text(entry))}"


def properties(entry: Entry) -> Iterator[tuple[str, str]]:
    """Facts of an item for ``--junitxml``, which writes them as properties of its test case.

    Fractions and items per second, as in the JSON report; what is unknown is left out.
    """
    key, comparison = entry.key, entry.comparison
    figures, loss = comparison.record.figures if comparison.record else None, comparison.loss
    cause = entry.causes[0] if entry.causes else None
    facts = {
        "model": key.model,
        "target": key.target,
        "row": key.row,
        "verdict": comparison.verdict.value,
        "throughput": f"{figures.throughput:.6g}" if figures else "",
        "unit": figures.unit if figures else "",
        "loss": f"{loss.value:.4f}" if loss else "",
        "cause": f"{cause.kind}: {cause.summary}" if cause else "",
    }
    yield from ((f"portability.{k}", harmless(text)) for k, text in facts.items() if text)


def _what(entry: Entry) -> str:
    return f"{entry.key.model} {entry.key.row} on {entry.key.target}"


def _text(entry: Entry) -> str:
    causes = (cause_line(cause, entry.comparison) for cause in entry.causes[:2])
    lines = (*entry.comparison.reason.splitlines(), *causes)
    return "\n".join(harmless(line) for line in lines)


def _relative(path: Path, workspace: str) -> str:
    try:
        return Path(os.path.relpath(path, workspace)).as_posix()
    except ValueError:  # another drive
        return path.as_posix()


def _data(text: str) -> str:
    """Text of a workflow command, which ends with its line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A property of a workflow command, which ends with a comma or a colon, too."""
    return _data(harmless(text)).replace(":", "%3A").replace(",", "%2C")
