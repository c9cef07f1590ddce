"""Which record to show beside a build that has none."""

from __future__ import annotations

import math
from collections.abc import Mapping

from pytest_portability.records.types import Key, Record


def closest(
    records: Mapping[Key, Record], key: Key, arch: str, vendor: str
) -> tuple[Record, str] | None:
    """The record to show a new build against, and why that one.

    Args:
        records: of any models and targets.
        key: the build that has no record.
        arch: architecture of its target.
        vendor: vendor of its target.

    Returns:
        None if no other record of this model exists.
    """

    def rank(record: Record) -> tuple[object, ...]:
        k = record.key
        return (
            record.arch != arch,
            record.vendor != vendor,
            (k.batch, k.profile) != (key.batch, key.profile),
            k.precision != key.precision,
            k.runtime != key.runtime,
            k.target != key.target,
            abs(math.log(max(k.batch, 1) / max(key.batch, 1))),
            k,
        )

    candidates = [r for r in records.values() if r.key.model == key.model and r.key != key]
    if not candidates:
        return None
    best = min(candidates, key=rank)
    there = f"no record on {arch}" if arch else "its architecture is not known"
    if best.arch == arch:
        why = f"the same architecture {arch}"
    elif best.vendor == vendor:
        why = f"{there}; the same vendor {vendor}"
    else:
        why = f"{there}; none of {vendor}"
    differs = dict(zip(("batch", "precision", "runtime"), rank(best)[2:], strict=False))
    same = ", ".join(name for name, other in differs.items() if not other)
    apart = ", ".join(name for name, other in differs.items() if other)
    parts = [why, *([f"same {same}"] if same else []), *([f"other {apart}"] if apart else [])]
    return best, "; ".join(parts)
