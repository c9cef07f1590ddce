"""Kernel paths of different runtimes or vendors against each other: never a kernel by name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_portability.kernel_changes import Change
from pytest_portability.kernels import KernelPath, precision_of


@dataclass(frozen=True, slots=True, kw_only=True)
class PathProfile:
    """What two paths of different runtimes or vendors may be held against each other by.

    Attributes:
        precision: precision → fraction (0–1) of the compute launches.
        provider: provider → fraction (0–1) of all launches.
        launches: per inference, every role.
        roles: role → launches per inference.
        time: role → share (0–1) of the inference's time; empty where a kernel has none.
    """

    precision: Mapping[str, float]
    provider: Mapping[str, float]
    launches: int
    roles: Mapping[str, int]
    time: Mapping[str, float]


def profile(path: KernelPath) -> PathProfile:
    """The profile of a path: sums that do not depend on how a runtime names its kernels."""
    precision: Counter[str] = Counter()
    provider: Counter[str] = Counter()
    roles: Counter[str] = Counter()
    time: dict[str, float] = {}
    for use in path.uses:
        provider[use.kernel.provider] += use.launches
        roles[use.kernel.role] += use.launches
        time[use.kernel.role] = time.get(use.kernel.role, 0.0) + (use.share or 0.0)
        if use.kernel.role == "compute":
            precision[precision_of(use.kernel)] += use.launches
    return PathProfile(
        precision={name: n / precision.total() for name, n in sorted(precision.items())},
        provider={name: n / provider.total() for name, n in sorted(provider.items())},
        launches=sum(roles.values()),
        roles=dict(roles),
        time={} if any(use.share is None for use in path.uses) else time,
    )


def diff_profiles(before: PathProfile, after: PathProfile) -> tuple[Change, ...]:
    """What differs between paths of different runtimes; never a kernel by name.

    A fraction that moved by less than 0.05 and a count by less than a quarter are no difference:
    two runtimes cut the same graph into somewhat different kernels.
    """
    changes = []
    known = {p for side in (before, after) for p in side.precision if p}
    if any(abs(before.precision.get(p, 0.0) - after.precision.get(p, 0.0)) >= 0.05 for p in known):
        text = f"precision of the compute launches: {_mix(before)} → {_mix(after)}"
        changes.append(Change(kind="precision", summary=text))
    for role, kind in (("compute", "launches"), ("move", "move"), ("layout", "layout")):
        old, new = before.roles.get(role, 0), after.roles.get(role, 0)
        if abs(new - old) > 0.25 * old and old + new > 0:
            times = [f"{side.time[role]:.0%}" for side in (before, after) if role in side.time]
            took = f" ({' → '.join(times)} of the time)" if len(times) == 2 else ""
            text = f"{role} kernels ×{old} → ×{new} per inference{took}"
            changes.append(Change(kind=kind, summary=text))
    return tuple(changes)


def _mix(side: PathProfile) -> str:
    order = sorted(side.precision.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name or 'unknown'} {part:.0%}" for name, part in order) or "nothing"
