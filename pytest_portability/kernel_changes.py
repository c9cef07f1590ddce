"""What differs between two kernel paths of one runtime, one line per mechanism."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pytest_portability.kernels import Kernel, KernelPath, KernelUse, onnx_role


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One mechanism by which two kernel paths of one runtime differ.

    Attributes:
        kind: one of ``CHANGES``.
        summary: one line, such as ``BiasGelu ×2 no longer fused: now Add ×2, Gelu ×2``.
        before: the uses that it concerns in the older path, launches and shares of that part only.
        after: the same in the newer path.
    """

    kind: str
    summary: str
    before: tuple[KernelUse, ...] = ()
    after: tuple[KernelUse, ...] = ()

    @property
    def launches_before(self) -> int:
        """Launches per inference of the older part."""
        return sum(use.launches for use in self.before)

    @property
    def launches_after(self) -> int:
        """Launches per inference of the newer part."""
        return sum(use.launches for use in self.after)

    @property
    def share_before(self) -> float | None:
        """Share (0–1) of the older inference's time; None if one of its kernels has none."""
        return _share(self.before)

    @property
    def share_after(self) -> float | None:
        """Share (0–1) of the newer inference's time; None if one of its kernels has none."""
        return _share(self.after)


CHANGES = (
    "precision",
    "implementation",
    "provider",
    "fusion lost",
    "fusion gained",
    "kernel",
    "launches",
    "move",
    "layout",
)
"""Kinds of a ``Change``, in the order in which a difference is looked for."""


BRANCHING = {"If", "Loop", "Scan"}
"""Operations with graphs of their own, which run as often as the data want."""

COPIES = "copies and casts"
"""What the summary of a ``move`` begins with."""


def diff(before: KernelPath, after: KernelPath) -> tuple[Change, ...]:
    """What differs between two kernel paths of the same runtime, one line per mechanism.

    The stages are: the same kernel (nothing to say), the same work in another precision, by
    another implementation, by another provider, a fusion lost or gained, and what is left. An
    unstaged difference of multisets would report one precision change as a dozen kernels lost.

    Args:
        before: the older path.
        after: the newer path.

    Returns:
        Changes in the order of ``CHANGES``; none if either path has no evidence.
    """
    if "none" in (before.evidence, after.evidence):
        return ()
    gone, new = _Rest(before), _Rest(after)
    if gone.total == new.total:
        return ()  # pairing what is equal one by one takes a hundred times as long
    _pair(gone, new, ("provider", "op", "role", "precision", "implementation", "absorbs"))
    changes = [
        *_grouped(
            _pair(gone, new, ("provider", "op", "role", "absorbs"), but="precision"), "precision"
        ),
        *_implementations(_pair(gone, new, ("provider", "op", "role", "precision", "absorbs"))),
        *_grouped(_pair(gone, new, ("op", "role", "absorbs"), moves=False), "provider"),
    ]
    _drop_rewritten(gone, new)
    changes += [
        *_fusions(gone, new, before, after, lost=True),
        *_fusions(new, gone, after, before, lost=False),
        *_replaced(gone, new),
        *_counts(gone, new),
        *_folded(gone, new, "move", COPIES),
        *_folded(gone, new, "layout", "layout operations"),
    ]
    return tuple(sorted(changes, key=lambda change: CHANGES.index(change.kind)))


def label(uses: Iterable[KernelUse], limit: int = 4) -> str:
    """Kernels as ``MatMul ×12, Softmax ×6``, the longest-running or most frequent ones first."""
    launches: Counter[str] = Counter()
    shares: dict[str, float] = {}
    for use in uses:
        launches[use.kernel.op] += use.launches
        shares[use.kernel.op] = shares.get(use.kernel.op, 0.0) + (use.share or 0.0)
    ops = sorted(launches, key=lambda op: (-shares[op], -launches[op], op))
    more = f" and {len(ops) - limit} more" if len(ops) > limit else ""
    return ", ".join(f"{op} ×{launches[op]}" for op in ops[:limit]) + more


class _Rest:
    """What of a path no stage has explained yet: kernel → launches left."""

    def __init__(self, path: KernelPath) -> None:
        self.total: Counter[Kernel] = Counter()
        self.time: dict[Kernel, float | None] = {}
        for use in path.uses:
            self.total[use.kernel] += use.launches
            known = self.time.get(use.kernel, 0.0)
            both = known is not None and use.share is not None
            self.time[use.kernel] = (known or 0.0) + (use.share or 0.0) if both else None
        self.left = +self.total

    def take(self, kernel: Kernel, launches: int) -> KernelUse:
        """Remove that many launches; their share is the proportional part of the kernel's."""
        self.left[kernel] -= launches
        self.left = +self.left
        time = self.time[kernel]
        share = None if time is None else time * launches / self.total[kernel]
        return KernelUse(kernel=kernel, launches=launches, share=share)

    def take_all(self, kernels: Iterable[Kernel]) -> tuple[KernelUse, ...]:
        return tuple(self.take(kernel, self.left[kernel]) for kernel in sorted(kernels))

    def of(self, *roles: str) -> list[Kernel]:
        return sorted(kernel for kernel in self.left if kernel.role in roles)


_Pairs = list[tuple[KernelUse, KernelUse]]


def _pair(
    gone: _Rest, new: _Rest, fields: Sequence[str], *, moves: bool = True, but: str = ""
) -> _Pairs:
    """Take from both sides what is alike in these fields.

    Args:
        gone: what is left of the older path.
        new: what is left of the newer path.
        fields: names of the fields that must be alike; equal kernels pair before compatible ones.
        moves: whether copies and casts may pair too.
        but: a field that must differ, both sides saying so.
    """
    pairs: _Pairs = []
    for alike in (_equal, _compatible):
        for old in sorted(gone.left):
            for other in sorted(new.left):
                launches = min(gone.left[old], new.left[other])
                wanted = (moves or old.role != "move") and not (
                    but and _compatible(old, other, (but,))
                )
                if launches and wanted and alike(old, other, fields):
                    pairs.append((gone.take(old, launches), new.take(other, launches)))
    return pairs


def _equal(old: Kernel, new: Kernel, fields: Sequence[str]) -> bool:
    return all(getattr(old, name) == getattr(new, name) for name in fields)


def _compatible(old: Kernel, new: Kernel, fields: Sequence[str]) -> bool:
    """Alike as far as both runtimes say: an empty field never differs from a value."""
    pairs = [(getattr(old, name), getattr(new, name)) for name in fields]
    return all(a == b or not a or not b for a, b in pairs)


def _grouped(pairs: _Pairs, field_name: str) -> list[Change]:
    """One change for each pair of values of a field: ``fp32 → bf16``, ``CUDA → CPU``."""
    groups: dict[tuple[str, str], _Pairs] = {}
    for old, new in pairs:
        key = (getattr(old.kernel, field_name), getattr(new.kernel, field_name))
        groups.setdefault(key, []).append((old, new))
    changes = []
    for (old_value, new_value), members in sorted(groups.items()):
        # A cast or reshape in another precision only follows the work: name it when it is alone.
        work = [old for old, _ in members if old.kernel.role == "compute"]
        text = label(work or [old for old, _ in members])
        changes.append(_change(field_name, f"{old_value} → {new_value}: {text}", members))
    return changes


def _implementations(pairs: _Pairs) -> list[Change]:
    """One change for all: they have one reason, such as an instruction set."""
    if not pairs:
        return []
    pairs = sorted(pairs, key=lambda pair: (-(pair[1].share or 0.0), pair[1].kernel))
    seen = [
        f"{old.kernel.op} ×{old.launches} {old.kernel.implementation} → {new.kernel.implementation}"
        for old, new in pairs
    ]
    more = f" and {len(seen) - 3} more" if len(seen) > 3 else ""
    text = f"another implementation: {', '.join(seen[:3])}{more}"
    return [_change("implementation", text, pairs)]


def _change(kind: str, summary: str, pairs: _Pairs) -> Change:
    old, new = zip(*pairs, strict=True)
    return Change(kind=kind, summary=summary, before=old, after=new)


def _absorbed(path: KernelPath) -> Counter[str]:
    """Source operations that no executed kernel carries by name: fused, folded or removed."""
    executed: Counter[str] = Counter()
    for use in path.uses:
        executed[use.kernel.op] += use.launches
    return Counter(dict(path.source)) - executed


def _is_fused(kernel: Kernel, path: KernelPath) -> bool:
    made = bool(path.source) and kernel.op not in path.source
    return len(kernel.absorbs) > 1 or made or "fused" in kernel.op.lower()


def _fusions(
    whole: _Rest, parts: _Rest, path: KernelPath, other: KernelPath, *, lost: bool
) -> list[Change]:
    """Fused kernels of ``whole`` whose parts run by themselves in ``parts``.

    Known ``absorbs`` decide first, one change for each fused kernel. What is left is decided by
    what ``path`` had in its source and did not execute, and ``other`` did, and by one kernel
    having become several.
    """
    found: list[tuple[tuple[KernelUse, ...], tuple[KernelUse, ...]]] = []
    for kernel in whole.of("compute"):
        if len(kernel.absorbs) > 1:
            taken = _take_parts(parts, Counter(kernel.absorbs), whole.left[kernel])
            if taken:
                found.append(((whole.take(kernel, whole.left[kernel]),), taken))
    # As many as the other path absorbs, too, were not what came or went: a model that grew.
    apart = _absorbed(path) - _absorbed(other)
    if BRANCHING & {*dict(path.source), *dict(other.source)}:
        apart = Counter()  # nodes of a branch that was not taken were not fused either
    absorbed = _take_parts(parts, apart, 1, roles=("compute",))
    was = _unfused_by(apart, path, other) if lost else ""
    if was:  # what the graph says instead runs by itself
        new = {*other.source} - {*path.source}
        absorbed = (*absorbed, *parts.take_all(k for k in parts.of("compute") if k.op in new))
    fused = whole.take_all(k for k in whole.of("compute") if absorbed and _is_fused(k, path))
    if not absorbed and _became_several(whole, parts, path):
        fused = whole.take_all(whole.of("compute"))
    one = len(found) == 1 and not fused and not whole.of("compute")
    if fused or one:  # the rest of the parts comes from another way to write the same source
        absorbed = (*absorbed, *parts.take_all(parts.of("compute")))
    if one:
        found = [(found[0][0], _merged((*found[0][1], *absorbed)))]
    elif fused or absorbed:
        found.append((fused, absorbed))
    return [_fusion(whole_part, into, lost=lost, was=was) for whole_part, into in found]


def _unfused_by(apart: Counter[str], path: KernelPath, other: KernelPath) -> str:
    """Computing operations that ``path`` fused and the graph of ``other`` says in another way."""
    gone = (op for op in sorted(apart) if op not in other.source and onnx_role(op) == "compute")
    return ", ".join(f"{op} ×{apart[op]}" for op in gone)


def _merged(uses: Iterable[KernelUse]) -> tuple[KernelUse, ...]:
    """One use of each kernel."""
    kernels: dict[Kernel, list[KernelUse]] = {}
    for use in uses:
        kernels.setdefault(use.kernel, []).append(use)
    return tuple(
        KernelUse(kernel=kernel, launches=sum(u.launches for u in same), share=_share(same))
        for kernel, same in kernels.items()
    )


def _became_several(whole: _Rest, parts: _Rest, path: KernelPath) -> bool:
    """Whether what is left looks like one kernel replaced by several.

    Without source or ``absorbs`` (torch eager says neither) only the counts speak: at least twice
    as many launches; a kernel that is fused by its name needs only more of them.
    """
    old, new = whole.of("compute"), parts.of("compute")
    known = {kernel.op for kernel in whole.total}
    if all(kernel.op in known for kernel in new):
        return False  # more of what ran beside it
    before, after = sum(whole.left[k] for k in old), sum(parts.left[k] for k in new)
    fused = any(_is_fused(k, path) for k in old)
    return bool(old and new) and (after >= 2 * before or (fused and after > before))


def _take_parts(
    rest: _Rest, wanted: Counter[str], times: int, roles: tuple[str, ...] = ("compute", "layout")
) -> tuple[KernelUse, ...]:
    found = []
    for kernel in rest.of(*roles):
        launches = min(rest.left[kernel], wanted[kernel.op] * times)
        if launches:
            found.append(rest.take(kernel, launches))
    return tuple(found)


def _fusion(
    fused: tuple[KernelUse, ...], parts: tuple[KernelUse, ...], *, lost: bool, was: str = ""
) -> Change:
    whole, text = label(fused), label(parts)
    if lost:
        if besides := _besides(fused, parts):
            summary = f"{besides} no longer folded into {whole}"
        elif fused:
            summary = f"{whole} no longer fused: now {text}"
        else:
            now = f": now {text}" if was else ""
            summary = f"{was or text} no longer fused or folded into other kernels{now}"
        return Change(kind="fusion lost", summary=summary, before=fused, after=parts)
    if besides := _besides(fused, parts):
        summary = f"{besides} now folded into {whole}"
    else:
        summary = f"{text} now fused: {whole}" if fused else f"{text} now fused or folded"
    return Change(kind="fusion gained", summary=summary, before=parts, after=fused)


def _drop_rewritten(gone: _Rest, new: _Rest) -> None:
    """Take the same kernels of a graph that is written in another way: there is nothing to say.

    What one of them absorbed besides has to run by itself on the other side to have been a fusion.
    """
    fields = ("provider", "op", "role", "precision", "implementation")
    for old in sorted(gone.left):
        for other in sorted(new.left):
            launches = min(gone.left[old], new.left[other])
            apart = _came_apart(old, other, new) or _came_apart(other, old, gone)
            if launches and not apart and _equal(old, other, fields):
                gone.take(old, launches)
                new.take(other, launches)


def _came_apart(whole: Kernel, part: Kernel, rest: _Rest) -> bool:
    besides = {*whole.absorbs} - {*part.absorbs, whole.op}
    return bool(besides) and besides <= {kernel.op for kernel in rest.left}


def _besides(fused: tuple[KernelUse, ...], parts: tuple[KernelUse, ...]) -> str:
    """What a kernel that runs either way did besides; empty if it does not run either way."""
    still = {use.kernel.op for use in fused} & {use.kernel.op for use in parts}
    others = [use for use in parts if use.kernel.op not in still]
    if not still or others:
        return label(others) if still else ""
    folded: Counter[str] = Counter()
    for sign, uses in ((1, fused), (-1, parts)):
        for use in uses:
            for op in use.kernel.absorbs:
                folded[op] += sign * use.launches
    return ", ".join(f"{op} ×{n}" for op, n in sorted((+folded).items()))


def _replaced(gone: _Rest, new: _Rest) -> list[Change]:
    """Work that another kernel does now, or that only one of the paths has."""
    # The same kernel for a part of the graph that is written in another way is no other kernel.
    _pair(gone, new, ("provider", "op", "role", "precision", "implementation"))
    old = gone.take_all(k for k in gone.of("compute") if k not in new.total)
    now = new.take_all(k for k in new.of("compute") if k not in gone.total)
    if not old and not now:
        return []
    if old and now:
        text = f"{label(old)} replaced by {label(now)}"
    else:
        text = f"{label(old)} no longer run" if old else f"{label(now)} appeared"
    return [Change(kind="kernel", summary=text, before=old, after=now)]


def _counts(gone: _Rest, new: _Rest) -> list[Change]:
    """The same kernels, launched more or less often."""
    changes = []
    for more, rest in ((True, new), (False, gone)):
        kernels = rest.of("compute")
        if not kernels:
            continue
        seen = [f"{k.op} ×{gone.total[k]} → ×{new.total[k]}" for k in kernels]
        rest_text = f" and {len(seen) - 4} more" if len(seen) > 4 else ""
        text = f"{'more' if more else 'fewer'} launches: {', '.join(seen[:4])}{rest_text}"
        uses = rest.take_all(kernels)
        old, now = ((), uses) if more else (uses, ())
        changes.append(Change(kind="launches", summary=text, before=old, after=now))
    return changes


def _folded(gone: _Rest, new: _Rest, role: str, words: str) -> list[Change]:
    """One change for all moves, or for all layout operations, that only one path has."""
    kernels = sorted({*gone.of(role), *new.of(role)})
    if not kernels:
        return []
    ops: dict[str, tuple[int, int]] = {}
    for kernel in sorted({*gone.total, *new.total}):
        if any(kernel.op == k.op for k in kernels):
            old, now = ops.get(kernel.op, (0, 0))
            ops[kernel.op] = (old + gone.total[kernel], now + new.total[kernel])
    seen = [f"{op} ×{old} → ×{now}" for op, (old, now) in ops.items()]
    more = f" and {len(seen) - 4} more" if len(seen) > 4 else ""
    summary = f"{words}: {', '.join(seen[:4])}{more}"
    before, after = gone.take_all(gone.of(role)), new.take_all(new.of(role))
    return [Change(kind=role, summary=summary, before=before, after=after)]


def _share(uses: Iterable[KernelUse]) -> float | None:
    total = 0.0
    for use in uses:
        if use.share is None:
            return None
        total += use.share
    return total
