"""Stored records side by side, as text, Markdown and JSON. Knows widths and units, no verdicts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pytest_portability.report.json import plain
from pytest_portability.report.markdown import cell, table
from pytest_portability.report.terminal import harmless
from pytest_portability.verdicts import Verdict
from pytest_portability.versions.delta import Delta, Pair, Row
from pytest_portability.versions.history import History, Line
from pytest_portability.versions.matrix import Matrix
from pytest_portability.versions.planning import Plan

SPARKS = "▁▂▃▄▅▆▇█"


def as_json(value: object) -> str:
    """Any of them as JSON: fractions, seconds, bytes, items per second."""
    return json.dumps(plain(value), indent=1, allow_nan=False)


# --- two versions ------------------------------------------------------------------------------


def delta_text(delta: Delta) -> list[str]:
    """One paragraph for each row: parity, throughput, latency, memory, kernels, causes."""
    lines = [f"{delta.old} → {delta.new}"]
    for row in delta.rows:
        word = row.verdict.value.upper() if row.failed else row.verdict.value
        lines += ["", f"{_named(row)}: {word}"]
        lines += [f"    {line}" for line in _details(row)]
    lines += ["", *_one_sided(delta)] if delta.only_old or delta.only_new else []
    lines += [f"cannot be read: {problem}" for problem in delta.problems]
    return [harmless(line) for line in (*lines, "", _summary(delta))]


def _named(row: Row) -> str:
    return (
        f"{row.key}" if row.old == row.key else f"{row.key} (was {row.old.row} on {row.old.target})"
    )


def _details(row: Row) -> Iterator[str]:
    yield f"parity      {row.parity}"
    yield f"throughput  {_pair(row.throughput, f' {row.unit}/s')}"
    yield f"latency p50 {_pair(row.latency, ' ms', 1e3)}"
    yield f"memory      {_pair(row.memory, ' MiB', 2**-20)}"
    yield f"verdict     {row.reason}"
    yield from (f"kernels     {change}" for change in row.kernels)
    for cause in row.causes:
        share = f"{cause.share:.0%} of the loss: " if cause.share is not None else ""
        yield f"cause       {share}{cause.kind}: {cause.summary}"
    yield from (f"note        {warning}" for warning in row.warnings)


def _pair(pair: Pair, unit: str, scale: float = 1.0) -> str:
    sides = ["?" if side is None else f"{side * scale:.4g}" for side in (pair.old, pair.new)]
    change = "" if pair.rel is None else f" ({pair.rel:+.1%})"
    return f"{' → '.join(sides)}{unit}{change}"


def _one_sided(delta: Delta) -> Iterator[str]:
    yield from (f"only in {delta.old}: {key}" for key in delta.only_old)
    yield from (f"only in {delta.new}: {key}" for key in delta.only_new)


def _summary(delta: Delta) -> str:
    worse = sum(row.failed for row in delta.rows)
    unsure = sum(row.verdict is Verdict.INCONCLUSIVE for row in delta.rows)
    return (
        f"compared: {len(delta.rows)}, worse: {worse}, too uncertain to tell: {unsure}; only in "
        f"{delta.old}: {len(delta.only_old)}, only in {delta.new}: {len(delta.only_new)}"
    )


def delta_markdown(delta: Delta) -> list[str]:
    """A table, and the causes of what is worse below it."""
    head = ("build", "parity", "throughput", "latency p50", "memory", "verdict")
    lines = [f"### {cell(delta.old)} → {cell(delta.new)}", ""]
    lines += table(head, map(_cells, delta.rows))
    for row in (row for row in delta.rows if row.failed):
        lines += ["", f"**{cell(_named(row))}**: {cell(row.reason)}", ""]
        lines += [f"* {cell(cause.kind)}: {cell(cause.summary)}" for cause in row.causes]
    lines += ["", *(f"* {cell(line)}" for line in _one_sided(delta))]
    lines += [f"* cannot be read: {cell(problem)}" for problem in delta.problems]
    return [*lines, "", cell(_summary(delta))]


def _cells(row: Row) -> Sequence[str]:
    return (
        _named(row),
        row.parity,
        _pair(row.throughput, f" {row.unit}/s"),
        _pair(row.latency, " ms", 1e3),
        _pair(row.memory, " MiB", 2**-20),
        row.verdict.value,
    )


# --- one version -------------------------------------------------------------------------------


def matrix_text(matrix: Matrix) -> list[str]:
    """Every record with its efficiency, then the metric of each way to build a model."""
    rows = [("model", "target", "build", "per second", "ran in", "p50", "memory", "efficiency")]
    for one in matrix.cells:
        memory = "-" if one.memory_bytes is None else f"{one.memory_bytes / 2**20:.0f} MiB"
        rows.append(
            (
                one.key.model,
                one.key.target,
                one.key.row,
                f"{one.throughput:.4g} {one.unit}",
                one.effective or "?",
                f"{one.latency_p50_s * 1e3:.3g} ms",
                memory,
                f"{one.efficiency:.0%}",
            )
        )
    lines = [*_aligned(rows), "", "performance portability (harmonic mean of efficiencies):"]
    for metric in matrix.metrics:
        over = f"over {len(metric.present)} of {len(metric.targets)} targets"
        named = f"{metric.key.model} {metric.key.row}"
        lines.append(f"    {named}: {metric.strict:.2f} strict, {metric.here:.2f} {over}")
    return [harmless(line) for line in (*lines, *matrix.problems)]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def history_text(history: History) -> list[str]:
    """A line for each row, and one for each commit that changed it."""
    lines = [text for line in history.lines for text in _of_line(line)]
    lines += [f"cannot be read: {problem}" for problem in history.problems]
    if history.shallow:
        lines.append("older commits are not in this shallow clone: git fetch --unshallow")
    return [harmless(line) for line in lines or ["no commit touched a record"]]


def _of_line(line: Line) -> Iterator[str]:
    first, last = line.points[0], line.points[-1].speed
    bars = spark([point.speed.throughput for point in line.points])
    commits = f"{len(line.points)} commit{'s' * (len(line.points) > 1)}"
    gone = ", no longer recorded" if line.gone else ""
    yield (
        f"{line.key}: {bars} {last.throughput:.4g} {last.unit}/s, {line.change:+.1%} since "
        f"{first.date[:10]} in {commits}{gone}"
    )
    for step in line.steps:
        yield f"    {step.change:+.1%} in {step.point.commit[:12]} ({step.point.date[:10]})"


def spark(values: Sequence[float], width: int = 24) -> str:
    """A line of small bars, from the least value to the most; the latest ones if they are many."""
    shown = values[-width:]
    low, span = min(shown), max(shown) - min(shown)
    top = len(SPARKS) - 1
    return "".join(SPARKS[round((v - low) / span * top) if span else top // 2] for v in shown)


def plan_text(plan: Plan) -> list[str]:
    """The steps, and the command."""
    lines = [f"{plan.model} on {plan.target}"]
    for title, known in plan.steps:
        lines += ["", title, *(f"    {line}" for line in known)]
    lines += ["", plan.command, *(f"cannot be read: {problem}" for problem in plan.problems)]
    return [harmless(line) for line in lines]
