"""Causes: which changed fact explains how much of a loss.

Root causes. Of two facts that changed together, the one that was asked for is the cause and the
other is its evidence: options and threads before precision, before provider, before compilation,
before fusions, kernels, launches and layout. A root takes in the effects below it that it governs
(``_OPTIONS``, ``_GOVERNS``) with their time, so that one mechanism is one line. Toolchain, op-set
and graph versions are what an effect came with: context of the first cause, and a cause themselves
only when nothing else explains.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pytest_portability.compare import CONTENTION_LIMIT, FADING_LIMIT, Comparison
from pytest_portability.effects import GRAPH, Effect, context, effects, graph_change
from pytest_portability.kernel_changes import COPIES
from pytest_portability.records import Record
from pytest_portability.sensors import disturbance
from pytest_portability.verdicts import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """One mechanism that explains part of a difference.

    Attributes:
        kind: one of the strings in ``KINDS``.
        share: fraction of the lost time (or memory, or error) it explains; None where no time is
            known.
        summary: one line, such as ``BiasGelu ×2 no longer fused: now Add ×2 + Gelu ×2``.
        evidence: facts a person can check, one sentence each.
    """

    kind: str
    summary: str
    share: float | None = None
    evidence: tuple[str, ...] = ()


KINDS = (
    "fusion",
    "fallback",
    "precision",
    "kernel",
    "launches",
    "layout",
    "options",
    "host",
    "machine",
    "memory",
    "data",
    "graph",
    "weights",
    "quantization",
    "interface",
    "nondeterminism",
    "toolchain",
    "unexplained",
)

UNEXPLAINED_REL = 0.05
"""A smaller rest is rounding of the shares and not worth a line."""

_ORDER = (
    *("interface", "options", "precision", "nondeterminism", "fallback", "quantization"),
    *("weights", "launches", "fusion", "kernel", "layout", "graph", "data", "host", "memory"),
    *("machine", "toolchain", "unexplained"),
)
"""Which cause comes first where times say nothing: the more it was asked for, the earlier."""

_ALL = frozenset({"fusion", "kernel", "launches", "layout", "precision", "fallback"})

_OPTIONS: tuple[tuple[str, re.Pattern[str], frozenset[str]], ...] = tuple(
    (name, re.compile(pattern, re.IGNORECASE), frozenset(governs.split()))
    for name, pattern, governs in (
        (
            "threads",
            r"thread|spinning|parallel|stream|affinity|wait_policy|^omp_|\bexecution_mode$",
            "host slow",
        ),
        ("isa", r"isa\b|_isa|capability|instruction|avx|amx", "kernel precision slow fusion data"),
        (
            "precision",
            r"precision|tf32|autocast|dtype|bf16|fp16|execution_mode_hint",
            "precision kernel",
        ),
        ("memory", r"arena|mem|malloc|pool", "memory slow"),
        ("provider", r"provider|fallback|device|\bep\b", "fallback layout"),
        (
            "graph",
            r"optimi[sz]|fus|freez|pattern|level|compile|graph|mode|layout|channels|sdp",
            "fusion kernel launches layout",
        ),
        ("backend", r"\bbackend\b", "fusion kernel launches layout fallback slow"),
    )
)
"""What an option may do: class, names, effects. An option of no class may do anything."""

_PRECISION = frozenset({"precision", "kernel"})

_GOVERNS = {
    "graph": frozenset({"graph", "kernel", "launches", "layout", "fusion"}),
    "precision": frozenset({"kernel"}),
    "fallback": frozenset({"fusion"}),
    "launches": frozenset({"fusion", "kernel", "layout"}),
}
"""What a root that is no option takes in."""

_LOGS = {
    "fallback": re.compile(
        r"fall\w* ?back|EP Error|default CPU EP|not supported|graph break|BackendCompilerFailed"
        r"|not assigned to the preferred|\w+ left \d+ ×",
        re.IGNORECASE,
    ),
    "launches": re.compile(r"graph break|recompil|BackendCompilerFailed", re.IGNORECASE),
    "memory": re.compile(r"out of memory|failed to allocate|bad_alloc", re.IGNORECASE),
}


def attribute(comparison: Comparison, *, log: str = "", diverges: str = "") -> tuple[Cause, ...]:
    """Rank what explains a comparison by the share of the loss it explains.

    Args:
        comparison: of a record and, except for ``placement``, a baseline.
        log: what the child wrote to its standard output and error, and what the runtime's adapter
            noted of the build.
        diverges: where inside the model the outputs leave the reference, one sentence; empty where
            that was not looked for.

    Returns:
        Causes, the first explaining most; none for ``ok``, ``improved``, ``missing``, ``skipped``
        and ``error``. Shares are of the deciding axis and sum to at most 1.
    """
    record, baseline = comparison.record, comparison.baseline
    verdict = comparison.verdict
    if record is None or verdict in (Verdict.OK, Verdict.IMPROVED, Verdict.MISSING):
        return ()
    if verdict is Verdict.PLACEMENT:
        kind = "precision" if "precision" in comparison.reason.partition(":")[0] else "fallback"
        placed = Cause(kind=kind, summary=comparison.reason)
        if record.compiled is False and kind == "fallback":
            text = "torch.compile compiled nothing that ran: the module ran eagerly"
            placed = Cause(kind="launches", summary=text, evidence=(comparison.reason,))
        return _with_log([placed], log)
    if verdict is Verdict.INTERFACE:
        return (Cause(kind="interface", summary=comparison.reason),)
    machine = tuple(_machine(comparison))
    if baseline is None:
        return (*machine, *_located([], diverges))
    if verdict is Verdict.INCONCLUSIVE:
        return machine
    differ = list(effects(comparison, record, baseline))
    causes = _ranked(_rooted(differ, comparison, record, baseline))
    versions = context(record, baseline)
    if not causes and versions == [GRAPH]:
        changed = graph_change(record, baseline)
        slow = tuple(effect.summary for effect in differ if effect.kind == "slow")
        root = replace(changed, evidence=slow)
        causes = [_cause(changed.kind, changed.summary, [root], named=1)]
    elif not causes and versions:
        text = f"nothing else that is recorded changed: {'; '.join(versions)}"
        causes = [Cause(kind="toolchain", summary=text)]
    elif causes and versions:
        evidence = (*causes[0].evidence, f"changed with it: {'; '.join(versions)}")
        causes[0] = replace(causes[0], evidence=evidence)
    causes = _located(causes, diverges)
    return _with_log([*causes, *_rest(causes, differ), *machine], log)


def _machine(comparison: Comparison) -> Iterator[Cause]:
    """What is wrong with the machine, as far as it kept the comparison from being decided."""
    contended, fading = comparison.contended or 0.0, comparison.fading_rel or 0.0
    loss = comparison.loss
    if comparison.verdict is Verdict.INCONCLUSIVE:
        if why := _disturbed(comparison):
            yield Cause(kind="machine", summary=why)
            return
        if contended > CONTENTION_LIMIT:
            yield Cause(kind="machine", summary=f"neighbours took {contended:.0%} of the processor")
        if abs(fading) > FADING_LIMIT:
            yield Cause(kind="machine", summary=f"the speed drifted by {fading:+.0%} in a repeat")
        if loss is not None and contended <= CONTENTION_LIMIT and abs(fading) <= FADING_LIMIT:
            yield Cause(kind="machine", summary=f"repeats differ too much: {loss}")
    elif loss is not None and not loss.relative and comparison.speed is Verdict.REGRESSED:
        text = "no common yardstick: the machine may be slower, not the build"
        yield Cause(kind="machine", summary=text)


def _disturbed(comparison: Comparison) -> str:
    record, baseline = comparison.record, comparison.baseline
    if record is None or baseline is None:
        return ""
    now = record.figures
    return disturbance(now.throttled, baseline.figures.throttled, now.neighbours)


def _rooted(
    effects: Iterable[Effect], comparison: Comparison, record: Record, baseline: Record
) -> list[Cause]:
    """Effects under the roots that govern them, each as one cause."""
    left = list(effects)
    causes = []
    if record.key.runtime == baseline.key.runtime:
        for text, governs in _options(record, baseline):
            taken = [effect for effect in left if effect.kind in governs]
            left = [effect for effect in left if effect.kind not in governs]
            ran = [effect for effect in taken if effect.kind == "precision"]
            if ran and governs <= _PRECISION:
                # Asked for or a runtime's own choice: what it did is what has to be understood.
                first = [ran[0], Effect("options", text), *(e for e in taken if e is not ran[0])]
                causes.append(_cause("precision", ran[0].summary, first, named=1))
            elif taken or not governs & {"memory"}:
                causes.append(_cause("options", text, taken))
    changed = [effect for effect in left if effect.of_graph]
    if comparison.verdict is Verdict.PARITY and changed:
        # Kernels that a changed graph brings say nothing more of its outputs than it does.
        left.sort(key=lambda effect: not effect.of_graph)
        taken = [e for e in left[1:] if e.kind in _GOVERNS["graph"]]
        causes.append(_cause(left[0].kind, left[0].summary, [left[0], *taken], named=1))
        left = [effect for effect in left[1:] if effect not in taken]
    for kind in ("precision", "fallback", "launches"):
        roots = [effect for effect in left if effect.kind == kind]
        if not roots or (kind == "launches" and not _is_compilation(roots[0])):
            continue
        taken = [effect for effect in left if effect.kind in _GOVERNS[kind]]
        left = [effect for effect in left if effect not in roots and effect not in taken]
        causes.append(_cause(kind, roots[0].summary, roots + taken, named=1))
    if taken := _rewritten(left, record, baseline):
        left = [effect for effect in left if effect not in taken]
        causes.append(_cause(taken[0].kind, taken[0].summary, taken, named=1))
    # Kernels that are all slower are a symptom: without a root it is said with what is unexplained.
    causes += [_cause(e.kind, e.summary, [e], named=1) for e in left if e.kind != "slow"]
    return causes


def _rewritten(left: Iterable[Effect], record: Record, baseline: Record) -> list[Effect]:
    """The root of what another way to write the graph did, and what followed from it.

    Layout operations that the model itself has now stand between what would be fused. Where it has
    none, it is the lost fusion that made the runtime reorder what it reads and writes.
    """
    layout = [effect for effect in left if effect.kind == "layout"]
    lost = [effect for effect in left if effect.kind == "fusion"]
    moved = [effect for effect in layout if effect.summary.startswith(COPIES)]
    own = [effect for effect in layout if effect not in moved]
    old, new = baseline.path.source, record.path.source
    added = [op for op in new if new[op] > old.get(op, 0)]
    if any(op in effect.summary for effect in own for op in added):
        return [*own, *moved, *lost]
    return [lost[0], *moved] if lost and moved else []


def _is_compilation(effect: Effect) -> bool:
    return effect.summary.startswith(("the compiler", "graph breaks"))


def _cause(kind: str, summary: str, taken: list[Effect], named: int = 0) -> Cause:
    shares = [effect.share for effect in taken if effect.share is not None]
    evidence = [effect.summary for effect in taken[named:]]
    evidence += [line for effect in taken for line in effect.evidence]
    share = min(max(sum(shares), 0.0), 1.0) if shares else None
    return Cause(kind=kind, summary=summary, share=share, evidence=tuple(evidence))


def _options(record: Record, baseline: Record) -> Iterator[tuple[str, frozenset[str]]]:
    """Options that changed, one text for each class, with the effects the class may have."""
    old, new = dict(baseline.options), dict(record.options)
    if record.threads != baseline.threads and None not in (record.threads, baseline.threads):
        old["threads"], new["threads"] = str(baseline.threads), str(record.threads)
    groups: dict[str, list[str]] = {}
    for name in sorted({*old, *new}, key=lambda name: (name != "threads", name)):
        before, after = old.get(name, "unset"), new.get(name, "unset")
        if before != after:
            found = next((c for c, pattern, _ in _OPTIONS if pattern.search(name)), "other")
            groups.setdefault(found, []).append(f"{name}: {before} → {after}")
    for name, _, governs in _OPTIONS:
        if name in groups:
            yield ", ".join(groups[name]), governs
    if "other" in groups:
        yield ", ".join(groups["other"]), _ALL | {"slow", "host"}


def _ranked(causes: list[Cause]) -> list[Cause]:
    """By share; one of unknown time may explain at most what the others leave.

    An option that took in other effects is a root and comes first; one that did not is no more
    than a suspect and comes after what has evidence. Shares that sum to more than 1, because
    something else became faster, are scaled down.
    """
    total = sum(cause.share or 0.0 for cause in causes)
    rest = max(0.0, 1 - total)

    def rank(cause: Cause) -> tuple[bool, bool, float, int]:
        option = cause.kind == "options"
        share = rest if cause.share is None else cause.share
        suspect = option and not cause.evidence
        return (not (option and not suspect), suspect, -share, _ORDER.index(cause.kind))

    return [
        cause if cause.share is None else replace(cause, share=cause.share / max(total, 1.0))
        for cause in sorted(causes, key=rank)
    ]


def _rest(causes: list[Cause], effects: list[Effect]) -> list[Cause]:
    """What no cause explains, unless one of unknown time may."""
    slow = tuple(effect.summary for effect in effects if effect.kind == "slow")
    if not causes:
        text = "nothing that is recorded changed"
        return [Cause(kind="unexplained", summary=text, share=1.0, evidence=slow)]
    rest = 1 - sum(cause.share or 0.0 for cause in causes)
    if rest < UNEXPLAINED_REL or any(cause.share is None for cause in causes):
        return []
    return [Cause(kind="unexplained", summary="the rest", share=rest, evidence=slow)]


def _located(causes: list[Cause], diverges: str) -> list[Cause]:
    """Where the outputs leave the reference: evidence of the first cause, or all that is known."""
    if not diverges:
        return causes
    if not causes:
        return [Cause(kind="unexplained", summary=diverges)]
    return [replace(causes[0], evidence=(diverges, *causes[0].evidence)), *causes[1:]]


def _with_log(causes: list[Cause], log: str) -> tuple[Cause, ...]:
    """Attach the runtime's own words to the first cause that they speak of."""
    said = set()
    for index, cause in enumerate(causes):
        pattern = _LOGS.get(cause.kind)
        if pattern is not None and cause.kind not in said:
            said.add(cause.kind)
            lines = [line.strip()[:160] for line in log.splitlines() if pattern.search(line)]
            evidence = (*cause.evidence, *dict.fromkeys(lines[:2]))
            causes[index] = replace(cause, evidence=evidence)
    return tuple(causes)


def lost_time(comparison: Comparison, cause: Cause) -> str:
    """Such as `` (+1.71 ms of +1.92 ms)``: time per batch on the deciding axis, at equal speed."""
    loss, baseline = comparison.loss, comparison.baseline
    if cause.share is None or loss is None or baseline is None or not 0 < loss.value < 1:
        return ""
    figures = baseline.figures
    axis = figures.busy if loss.axis == "busy" and figures.busy else figures.wall
    lost_ms = 1e3 * axis.seconds * loss.value / (1 - loss.value)
    return f" (+{cause.share * lost_ms:.3g} ms of +{lost_ms:.3g} ms)"
