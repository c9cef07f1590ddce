"""The JSON report, which other tools build on: fractions, seconds, bytes, items per second."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from numbers import Integral, Real
from typing import Any

from pytest_portability import compare
from pytest_portability.loss import Interval
from pytest_portability.outputs import sketch_distance
from pytest_portability.records import Record
from pytest_portability.report import Entry, Report
from pytest_portability.report.document import SCHEMA


def render(report: Report) -> str:
    """The report as JSON text."""
    return json.dumps(tables(report), indent=1, allow_nan=False) + "\n"


def tables(report: Report) -> Any:
    """The report in plain JSON types."""
    return plain(_report(report))


def _report(report: Report) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "session": {str(name): str(value) for name, value in report.session.items()},
        "targets": [
            {
                "id": t.id,
                "vendor": t.vendor,
                "arch": t.arch,
                "product": t.product,
                "platform": t.platform,
                "memory_bytes": t.memory_bytes,
                "facts": t.facts,
            }
            for t in report.targets
        ],
        "absent": report.absents,
        "recorded": Counter(sorted(key.target for key in report.recorded)),
        "unused": [{"model": k.model, "target": k.target, "row": k.row} for k in report.unused],
        "across": report.across,
        "problems": report.complaints,
        "items": [_item(e) for e in report.entries],
    }


def _item(entry: Entry) -> dict[str, Any]:
    comparison, key = entry.comparison, entry.key
    record, baseline, measured = comparison.record, comparison.baseline, entry.measurement
    figures = record.figures if record else None
    return {
        "nodeid": entry.nodeid,
        "worker": entry.worker,
        "model": key.model,
        "target": key.target,
        "runtime": key.runtime or None,
        "precision": key.precision or None,
        "batch": key.batch or None,
        "batch_effective": figures.batch_effective if figures else None,
        "profile": dict(key.profile),
        "verdict": comparison.verdict.value,
        "outcome": entry.outcome,
        "reason": comparison.reason,
        "throughput": figures.throughput if figures else None,
        "unit": figures.unit if figures else None,
        "baseline_throughput": baseline.figures.throughput if baseline else None,
        "baseline_toolchain": baseline.toolchain if baseline else None,
        "loss": _loss(entry),
        "machine_rel": comparison.machine_rel,
        "latency": {
            "p50_s": figures.latency_p50_s,
            "p90_s": figures.latency_p90_s,
            "p99_s": figures.latency_p99_s,
        }
        if figures
        else None,
        "parity": record.parity if record else None,
        "parity_verdict": comparison.parity,
        "moved_rel": _moved(record, baseline) if record and baseline else {},
        "memory_bytes": figures.memory_bytes if figures else None,
        "memory_rel": comparison.memory_rel,
        "causes": entry.causes,
        "warnings": comparison.warnings,
        "update": entry.update,
        "again": entry.arguments,
        "writes": {
            name: compare.writes(comparison, accepted=accepted)
            for name, accepted in (("plain", False), ("accepted", True))
        },
        "windows": [repeat.windows for repeat in measured.repeats] if measured else [],
        "sensors": [repeat.sensors for repeat in measured.repeats] if measured else [],
        "record": record,
        "baseline": baseline,
    }


def _loss(entry: Entry) -> dict[str, Any] | None:
    comparison = entry.comparison
    if comparison.loss is None:
        return None
    axes: dict[str, Any] = {"busy": None, "wall": None}
    axes |= {interval.axis: _interval(interval) for interval in comparison.axes}
    return {
        **_interval(comparison.loss),
        "axis": comparison.loss.axis,
        "tolerance": comparison.tolerance,
        "tolerance_source": comparison.tolerance_source,
        **axes,
    }


def _moved(record: Record, baseline: Record) -> dict[str, float]:
    """How far each output is from what the baseline's build computed, of the same inputs."""
    now, then = record.parity, baseline.parity
    if now.inputs != then.inputs:
        return {}
    both = [name for name in now.sketches if name in then.sketches]
    return {name: sketch_distance(now.sketches[name], then.sketches[name]) for name in both}


def _interval(interval: Interval) -> dict[str, Any]:
    return {name: getattr(interval, name) for name in ("value", "low", "high", "relative")}


def plain(value: Any) -> Any:
    """Plain JSON types; a figure that is not finite becomes null, which JSON can say."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Real):
        return _number(value)
    if is_dataclass(value):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value if value is None or isinstance(value, str) else str(value)


def _number(value: Any) -> bool | int | float | None:
    """A number of Python or of NumPy."""
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if math.isfinite(value) else None
