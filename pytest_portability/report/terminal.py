"""The table at the end of a run, as text. Knows widths and units, not verdict rules."""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, NamedTuple, Protocol

from pytest_portability import compare
from pytest_portability.attribute import Cause, lost_time
from pytest_portability.compare import Comparison
from pytest_portability.records import Figures
from pytest_portability.report import Entry, Report
from pytest_portability.report.document import CALM, NO_TIME, word
from pytest_portability.targets import Target
from pytest_portability.verdicts import Verdict
from pytest_portability.versions.delta import Row

QUIET = {Verdict.OK, Verdict.SKIPPED}
"""Verdicts that need no reason below their row."""

DONE = {"written", "refreshed", "unchanged"}
"""What an update did where it did not fail or refuse: its row has nothing to cry about."""

MOST_CAUSES = 5
MOST_UNUSED = 10
MOST_ACROSS = 20
MACHINE_NOTE_REL = 0.05
"""How far a machine may be from its records, by the yardstick, before a line says so."""


def header(report: Report) -> str:
    """One line: what is here, and what has records but is not here."""
    if not report.searched and not report.targets:
        return "portability: no test got as far as to ask which devices are here"
    line = "portability: " + (" · ".join(map(_target, report.targets)) or "no target")
    gone = [f"{target} ({_records(n)})" for target, n in report.missing_targets.items()]
    return harmless(f"{line} · not here: {', '.join(gone)}" if gone else line)


def _target(target: Target) -> str:
    if target.platform == "cpu":
        return target.id
    driver = target.facts.get("driver", "")
    return f"{target.id} ({target.arch}{f', driver {driver}' if driver else ''})"


def _records(number: int) -> str:
    return f"{number} record" + "s" * (number != 1)


def lines(report: Report, columns: int | None = None) -> list[str]:
    """The table, each failing row followed by its reason and causes.

    Args:
        report: the run.
        columns: of the terminal; rows that are wider become two lines each. None breaks nothing.
    """
    rows = [_row(e) for e in report.entries if e.comparison.verdict is not Verdict.SKIPPED]
    if not rows:
        return []
    title = ("model", "target", "build", "batch", "per second", "vs baseline", "memory", "parity")
    table = [(*title, "verdict"), *rows]
    widths = [max(len(row[i]) for row in table) for i in range(len(table[0]))]
    right = {3, 4, 5, 6}
    narrow = columns is not None and sum(widths) + 2 * (len(widths) - 1) > columns
    out = [] if narrow else [_line(table[0], widths, right)]
    entries = [e for e in report.entries if e.comparison.verdict is not Verdict.SKIPPED]
    for row, entry in zip(rows, entries, strict=True):
        out.extend(_narrow(row) if narrow else [_line(row, widths, right)])
        out.extend(_below(entry))
    out.extend(_across(report))
    out.extend(_machines(report))
    out.extend(_toolchains(report))
    out.extend(_unused(report))
    out.append(_summary(report))
    return [harmless(line) for line in out]


def _line(row: Sequence[str], widths: Sequence[int], right: set[int]) -> str:
    cells = [
        cell.rjust(width) if i in right else cell.ljust(width)
        for i, (cell, width) in enumerate(zip(row, widths, strict=True))
    ]
    return "  ".join(cells).rstrip()


def _narrow(row: Sequence[str]) -> Iterator[str]:
    """A row in two lines: which item, and what became of it."""
    model, target, build, batch, rate, change, memory, parity, verdict = row
    yield f"{verdict}  {model} {build} batch {batch} on {target}"
    figures = {"per second": rate, "vs baseline": change, "memory": memory, "parity": parity}
    told = [f"{text} {what}" for what, text in figures.items() if text != "-"]
    if told:
        yield f"    {' · '.join(told)}"


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
        _verdict(entry),
    )


def _verdict(entry: Entry) -> str:
    verdict = entry.comparison.verdict.value
    shown = word(verdict, entry.update)
    return shown if verdict in CALM or entry.update in DONE else shown.upper()


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
    spread = f"±{half * 100:.1f} %" if half < 1 else "±>100 %"
    return f"{-loss.value * 100:+.1f} % {spread}"


def _memory(entry: Entry) -> str:
    grown = entry.comparison.memory_rel
    return "-" if grown is None else f"{grown * 100:+.0f} %"


def _parity(entry: Entry) -> str:
    comparison = entry.comparison
    if comparison.record is None:
        return "-"
    error = f"{comparison.record.parity.error_rel:.1e}"
    if comparison.parity is None:
        return error
    return f"{error} {'FAILED' if comparison.parity.failures else 'ok'}"


def _below(entry: Entry) -> Iterator[str]:
    comparison = entry.comparison
    recorded = comparison.verdict is Verdict.MISSING and entry.update in DONE
    if comparison.verdict not in QUIET and not recorded:
        yield f"        {comparison.reason.partition(chr(10))[0]}"
        for cause in entry.causes[:MOST_CAUSES]:
            yield f"        {cause_line(cause, comparison)}"
        if len(entry.causes) > MOST_CAUSES:
            yield f"        and {len(entry.causes) - MOST_CAUSES} more causes in the JSON report"
        for fact in entry.causes[0].evidence if entry.causes else ():
            if fact.startswith("changed with it:"):
                yield f"        {fact}"
        if entry.update not in DONE:
            yield from (f"        {line}" for line in _advice(entry))
    for warning in comparison.warnings:
        yield f"        note: {warning}"
    if comparison.baseline is not None and comparison.baseline.accepted:
        yield f"        {comparison.baseline.accepted_so_far}"
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
    lines_ += [f"  {line}" for line in comparison.reason.splitlines()]
    lines_ += [f"  {line}" for line in _figures(comparison)]
    lines_ += [f"  {cause_line(cause, comparison)}" for cause in entry.causes[:MOST_CAUSES]]
    lines_ += [f"    {fact}" for cause in entry.causes[:2] for fact in cause.evidence[:4]]
    if log:
        lines_.append("  last output of the child process:")
        lines_ += [f"    {line}" for line in log.splitlines()]
    if entry.again is not None:
        lines_.append(f"  measure it again: {command(entry.arguments)}")
    lines_ += [f"  {line}" for line in _advice(entry)]
    return "\n".join(harmless(line) for line in lines_)


def _figures(comparison: Comparison) -> Iterator[str]:
    """Throughput as it was seen, then and now; the verdict is by the yardstick."""
    record, baseline = comparison.record, comparison.baseline
    if record is None:
        return
    now = f"{_rate(record.figures)} per second"
    if baseline is None:
        yield f"measured: {now}"
        return
    commit = f", commit {baseline.commit[:7]}" if baseline.commit else ""
    then = _rate(baseline.figures)
    yield f"measured: {now}, recorded: {then} ({baseline.measured[:10]}{commit})"


def harmless(line: str) -> str:
    """What a runtime or a test wrote, without what would steer the terminal."""
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in line)


def _advice(entry: Entry) -> list[str]:
    """The command that records what was measured, if anything does."""
    if entry.again is None:
        return []
    plain, accepted = (compare.writes(entry.comparison, accepted=given) for given in (False, True))
    what, told = recording(entry.arguments, plain=plain, accepted=accepted)
    return [f"{what}: {told}"] if told else []


def recording(again: Sequence[str], *, plain: str, accepted: str) -> tuple[str, str]:
    """What recording an item is, and its command; empty texts if nothing records it.

    Args:
        again: arguments that measure it again.
        plain: what ``--update-baselines`` writes of it, as ``compare.writes`` says.
        accepted: the same with ``--portability-accept``.
    """
    if plain == "all":
        return "record it", command(again, "--update-baselines")
    if accepted == "all":
        flags = ("--update-baselines", '--portability-accept="why"')
        return "accept on purpose", command(again, *flags)
    return "", ""


def command(again: Sequence[str], *flags: str) -> str:
    """What measures an item again, for a shell; the flags stand as they are."""
    return " ".join(["pytest --portability", *flags, *map(_quoted, again)])


def _quoted(argument: str) -> str:
    """An argument for a shell: in double quotes, which cmd.exe knows too, where they are enough."""
    if re.fullmatch(r"[\w./=:-]+", argument):
        return argument
    return shlex.quote(argument) if re.search(r'["$`\\!]', argument) else f'"{argument}"'


def cause_line(cause: Cause, comparison: Comparison) -> str:
    """One cause in one line, its share of the loss first and its time last where they are known."""
    told = cause.share is not None and comparison.verdict.value not in NO_TIME
    share = f"{(cause.share or 0) * 100:3.0f} % of the loss: " if told else ""
    return f"{share}{cause.kind}: {cause.summary}{lost_time(comparison, cause) if told else ''}"


def _across(report: Report) -> Iterator[str]:
    """What one target gives beside another, where a run has several: figures, outputs, causes."""
    for delta in report.across:
        yield f"{delta.new} beside {delta.old}, by raw figures:"
        for row in delta.rows[:MOST_ACROSS]:
            told = beside(row)
            figures = ", ".join(filter(None, (told.now, told.change))) or "throughput unknown"
            yield f"        {told.build}: {figures}; {told.outputs}"
            yield from [f"            {told.cause}"] if told.cause else []
        if len(delta.rows) > MOST_ACROSS:
            yield f"        and {len(delta.rows) - MOST_ACROSS} more in the JSON report"


class Beside(NamedTuple):
    """A build on one target beside another one, in words; empty what is not known.

    Attributes:
        now: its throughput.
        outputs: what they say of each other.
        cause: the first one, where it is worse.
    """

    build: str
    now: str
    change: str
    outputs: str
    cause: str


def beside(row: Row) -> Beside:
    """A row as every report tells it."""
    pair = row.throughput
    other = "" if row.old.runtime == row.key.runtime else f" (there {row.old.runtime})"
    causes = [f"{cause.kind}: {cause.summary}" for cause in row.causes if row.failed]
    return Beside(
        f"{row.key.model} {row.key.row}{other}",
        "" if pair.new is None else f"{pair.new:.4g} {row.unit}/s",
        "" if pair.rel is None else f"{pair.rel * 100:+.1f} %",
        row.parity,
        next(iter(causes), ""),
    )


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


def _toolchains(report: Report) -> Iterator[str]:
    """Say once per target which versions differ: where all is well no cause names them."""
    changed: dict[str, dict[str, None]] = {}
    for entry in report.entries:
        now, then = entry.comparison.record, entry.comparison.baseline
        if now is None or then is None or now.key.target != then.key.target:
            continue
        for name in sorted({*now.toolchain, *then.toolchain}):
            before, after = (side.toolchain.get(name) or "none" for side in (then, now))
            if before != after:
                changed.setdefault(now.key.target, {})[f"{name} {before} → {after}"] = None
    for target, found in sorted(changed.items()):
        yield f"{target}: other versions than when the records were made: {', '.join(found)}"


def _unused(report: Report) -> Iterator[str]:
    """Records that no test asks for any more: nothing holds them, and nothing updates them."""
    if unused := report.unused:
        yield f"{_records(len(unused))} that no test of the whole suite asked for:"
        yield from (
            f"        {key.model}/{key.target}.toml {key.row}" for key in unused[:MOST_UNUSED]
        )
        if len(unused) > MOST_UNUSED:
            yield f"        and {len(unused) - MOST_UNUSED} more in the JSON report"
        yield "        take them out, or bring their tests back"


def _summary(report: Report) -> str:
    words = Counter(word(e.comparison.verdict.value, e.update) for e in report.entries)
    counts = ", ".join(f"{n} {each}" for each, n in words.most_common())
    return f"portability: {report.measured} measured; {counts}"


class Writer(Protocol):
    """What is asked of pytest's terminal writer."""

    @property
    def fullwidth(self) -> int:
        """Columns of the terminal."""

    @property
    def width_of_current_line(self) -> int:
        """Columns already written."""


class Progress:
    """What is being measured, after pytest's own line on a terminal; a log stays quiet.

    Pytest captures standard output while a test runs, so this keeps a duplicate from before.

    Args:
        writer: tells where pytest's line ends; None shows nothing.
        clock: monotonic seconds.
    """

    def __init__(self, writer: Writer | None, clock: Callable[[], float] = time.monotonic) -> None:
        self._writer = writer
        self._clock = clock
        self._items = self._begun = 0
        self._since = self._latest = 0.0
        self._stream: IO[str] | None = None
        dumb = os.environ.get("TERM", "dumb") == "dumb"  # Windows has no TERM, and not the codes
        if writer is not None and not dumb and sys.stdout.isatty():
            self._stream = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")

    def expect(self, items: int) -> None:
        """Learn how many items there are to measure."""
        self._items = items

    def begin(self) -> None:
        """Learn that the next one begins."""
        self._latest = self._clock()
        self._since = self._since if self._begun else self._latest
        self._begun += 1

    def _place(self) -> str:
        """Which item it is of how many, and how long the others take if they are like those done.

        Empty where there is one, or more begin than were expected: they run again.
        """
        done, left = self._begun - 1, self._items - self._begun + 1
        if self._items < 2 or left < 1:
            return ""
        each_s = (self._latest - self._since) / done if done > 0 else 0.0
        minutes = (each_s * left - (self._clock() - self._latest)) / 60
        rest = f", {minutes:.0f} min left" if minutes >= 1 else ""
        return f"{self._begun}/{self._items}{rest}: "

    def show(self, text: str) -> None:
        """Replace what is shown; an empty text takes it away."""
        if self._stream is None or self._writer is None:
            return
        text = f"{self._place()}{text}" if text else ""
        room = self._writer.fullwidth - self._writer.width_of_current_line - 1
        # Save the cursor, clear to the end of the line, write, restore: pytest's own line stays.
        shown = f" {text}"[: max(room, 0)] if text else ""
        self._stream.write(f"\x1b7\x1b[K{shown}\x1b8")
        self._stream.flush()

    def close(self) -> None:
        """Give the duplicate back."""
        if self._stream is not None:
            self._stream.close()
