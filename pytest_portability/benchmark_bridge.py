"""What was measured, as if pytest-benchmark had timed it. Knows its fixture, not its insides."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_portability.report import Entry
from pytest_portability.samples import Measurement

UNDER_XDIST = (
    "pytest-benchmark writes nothing under xdist; what was measured is in "
    "--portability-report=json:PATH"
)


def writes(option: Callable[[str, object], object]) -> bool:
    """Whether pytest-benchmark was asked to keep or to compare something.

    Args:
        option: its value by its name, or a default where pytest-benchmark is not installed.
    """
    names = ("json", "autosave", "save", "save_data", "compare", "histogram")
    return any(option(f"benchmark_{name}", None) for name in names)


def times(measurement: Measurement) -> list[float]:
    """Wall seconds per batch of each window, over all repeats."""
    return [w.wall_s / w.batches for r in measurement.repeats for w in r.windows]


def replayed(samples: Sequence[float]) -> Callable[[], float]:
    """A clock between two readings of which just the next sample passes."""
    clock = (reading for sample in samples for reading in (0.0, sample))
    return clock.__next__


def show(benchmark: Any, entry: Entry) -> None:
    """Let the fixture of pytest-benchmark, whose timer is ``replayed``, take the samples.

    Args:
        benchmark: the fixture.
        entry: what was measured.
    """
    if entry.measurement is None:
        return
    benchmark.extra_info.update(_facts(entry))
    benchmark.pedantic(lambda: None, rounds=len(times(entry.measurement)), iterations=1)


def _facts(entry: Entry) -> Iterator[tuple[str, object]]:
    comparison, record = entry.comparison, entry.comparison.record
    yield from (("model", entry.key.model), ("target", entry.key.target), ("row", entry.key.row))
    yield from (("verdict", comparison.verdict.value), ("reason", comparison.reason))
    if comparison.loss is not None:
        yield "loss", comparison.loss.value
    if record is not None:
        figures = record.figures
        yield from (("throughput", figures.throughput), ("unit", f"{figures.unit}/s"))
        yield from (("effective", record.effective), ("memory_bytes", figures.memory_bytes))
        yield from (("toolchain", dict(record.toolchain)), ("options", dict(record.options)))
