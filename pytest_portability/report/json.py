"""The JSON report, which other tools build on: fractions, seconds, bytes, items per second."""

from __future__ import annotations

import json
import math
import os
import tempfile
from dataclasses import asdict, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pytest_portability.compare import Interval
from pytest_portability.report import Entry, Report

SCHEMA = 1


def write(report: Report, path: Path) -> None:
    """Write the report atomically; parent directories are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".tmp")
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(render(report), stream, indent=1, allow_nan=False)
        stream.write("\n")
    Path(name).replace(path)


def render(report: Report) -> dict[str, Any]:
    """The report as plain JSON types."""
    return {
        "schema": SCHEMA,
        "session": dict(report.session),
        "targets": [
            {"id": t.id, **_plain({k: getattr(t, k) for k in ("vendor", "arch", "product")})}
            | {"platform": t.platform, "memory_bytes": t.memory_bytes, "facts": dict(t.facts)}
            for t in report.targets
        ],
        "absent": [_plain(a) for a in report.absents],
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
        "runtime": key.runtime,
        "precision": key.precision,
        "batch": key.batch,
        "batch_effective": figures.batch_effective if figures else None,
        "profile": dict(key.profile),
        "verdict": comparison.verdict.value,
        "reason": comparison.reason,
        "throughput": figures.throughput if figures else None,
        "unit": figures.unit if figures else None,
        "baseline_throughput": baseline.figures.throughput if baseline else None,
        "loss": _loss(entry),
        "machine_rel": _plain(comparison.machine_rel),
        "latency": {
            "p50_s": figures.latency_p50_s,
            "p90_s": figures.latency_p90_s,
            "p99_s": figures.latency_p99_s,
        }
        if figures
        else None,
        "parity": _plain(record.parity) if record else None,
        "memory_bytes": _memory(figures),
        "memory_rel": comparison.memory_rel,
        "causes": [_plain(cause) for cause in entry.causes],
        "warnings": list(comparison.warnings),
        "update": entry.update,
        "windows": [[_plain(window) for window in repeat.windows] for repeat in measured.repeats]
        if measured
        else [],
        "record": _plain(record) if record else None,
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


def _interval(interval: Interval) -> dict[str, Any]:
    names = ("value", "low", "high", "relative")
    return {name: _plain(getattr(interval, name)) for name in names}


def _memory(figures: Any) -> int | None:
    if figures is None:
        return None
    found: int | None = (
        figures.memory_device_bytes or figures.memory_process_bytes or figures.memory_arena_bytes
    )
    return found


def _plain(value: Any) -> Any:
    """Plain JSON types; a figure that is not finite becomes null, which JSON can say."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    return value
