"""A report as one HTML file that loads nothing. Knows layout and units, not verdict rules."""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeAlias

import jinja2
from markupsafe import Markup

from pytest_portability.records import Figures, Key, Record
from pytest_portability.report import plots
from pytest_portability.report.details import Details
from pytest_portability.report.document import Document, Line, word
from pytest_portability.report.terminal import DONE, beside, command, harmless, recording
from pytest_portability.report.units import (
    FILTERS,
    UNKNOWN,
    change,
    number,
    seconds,
    size,
    small,
    spread,
)
from pytest_portability.samples import Window, fading
from pytest_portability.verdicts import WRONG
from pytest_portability.versions.matrix import Portability, efficiencies, metrics

SYMBOLS = {"pass": "✓", "warn": "!", "fail": "✕", "known": "◇", "none": "–"}
"""Of each tone, beside its word: a verdict is never told by colour alone."""

REST = "between kernels"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One row of a table that holds now against the baseline."""

    name: str
    then: str
    now: str
    change: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """One output of a model.

    Attributes:
        error: relative L2 error against the reference; ``allowed`` is its limit, and ``floor``
            what rounding alone does to the reference.
        moved: distance from what the baseline's build computed.
    """

    name: str
    shape: str
    error: str
    allowed: str
    floor: str
    moved: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A picture and what it shows, in words."""

    title: str
    text: str
    picture: Markup


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item as the page shows it.

    Attributes:
        id: the same in every report of the same item.
        tone: a key of ``SYMBOLS``.
        figures: throughput, latency and memory, now and then.
        commands: what measures it again and what records it, each with its name.
        accepted: what of its loss was accepted so far.
    """

    id: str
    line: Line
    tone: str
    word: str
    figures: Sequence[Figure]
    outputs: Sequence[Output]
    metrics: Sequence[Figure]
    kernels: Sequence[Figure]
    facts: Sequence[Figure]
    plots: Sequence[Plot]
    commands: Sequence[tuple[str, str]]
    accepted: str

    @property
    def build(self) -> str:
        """Runtime, precision, batch and profile."""
        return f"{self.line.build} · batch {self.line.batch}"


def render(document: Document) -> str:
    """The whole page."""
    page, style, script = _page()
    items = _items(document)
    return page.render(
        document=document,
        items=items,
        matrix=_matrix(items),
        portability=list(_portability(document)),
        deltas=[delta for run in document.runs for delta in run.across],
        tone=_tone_of_run(document),
        symbols=SYMBOLS,
        targets=sorted({item.line.target for item in items}),
        verdicts=Counter(item.word for item in items),
        style=Markup(style),
        script=Markup(script),
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


@cache
def _page() -> tuple[jinja2.Template, str, str]:
    """The template, and what it takes in: style and script."""
    folder = resources.files("pytest_portability.report")
    page, style, script = (
        folder.joinpath(f"page.{kind}").read_text(encoding="utf-8")
        for kind in ("html", "css", "js")
    )
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_shown,
    )
    environment.filters |= {**FILTERS, "beside": beside}
    return environment.from_string(page), style, script


def _shown(value: object) -> object:
    """Text of records and tests without control characters; what is markup already stays."""
    return harmless(value) if isinstance(value, str) and not isinstance(value, Markup) else value


# --- items -------------------------------------------------------------------------------------


def _items(document: Document) -> list[Item]:
    seen: Counter[str] = Counter()
    items = []
    for line in document.lines:
        name = _id(line)
        seen[name] += 1
        items.append(_item(line, name if seen[name] == 1 else f"{name}-{seen[name]}"))
    return items


def _id(line: Line) -> str:
    """Readable, and of what was asked for alone, so that a link to it lasts."""
    parts = (line.model, line.target, line.build, line.batch)
    slug = re.sub(r"[^a-z0-9.]+", "-", "-".join(parts).lower()).strip("-.")
    told = "\0".join((*parts, line.nodeid)).encode("utf-8", "surrogatepass")
    return f"item-{slug[:80]}-{hashlib.sha256(told).hexdigest()[:6]}"


def _item(line: Line, name: str) -> Item:
    details = line.details
    now, then = details.record, details.baseline
    return Item(
        id=name,
        line=line,
        tone=_tone(line),
        word=word(line.verdict, line.update),
        figures=list(_figures(line)),
        outputs=list(_outputs(details)),
        metrics=list(_metrics(now, then)),
        kernels=list(_kernels(details)),
        facts=list(_facts(now, then)),
        plots=list(_plots(line, name)),
        commands=list(_commands(line)),
        accepted=_accepted(then),
    )


def _tone(line: Line) -> str:
    """Green is only what was measured and is as it should be."""
    if line.outcome in ("fail", "warn"):
        return line.outcome
    if line.outcome == "skip" or line.throughput is None:
        return "none"
    good = line.outcome == "pass" and line.verdict in ("ok", "improved")
    return "pass" if good else "known"


def _tone_of_run(document: Document) -> str:
    if document.failed:
        return "fail"
    return "warn" if any(line.outcome == "warn" for line in document.lines) else "pass"


def _figures(line: Line) -> Iterator[Figure]:
    record, baseline = line.details.record, line.details.baseline
    if record is None:
        return
    now, then = record.figures, baseline.figures if baseline else None
    unit = f"{now.unit} per second"
    for name, words, shown in (
        ("throughput", unit, number),
        ("burst_throughput", f"{unit}, best window", number),
        ("latency_p50_s", "latency, median", seconds),
        ("latency_p90_s", "latency, 90 % of calls", seconds),
        ("latency_p99_s", "latency, 99 % of calls", seconds),
        ("memory_device_bytes", "memory, device", size),
        ("memory_process_bytes", "memory, process", size),
        ("memory_arena_bytes", "memory, arena", size),
        ("yardstick_s", "yardstick", seconds),
    ):
        old, new = (getattr(side, name, None) for side in (then, now))
        if old is not None or new is not None:
            yield _figure(words, old, new, shown)


def _figure(
    name: str, then: float | None, now: float | None, shown: Callable[[float], str]
) -> Figure:
    old, new = (math.nan if side is None else float(side) for side in (then, now))
    relative = new / old - 1 if old > 0 else math.nan
    told = change(relative) if math.isfinite(relative) else ""
    return Figure(name=name, then=shown(old), now=shown(new), change=told)


def _outputs(details: Details) -> Iterator[Output]:
    record, judged = details.record, details.parity
    if record is None:
        return
    errors, allowed = (judged.errors_rel, judged.allowed_rel) if judged else ({}, {})
    for spec in record.parity.outputs:
        shape = " × ".join("?" if dim is None else str(dim) for dim in spec.shape) or "scalar"
        tables = (errors, allowed, record.parity.floors_rel, details.moved_rel)
        found = [small(table.get(spec.name, math.nan)) for table in tables]
        error, limit, floor, moved = found
        yield Output(
            name=spec.name,
            shape=f"{spec.dtype} {shape}",
            error=error,
            allowed=limit,
            floor=floor,
            moved=moved,
        )


def _metrics(now: Record | None, then: Record | None) -> Iterator[Figure]:
    for name, value in now.parity.metrics.items() if now else ():
        old = then.parity.metrics.get(name) if then else None
        yield _figure(name, old, value, number)


def _facts(now: Record | None, then: Record | None) -> Iterator[Figure]:
    """What the build is made of; where it is another than the baseline's, both."""
    if now is None:
        return
    sides = [_built(side) if side else {} for side in (then, now)]
    for name in dict.fromkeys([*sides[1], *sides[0]]):
        old, new = (side.get(name, "") for side in sides)
        differs = then is not None and old != new and name not in ("measured", "commit")
        yield Figure(name=name, then=old or UNKNOWN, now=new or UNKNOWN, change="≠" * differs)


def _built(record: Record) -> dict[str, str]:
    providers = ", ".join(f"{name} {count}" for name, count in record.providers.items())
    facts = {
        "effective precision": record.effective,
        "threads": "" if record.threads is None else str(record.threads),
        "nodes or kernels": providers,
        "op-set": ", ".join(f"{k or 'ai.onnx'} {v}" for k, v in record.model.opset.items()),
        "framework": record.model.framework,
        "measured": record.measured,
        "commit": record.commit[:12],
    }
    return {**facts, **record.toolchain, **record.options}


def _accepted(baseline: Record | None) -> str:
    if baseline is None or not all(math.isfinite(step.ratio) for step in baseline.accepted):
        return ""
    return baseline.accepted_so_far


def _commands(line: Line) -> Iterator[tuple[str, str]]:
    details = line.details
    if not details.again:
        return
    yield "measure it again", command(details.again)
    if details.writes and line.update not in DONE and line.verdict not in ("ok", "skipped"):
        writes = details.writes
        what, told = recording(details.again, plain=writes.plain, accepted=writes.accepted)
        if told:
            yield what, told


# --- kernels -----------------------------------------------------------------------------------


def _kernels(details: Details) -> Iterator[Figure]:
    """Launches per inference and time per batch of each role."""
    times, launches = _times(details), _launches(details)
    names = [role for side in launches.values() for role in side]
    names += [role for side in times.values() for role in side]
    for role in dict.fromkeys(names):
        cells = []
        for side in ("baseline", "now"):
            count = launches.get(side, {}).get(role)
            time = times.get(side, {}).get(role)
            parts = ["" if time is None else seconds(time), "" if count is None else f"({count} ×)"]
            cells.append(" ".join(filter(None, parts)) or UNKNOWN)
        old, new = (times.get(side, {}).get(role) for side in ("baseline", "now"))
        told = change(new / old - 1) if old and new is not None else ""
        yield Figure(name=role, then=cells[0], now=cells[1], change=told)


def _launches(details: Details) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for side, record in (("baseline", details.baseline), ("now", details.record)):
        for use in record.path.uses if record else ():
            of_side = found.setdefault(side, {})
            of_side[use.kernel.role] = of_side.get(use.kernel.role, 0) + use.launches
    return found


def _times(details: Details) -> dict[str, dict[str, float]]:
    """``baseline`` and ``now`` → role → seconds per batch; a side without times is left out.

    As causes do, it counts at the baseline's speed of the machine where both sides were held
    against the same yardstick.
    """
    found = {}
    for side, record in (("baseline", details.baseline), ("now", details.record)):
        uses = record.path.uses if record else ()
        if record is None or not uses or any(use.share is None for use in uses):
            continue
        total = _batch_s(details, record)
        by_role: dict[str, float] = {}
        for use in uses:
            by_role[use.kernel.role] = by_role.get(use.kernel.role, 0.0) + (use.share or 0.0)
        rest = 1 - sum(by_role.values())
        by_role |= {REST: rest} if rest > 0.005 else {}
        found[side] = {role: share * total for role, share in by_role.items()}
    return found


def _batch_s(details: Details, record: Record) -> float:
    """Seconds per batch on the axis that decided, wall time by default."""
    loss, baseline = details.loss, details.baseline
    if record is not baseline and baseline is not None and loss is not None and loss.value < 1:
        return _axis_s(baseline.figures, loss.axis) / (1 - loss.value)
    return _axis_s(record.figures, loss.axis if loss else "")


def _axis_s(figures: Figures, axis: str) -> float:
    return figures.busy.seconds if axis == "busy" and figures.busy else figures.wall.seconds


# --- plots -------------------------------------------------------------------------------------

Drawn: TypeAlias = tuple[Mapping[str, Any] | None, str, str]
"""What to draw, or None; its title, and what it shows in words."""


def _plots(line: Line, name: str) -> Iterator[Plot]:
    kinds = {"speed": _speed, "windows": _windows, "roles": _roles}
    for kind, made in kinds.items():
        spec, title, text = made(line.details)
        if spec is not None:
            picture = plots.svg(spec, f"{name}-{kind}", title, text)
            yield Plot(title=title, text=text, picture=picture)


def _speed(details: Details) -> Drawn:
    loss = details.loss
    if loss is None:
        return None, "", ""
    spans = {axis: span for axis in ("busy", "wall") if (span := getattr(loss, axis))}
    bars = [
        plots.Bar(name=axis, value=span.value, low=span.low, high=span.high)
        for axis, span in (spans or {loss.axis: loss}).items()
    ]
    told = [f"{bar.name} {spread(bar.value, bar.low, bar.high)}" for bar in bars]
    limit = f"tolerance {change(-loss.tolerance)} ({loss.tolerance_source})"
    decided = f"{loss.axis} decides" if len(bars) > 1 else ""
    text = "; ".join(filter(None, (*told, decided, limit if loss.tolerance_source else "")))
    return plots.interval(bars, loss.tolerance), "Throughput against the baseline", text


def _windows(details: Details) -> Drawn:
    record = details.record
    if record is None:
        return None, "", ""
    figures = record.figures
    pairs = [[(w.wall_s, w.batches * figures.items) for w in repeat] for repeat in details.windows]
    spec = plots.windows(pairs, figures.throughput, figures.burst_throughput)
    drifts = [change(_drift(repeat)) for repeat in details.windows]
    text = (
        f"sustained {number(figures.throughput)} (line), best window "
        f"{number(figures.burst_throughput)} (dotted) {figures.unit} per second; time per batch, "
        f"last third against first, of each repeat: {', '.join(drifts)}"
    )
    return spec, f"Windows over time, {figures.unit} per second", text


def _drift(repeat: Sequence[Window]) -> float:
    usable = [w for w in repeat if w.batches > 0 and 0 < w.wall_s < math.inf]
    return fading(usable)


def _roles(details: Details) -> Drawn:
    times = _times(details)
    told = [
        f"{side}: {', '.join(f'{role} {seconds(time)}' for role, time in by_role.items())}"
        for side, by_role in times.items()
    ]
    return plots.roles(times), "Kernel time by role", "; ".join(told)


# --- all items together ------------------------------------------------------------------------


def _matrix(items: Sequence[Item]) -> dict[str, dict[str, dict[str, list[Item]]]]:
    """Model → build → target → items."""
    found: dict[str, dict[str, dict[str, list[Item]]]] = {}
    for item in items:
        row = found.setdefault(item.line.model, {}).setdefault(item.build, {})
        row.setdefault(item.line.target, []).append(item)
    return found


def _portability(document: Document) -> Iterator[Portability]:
    """The metric of each way to build a model that was measured on two targets or more."""
    models: dict[str, dict[Key, float]] = {}
    wrong = {verdict.value for verdict in WRONG}
    for line in document.lines:
        record, throughput = line.details.record, line.throughput
        if record is None or throughput is None or line.verdict in wrong:
            continue
        if 0 < throughput < math.inf:
            best = models.setdefault(line.model, {})
            best[record.key] = max(best.get(record.key, 0.0), throughput)
    for achieved in models.values():
        found = metrics(efficiencies(achieved))
        yield from (metric for metric in found if len(metric.targets) > 1)
