"""A record that is the first of its kind, beside the closest one there is: a diff, not a blank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from pytest_portability import compare, records
from pytest_portability.attribute import Cause
from pytest_portability.compare import Comparison
from pytest_portability.records import Key, Record
from pytest_portability.versions import delta

MOST_CHANGES = 3
"""Differences of the kernel path that are shown."""


def beside(
    comparison: Comparison, everything: Mapping[Key, Record]
) -> tuple[Comparison, tuple[Cause, ...]]:
    """A ``missing`` comparison that shows the closest record, and what explains the gap to it.

    Args:
        comparison: of a record without baseline.
        everything: the records that there are.

    Returns:
        It, with causes only where it is certainly worse than the closest.
    """
    record = comparison.record
    if record is None:
        return comparison, ()
    close = records.closest(everything, record.key, record.arch, record.vendor)
    shown = compare.with_closest(comparison, *(close or (None,)))
    if close is None:
        return replace(shown, reason=shown.reason + _twin(everything, record)), ()
    gap = delta.row(record, close[0])
    changes = (f"unlike the closest: {change}" for change in gap.kernels[:MOST_CHANGES])
    warnings = (*shown.warnings, *changes)
    return replace(shown, warnings=warnings), gap.causes if gap.failed else ()


def _twin(everything: Mapping[Key, Record], record: Record) -> str:
    """Which model of another name has these weights; empty if none has."""
    same = {r.key.model for r in everything.values() if r.model.weights == record.model.weights}
    same.discard(record.key.model)  # here it would have been found: elsewhere its rows are others
    if not same or not record.model.weights:
        return ""
    name = min(same)
    return (
        f"; {name!r} has the same weights: if the test was renamed, name={name!r} finds its record"
    )
