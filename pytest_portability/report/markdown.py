"""A report as Markdown: for a pull request, or ``$GITHUB_STEP_SUMMARY``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pytest_portability.report.document import Document, Line
from pytest_portability.report.terminal import beside, harmless

MOST_CAUSES = 5

HEAD = ("model", "target", "build", "batch", "per second", "vs baseline", "memory", "parity")


def render(document: Document) -> str:
    """The whole report: what failed with its causes first, then every item, then each target."""
    lines = ["### Portability", "", cell(document.summary)]
    lines += ["", *(f"* **{cell(p)}**" for p in document.problems)] if document.problems else []
    for line in document.lines:
        if line.outcome in ("fail", "warn"):
            lines += ["", *_paragraph(line)]
    shown = [line for line in document.lines if line.verdict != "skipped"]
    lines += ["", *table((*HEAD, "verdict"), map(_cells, shown))] if shown else []
    for delta in (delta for run in document.runs for delta in run.across):
        head = ("build", "per second", f"vs {delta.old}", "outputs", "first cause")
        lines += ["", f"**{cell(delta.new)} beside {cell(delta.old)}**, by raw figures:", ""]
        lines += table(head, map(beside, delta.rows))
    skipped = [line for line in document.lines if line.verdict == "skipped"]
    if skipped:
        lines += ["", f"<details><summary>{len(skipped)} skipped</summary>", ""]
        lines += [f"* {cell(line.nodeid)}: {cell(line.reason)}" for line in skipped]
        lines += ["", "</details>"]
    return "\n".join(lines) + "\n"


def _paragraph(line: Line) -> Iterator[str]:
    named = f"{line.model} {line.build} batch {line.batch} on {line.target}"
    yield f"**{cell(line.verdict.upper())}: {cell(named)}**"
    yield ""
    yield from (f"* {cell(text)}" for text in line.reason.splitlines())
    for cause in line.causes[:MOST_CAUSES]:
        told = cause.share is not None and line.of_time
        part = f"{cause.share:.0%} of the loss: " if told else ""
        yield f"* {part}**{cell(cause.kind)}**: {cell(cause.summary)}"
    if line.update:
        yield f"* baseline {cell(line.update)}"


def _cells(line: Line) -> Sequence[str]:
    unit = "" if line.unit in ("", "samples") else f" {line.unit}"
    loss, change = line.details.loss, "-"
    if loss is not None:
        change = f"{-loss.value:+.1%} ({-loss.high:+.1%} to {-loss.low:+.1%})"
    return (
        line.model,
        line.target,
        line.build,
        line.batch,
        "-" if line.throughput is None else f"{line.throughput:.4g}{unit}",
        change,
        "-" if line.memory_rel is None else f"{line.memory_rel:+.0%}",
        "-" if line.error_rel is None else f"{line.error_rel:.1e}",
        line.verdict.upper() if line.outcome == "fail" else line.verdict,
    )


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table, every cell of it harmless."""
    yield f"| {' | '.join(map(cell, head))} |"
    yield f"|{'---|' * len(head)}"
    yield from (f"| {' | '.join(map(cell, row))} |" for row in rows)


def cell(text: str) -> str:
    """Text of a record or of a test in Markdown: it ends no cell and no line, and is no markup."""
    text = harmless(text).replace("&", "&amp;").replace("<", "&lt;")
    # The backslash first. A zero-width joiner keeps names and numbers from being linked.
    for mark in "\\|*_~`[]":
        text = text.replace(mark, f"\\{mark}")
    return re.sub(r"([@#])(?=\w)", "\\1\u200d", text)
