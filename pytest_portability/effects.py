"""What differs between two records and how much of the lost time it holds; not yet what caused it.

Time is shares of the kernel path times CPU time relative to the yardstick, so that a slower
machine is counted to nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from pytest_portability import kernel_changes, path_profiles
from pytest_portability.compare import Comparison
from pytest_portability.kernel_changes import Change
from pytest_portability.kernels import Kernel, KernelPath
from pytest_portability.records import ModelVersion, Record
from pytest_portability.verdicts import Verdict

GRAPH = "the model's graph"
"""The last of what ``context`` lists."""

MANY_MORE = 2
"""Times as many launches as in the record from which the time between them is looked at."""


@dataclass(frozen=True, slots=True)
class Effect:
    """What differs, before it is known whether it is a root.

    Attributes:
        kind: a cause's, or ``slow``.
        of_graph: whether it is how the model's graph itself changed.
    """

    kind: str
    summary: str
    share: float | None = None
    evidence: tuple[str, ...] = ()
    of_graph: bool = False


def effects(comparison: Comparison, record: Record, baseline: Record) -> Iterator[Effect]:
    """Everything that differs and matters for this verdict."""
    verdict = comparison.verdict
    if verdict in (Verdict.MEMORY, Verdict.UNFIT):
        yield from _memory(comparison, record, baseline)
        return
    if verdict in (Verdict.PARITY, Verdict.STALE):
        yield from _accuracy(comparison, record, baseline)
    if verdict is Verdict.STALE and comparison.speed is not Verdict.REGRESSED:
        return
    changes = path_changes(record, baseline)
    clock = _Clock.of(comparison)
    between = _between(record, baseline, clock)
    brought = [_more(change) if change.kind == "fusion lost" else 0 for change in changes]
    # Parts of what was fused are launched one by one: the time between them is that of the fusion.
    theirs = between is not None and 2 * sum(brought) >= between.launches
    for change, more in zip(changes, brought, strict=True):
        gap = between.part(more / sum(brought)) if between and theirs and more > 0 else None
        yield from _from_change(change, record, baseline, clock, gap)
    yield from _placed(record, baseline, changes)
    yield from _compiled(record, baseline)
    if verdict is not Verdict.PARITY:
        yield from _slow(record, baseline, changes, clock)
        if between is not None and not theirs:
            yield Effect("launches", between.text, between.share)
        yield from _host(comparison, record, baseline, clock)


def path_changes(record: Record, baseline: Record) -> tuple[Change, ...]:
    """How the kernel paths differ: kernel by kernel of one runtime and vendor, else by profiles."""
    if record.key.runtime == baseline.key.runtime and record.vendor == baseline.vendor:
        return kernel_changes.diff(baseline.path, record.path)
    profiles = path_profiles.profile(baseline.path), path_profiles.profile(record.path)
    return path_profiles.diff_profiles(*profiles)


@dataclass(frozen=True, slots=True)
class _Clock:
    """Time per batch in units of the baseline's, on the deciding axis.

    Attributes:
        work: of now, kernels only: relative to the yardstick, of the busy axis where there is one.
        lost: added time per batch, 0 where nothing was lost.
    """

    work: float
    lost: float

    @classmethod
    def of(cls, comparison: Comparison) -> _Clock:
        loss = comparison.loss
        if comparison.verdict is Verdict.PARITY or loss is None or not 0 < loss.value < 1:
            return cls(work=1.0, lost=0.0)
        busy = next((axis for axis in comparison.axes if axis.axis == "busy"), loss)
        return cls(work=1 / (1 - min(busy.value, 0.999)), lost=loss.value / (1 - loss.value))

    def share(self, before: float | None, after: float | None) -> float | None:
        """Of the added time, from shares of both inferences' time; None where unknown."""
        if before is None or after is None or not self.lost:
            return None
        return (after * self.work - before) / self.lost


def _from_change(
    change: Change, record: Record, baseline: Record, clock: _Clock, gap: _Gap | None
) -> Iterator[Effect]:
    share = clock.share(change.share_before, change.share_after)
    if share is not None and gap is not None:
        share += gap.share
    between = (gap.text,) if gap is not None else ()
    if not (change.before or change.after):
        share = None  # a profile's difference has no kernels, and so no time
    certain = change.kind in ("precision", "provider", "fusion lost")
    if share is not None and share < (0.01 if certain else 0.05):
        return
    if share is None and change.kind == "fusion gained":
        return
    kind = {
        "implementation": "kernel",
        "provider": "fallback",
        "fusion lost": "fusion",
        "fusion gained": "fusion",
        "move": _move(change, record, baseline),
    }.get(change.kind, change.kind)
    if change.kind == "fusion lost" and (other := _other_types(change)):
        yield Effect("precision", other, share, (change.summary, *between))
        return
    old, new = baseline.path.source, record.path.source
    if kind == "launches" and old and new and dict(old) != dict(new):
        kind = "graph"  # the graph itself has more of the same work
    yield Effect(kind, change.summary, share, between)


FLOATING = {"fp64", "fp32", "tf32", "bf16", "fp16"}


def _other_types(change: Change) -> str:
    """Parts that run in another floating type than what was fused; empty if none does.

    No kernel is fused across types: the type is the mechanism, and the lost fusion its effect.
    """
    fused = {use.kernel.precision for use in change.before} & FLOATING
    apart = [
        use
        for use in change.after
        if use.kernel.role == "compute" and use.kernel.precision in FLOATING - fused
    ]
    if not fused or not apart:
        return ""
    types = sorted({use.kernel.precision for use in apart})
    return f"{', '.join(sorted(fused))} → {', '.join(types)}: {kernel_changes.label(apart)}"


def _computed_in(path: KernelPath) -> set[str]:
    return {use.kernel.precision for use in path.uses if use.kernel.role == "compute"} - {""}


def _move(change: Change, record: Record, baseline: Record) -> str:
    """What copies and casts are there for, by their names and by what is computed."""
    ops = " ".join(use.kernel.op for use in (*change.before, *change.after)).lower()
    if re.search(r"tohost|fromhost|memcpy", ops):
        return "fallback"
    if "quantize" in ops:
        return "quantization"
    if not re.search(r"cast|convert|_to_copy", ops):
        return "layout"
    old, new = _computed_in(baseline.path), _computed_in(record.path)
    same = old == new != set() and not _casts_more(record, baseline)
    return "layout" if same else "precision"  # in other types, asked for or not known


def _placed(record: Record, baseline: Record, changes: Iterable[Change]) -> Iterator[Effect]:
    """Nodes that another provider got, where the kernel path does not show it already."""
    old, new = baseline.providers, record.providers
    if record.key.runtime != baseline.key.runtime or any(c.kind == "provider" for c in changes):
        return
    totals = sum(old.values()), sum(new.values())
    if not all(totals):
        return
    lost = [p for p in old if new.get(p, 0) / totals[1] < old[p] / totals[0] - 1e-9]
    gained = [p for p in new if new[p] / totals[1] > old.get(p, 0) / totals[0] + 1e-9]
    moved = {p: f"{old.get(p, 0)} → {new.get(p, 0)} nodes" for p in (*lost, *gained)}
    if lost and gained and sum(new.get(p, 0) for p in gained) > sum(old.get(p, 0) for p in gained):
        yield Effect("fallback", ", ".join(f"{p} {text}" for p, text in moved.items()))


def _compiled(record: Record, baseline: Record) -> Iterator[Effect]:
    if record.compiled is False and baseline.compiled:
        partly = record.options.get("backend", "inductor") in record.providers
        what = "left part of the model eager" if partly else "declined and the model ran eagerly"
        yield Effect("launches", f"the compiler {what}")
    old, new = baseline.graph_breaks, record.graph_breaks
    if old is not None and new is not None and new > old:
        yield Effect("launches", f"graph breaks: {old} → {new}")


def _times(path: KernelPath) -> dict[Kernel, tuple[int, float]]:
    """Kernel → launches and share of time, for the kernels whose time is known."""
    found: dict[Kernel, tuple[int, float]] = {}
    for use in path.uses:
        if use.share is not None and use.launches > 0:
            launches, share = found.get(use.kernel, (0, 0.0))
            found[use.kernel] = (launches + use.launches, share + use.share)
    return found


def _slow(
    record: Record, baseline: Record, changes: tuple[Change, ...], clock: _Clock
) -> Iterator[Effect]:
    """The same kernels, launched as often, taking longer."""
    if not clock.lost:
        return
    old, new = _times(baseline.path), _times(record.path)
    grown: list[tuple[float, str]] = []
    even = True
    counted = {use.kernel for change in changes for use in (*change.before, *change.after)}
    for kernel in sorted(old.keys() & new.keys()):
        before, after = (
            old[kernel][1] / old[kernel][0],
            clock.work * new[kernel][1] / new[kernel][0],
        )
        launches = min(old[kernel][0], new[kernel][0])
        share = launches * (after - before) / clock.lost
        if kernel in counted:
            continue  # the new launches may be of another size, and are counted where they came
        if share >= 0.05 and after > 1.05 * before:
            times = f" took {after / before:.2g} × as long" if before else " took longer"
            grown.append((share, f"{kernel.op} ×{launches}{times}"))
        elif old[kernel][1] >= 0.1:
            even = False  # a kernel that matters kept its time
    share = sum(part for part, _ in grown)
    texts = [text for _, text in sorted(grown, reverse=True)[:3]]
    other = record.model.weights != baseline.model.weights
    if other and not changes and clock.work >= 1.3 and _is_floating(record):
        text = "the same kernels are slower on these weights, as they are on subnormal values"
        names = listed(changed_tensors(record.model, baseline.model))
        yield Effect("data", text, share or None, (*texts, f"weights that differ: {names}"))
    elif grown and share >= 0.1 and not even:
        yield Effect("kernel", f"the same kernels are slower: {', '.join(texts)}", share)
    elif grown and share >= 0.1:
        every = (
            "every kernel is slower" if len(grown) > 1 else "the one kernel that runs either way"
        )
        yield Effect("slow", f"{every}: {', '.join(texts)}", share)


def _is_floating(record: Record) -> bool:
    """Whether its products are of numbers that may be subnormal."""
    return record.effective not in ("", "int8")


@dataclass(frozen=True, slots=True)
class _Gap:
    """The time that passes between launches, where there are many more of them.

    Attributes:
        launches: how many more per inference.
        share: of the lost time.
    """

    launches: int
    share: float
    text: str

    def part(self, fraction: float) -> _Gap:
        """That fraction of it."""
        return replace(self, share=self.share * fraction)


def _between(record: Record, baseline: Record, clock: _Clock) -> _Gap | None:
    """The time between many more launches; None where it is little, or not known."""
    if not clock.lost:
        return None
    counts, gaps = [], []
    for path in (baseline.path, record.path):
        if not path.uses or any(use.share is None for use in path.uses):
            return None
        counts.append(sum(use.launches for use in path.uses))
        gaps.append(max(0.0, 1 - sum(use.share or 0.0 for use in path.uses)))
    share = (gaps[1] * clock.work - gaps[0]) / clock.lost
    if counts[1] < MANY_MORE * counts[0] or share < 0.1:
        return None
    text = f"{counts[0]} → {counts[1]} launches, and the time between them"
    return _Gap(counts[1] - counts[0], share, text)


def _more(change: Change) -> int:
    """Launches that a change brought per inference."""
    before, after = (sum(use.launches for use in side) for side in (change.before, change.after))
    return max(0, after - before)


def _host(
    comparison: Comparison, record: Record, baseline: Record, clock: _Clock
) -> Iterator[Effect]:
    """The part of a loss of wall time that is no work."""
    loss = comparison.loss
    busy = next((axis for axis in comparison.axes if axis.axis == "busy"), None)
    if loss is None or loss.axis == "busy" or not clock.lost:
        return
    if busy is not None:
        where, told, more = "processor", f"CPU time: {busy}", clock.work - 1
    elif record.path.busy_s and baseline.path.busy_s:
        where, more = "device", _device_work(record, baseline)
        told = (
            f"kernels' own times: {baseline.path.busy_s:.3g} → {record.path.busy_s:.3g} s a batch"
        )
    else:
        return
    share = 1 - more / clock.lost
    if share >= 0.2:
        text = f"the {where} waits: the work per batch is what it was, the wall time is not"
        yield Effect("host", text, min(share, 1.0), (told, f"wall time: {loss}"))


def _device_work(record: Record, baseline: Record) -> float:
    """Added time of an accelerator's kernels, as ``_Clock.lost`` is: of the baseline's batch."""
    old, new = baseline.path.busy_s or 0.0, record.path.busy_s or 0.0
    then_s, now_s = baseline.figures.yardstick_s, record.figures.yardstick_s
    as_fast = then_s / now_s if then_s and now_s else 1.0
    return (new * as_fast - old) / baseline.figures.wall.seconds


def _memory(comparison: Comparison, record: Record, baseline: Record) -> Iterator[Effect]:
    copies = [_duplicates(side.model) for side in (baseline, record)]
    evidence = [f"graph hash {baseline.model.graph} → {record.model.graph}"]
    if copies[1] > copies[0]:
        evidence.insert(0, f"byte-identical copies of weights: {copies[0]} → {copies[1]}")
    if record.effective != baseline.effective and record.effective and baseline.effective:
        evidence.insert(0, f"effective precision: {baseline.effective} → {record.effective}")
    if record.model.graph == baseline.model.graph:
        evidence.pop()
    yield Effect("memory", comparison.reason, None, tuple(evidence))


def _duplicates(model: ModelVersion) -> int:
    return len(model.tensors) - len(set(model.tensors.values()))


def _accuracy(comparison: Comparison, record: Record, baseline: Record) -> Iterator[Effect]:
    """Why the outputs are not what they were."""
    parity = comparison.parity
    said = (*parity.failures, *parity.notes) if parity else ()
    tensors = parity.changed_tensors if parity else ()
    tensors = tensors or changed_tensors(record.model, baseline.model)
    old, new = baseline.effective, record.effective
    if old and new and old != new:
        yield Effect("precision", f"effective precision: {old} → {new}")
    if baseline.parity.repeatable and not record.parity.repeatable:
        text = "two runs of the same build gave different outputs: training mode or a race"
        yield Effect("nondeterminism", text)
    if tensors:
        yield Effect("weights", f"weights changed: {listed(tensors)}")
    if _differs(record.model.graph, baseline.model.graph):
        yield graph_change(record, baseline)
    values = tuple(text for text in said if re.search(r"non-finite|\bnan\b|\binf", text, re.I))
    if values:
        yield Effect("data", "values overflow or are not numbers", None, values)
    error, before = record.parity.error_rel, baseline.parity.error_rel
    same = not _differs(record.model.graph, baseline.model.graph)
    if old == new and same and not tensors and before < 1e-5 and 2e-4 <= error <= 1e-2:
        text = f"an error of {error:.1g} with unchanged types: products in TF32 or fewer bits"
        yield Effect("precision", text, None, (f"error against the reference was {before:.1g}",))


def graph_change(record: Record, baseline: Record) -> Effect:
    """How the model's graph changed, by its operations where they tell."""
    old, new = baseline.path.source, record.path.source
    ops = {use.kernel.op for use in record.path.uses} | set(new)
    if dict(old) == dict(new) and any(
        "quant" in op.lower() or "qlinear" in op.lower() for op in ops
    ):
        text = "other constants or attributes in a quantised graph, such as scales or zero points"
        return Effect("quantization", text, of_graph=True)
    differ = [
        f"{op} ×{old.get(op, 0)} → ×{new.get(op, 0)}"
        for op in sorted({*old, *new})
        if old.get(op, 0) != new.get(op, 0)
    ]
    what = listed(differ) if differ else "constants, attributes or connections"
    text = "the graph changed" + (f": {what}" if old and new else "")
    evidence = (f"hash {baseline.model.graph} → {record.model.graph}",)
    kind = "precision" if _casts_more(record, baseline) and len(differ) == 1 else "graph"
    return Effect(kind, text, None, evidence, of_graph=True)


def _casts_more(record: Record, baseline: Record) -> bool:
    """Whether the model itself asks for other types on the way."""
    return record.path.source.get("Cast", 0) > baseline.path.source.get("Cast", 0)


def context(record: Record, baseline: Record) -> list[str]:
    """Versions that differ: what a mechanism came with."""
    pairs: list[tuple[str, Mapping[str, object], Mapping[str, object]]] = [
        ("", baseline.toolchain, record.toolchain),
        ("op-set ", baseline.model.opset, record.model.opset),
        ("", {"exporter": baseline.model.framework}, {"exporter": record.model.framework}),
    ]
    found = []
    for prefix, old, new in pairs:
        for name in sorted({*old, *new}):
            before, after = old.get(name, "none") or "unknown", new.get(name, "none") or "unknown"
            if before != after:
                found.append(
                    f"{prefix}{name or 'ai.onnx'} {before} → {after}".replace(
                        "op-set ai.onnx", "op-set"
                    )
                )
    if _differs(record.model.graph, baseline.model.graph):
        found.append(GRAPH)
    return found


def _differs(now: str, then: str) -> bool:
    return bool(now and then and now != then)


def changed_tensors(now: ModelVersion, then: ModelVersion) -> tuple[str, ...]:
    """Names of the weights whose digest differs, appeared or vanished."""
    names = {*now.tensors, *then.tensors}
    return tuple(sorted(n for n in names if now.tensors.get(n) != then.tensors.get(n)))


def listed(names: Iterable[str]) -> str:
    """The first four names, and how many more there are."""
    every = list(names)
    more = f" and {len(every) - 4} more" if len(every) > 4 else ""
    return ", ".join(every[:4]) + more
