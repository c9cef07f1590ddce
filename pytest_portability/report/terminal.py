"""The table at the end of a run, as text. Knows widths and units, not verdict rules."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pytest_portability.attribute import Cause
from pytest_portability.compare import POLICY, Verdict
from pytest_portability.records import Figures
from pytest_portability.report import Entry, Report

QUIET = {Verdict.OK, Verdict.SKIPPED}
"""Verdicts that need no reason below their row."""

MOST_CAUSES = 5


def header(report: Report) -> str:
    """One line: what is here, and what has records but is not here."""
    here = [f"{t.id} ({t.arch})" if t.platform != "cpu" else t.id for t in report.targets]
    line = "portability: " + (" · ".join(here) or "no target")
    gone = [f"{target} ({_records(n)})" for target, n in report.missing_targets.items()]
    return f"{line} · not here: {', '.join(gone)}" if gone else line


def _records(number: int) -> str:
    return f"{number} record" + "s" * (number != 1)


def lines(report: Report) -> list[str]:
    """The table, each failing row followed by its reason and causes."""
    rows = [_row(e) for e in report.entries if e.comparison.verdict is not Verdict.SKIPPED]
    if not rows:
        return []
    title = ("model", "target", "build", "batch", "per second", "vs baseline", "memory", "parity")
    table = [(*title, "verdict"), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    right = {3, 4, 5, 6}
    out = [_line(table[0], widths, right)]
    entries = [e for e in report.entries if e.comparison.verdict is not Verdict.SKIPPED]
    for row, entry in zip(rows, entries, strict=True):
        out.append(_line(row, widths, right))
        out.extend(_below(entry))
    out.extend(_machines(report))
    out.append(_summary(report))
    return out


def _line(row: Sequence[str], widths: Sequence[int], right: set[int]) -> str:
    cells = [
        cell.rjust(width) if i in right else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _row(entry: Entry) -> tuple[str, ...]:
    key, comparison = entry.key, entry.comparison
    figures = comparison.record.figures if comparison.record else None
    dims = "".join(f" {name}={size}" for name, size in key.profile)
    return (
        key.model,
        key.target,
        f"{key.runtime}-{key.precision}",
        _batch(key.batch, figures) + dims,
        _rate(figures),
        _change(entry),
        _memory(entry),
        _parity(entry),
        comparison.verdict.value.upper()
        if comparison.verdict not in {Verdict.OK, Verdict.IMPROVED}
        else comparison.verdict.value,
    )


def _batch(batch: int, figures: Figures | None) -> str:
    if figures is None or figures.batch_effective == batch:
        return str(batch)
    return f"{batch} (fits {figures.batch_effective})"


def _rate(figures: Figures | None) -> str:
    if figures is None:
        return "-"
    digits = 0 if figures.throughput >= 100 else 2
    rate = f"{figures.throughput:,.{digits}f}".replace(",", " ")
    return rate if figures.unit == "samples" else f"{rate} {figures.unit}"


def _change(entry: Entry) -> str:
    loss = entry.comparison.loss
    if loss is None:
        return "-"
    half = max(loss.high - loss.value, loss.value - loss.low)
    return f"{-loss.value * 100:+.1f} % ±{half * 100:.1f} %"


def _memory(entry: Entry) -> str:
    grown = entry.comparison.memory_rel
    return "-" if grown is None else f"{grown * 100:+.0f} %"


def _parity(entry: Entry) -> str:
    comparison = entry.comparison
    if comparison.record is None:
        return "-"
    verdict = "FAILED" if comparison.verdict is Verdict.PARITY else "ok"
    return f"{comparison.record.parity.error_rel:.1e} {verdict}"


def _below(entry: Entry) -> Iterator[str]:
    comparison = entry.comparison
    if comparison.verdict not in QUIET:
        yield f"        {comparison.reason}"
        for cause in entry.causes[:MOST_CAUSES]:
            yield f"        {cause_line(cause)}"
        if len(entry.causes) > MOST_CAUSES:
            yield f"        and {len(entry.causes) - MOST_CAUSES} more causes in the JSON report"
    for warning in comparison.warnings:
        yield f"        note: {warning}"
    if entry.update and entry.update != "unchanged":
        yield f"        baseline {entry.update}"


def failure(entry: Entry, log: str = "") -> str:
    """The text of a failed or warned item: verdict, figures, causes, and how to accept.

    Args:
        entry: the item.
        log: last words of a child that failed.
    """
    comparison = entry.comparison
    verdict = comparison.verdict.value.upper()
    lines_ = [f"{verdict}: {entry.key.model} {entry.key.row} on {entry.key.target}"]
    lines_.append(f"  {comparison.reason}")
    lines_ += [f"  {cause_line(cause)}" for cause in entry.causes[:MOST_CAUSES]]
    lines_ += [f"    {fact}" for cause in entry.causes[:2] for fact in cause.evidence[:4]]
    if log:
        lines_.append("  last output of the child process:")
        lines_ += [f"    {line}" for line in log.splitlines()]
    lines_ += _advice(entry)
    return "\n".join(lines_)


def _advice(entry: Entry) -> list[str]:
    update = POLICY[entry.comparison.verdict].update
    record = f'  record it: pytest --portability --update-baselines "{entry.nodeid}"'
    if entry.comparison.verdict is Verdict.MISSING:
        return [record]
    if update in {"accept", "unless worse"}:
        return [
            "  accept on purpose: pytest --portability --update-baselines "
            f'--portability-accept="why" "{entry.nodeid}"'
        ]
    return []


def cause_line(cause: Cause) -> str:
    """One cause in one line, its share of the loss first where it is known."""
    share = f"{cause.share * 100:3.0f} % of the loss: " if cause.share is not None else ""
    return f"{share}{cause.kind}: {cause.summary}"


def _machines(report: Report) -> Iterator[str]:
    """Say a machine's own slowness once per target; it is never charged to a build."""
    slower: dict[str, list[float]] = {}
    for entry in report.entries:
        if entry.comparison.baseline is not None and entry.comparison.loss is not None:
            slower.setdefault(entry.key.target, []).append(entry.comparison.machine_rel)
    for target, found in sorted(slower.items()):
        typical = sorted(found)[len(found) // 2]
        if abs(typical) > MACHINE_NOTE_REL:
            word = "slower" if typical > 0 else "faster"
            yield (
                f"{target}: by its yardstick the machine is {abs(typical) * 100:.0f} % {word} "
                "than when the records were made; builds are judged relative to it"
            )


MACHINE_NOTE_REL = 0.05


def _summary(report: Report) -> str:
    counts = ", ".join(f"{n} {verdict.value}" for verdict, n in report.counts.most_common())
    return f"portability: {report.measured} measured; {counts}"
