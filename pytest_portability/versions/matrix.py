"""The matrix model × target × build, and how portable the performance of each build is.

Application efficiency on a target is a build's throughput ÷ that of the best build known there.
The performance-portability metric is the harmonic mean of the efficiencies over a set of targets,
and 0 if one of them is not supported (Pennycook, Sewall, Lee 2016, doi:10.48550/arXiv.1611.07409;
2019, doi:10.1016/j.future.2017.08.007).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import harmonic_mean

from pytest_portability.records import Key, Record
from pytest_portability.versions.sharing import each
from pytest_portability.versions.source import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One record in the matrix.

    Attributes:
        efficiency: its throughput ÷ the best one of the model at this profile on this target, from
            above 0 to 1.
    """

    key: Key
    throughput: float
    unit: str
    effective: str
    latency_p50_s: float
    memory_bytes: int | None
    efficiency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Portability:
    """How portable one way to build a model is.

    Attributes:
        key: of no target, and of a family of runtimes: another target's provider of the same
            library is the same way to build it.
        present: targets that it has a record on.
        targets: all that the model has records on at this profile.
        strict: the metric over all of them; 0 if it lacks one.
        here: the metric over those that it has.
    """

    key: Key
    present: tuple[str, ...]
    targets: tuple[str, ...]
    strict: float
    here: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """All models of a version."""

    cells: tuple[Cell, ...]
    metrics: tuple[Portability, ...]
    problems: tuple[str, ...]


def matrix(version: Version, models: Iterable[str] | None = None) -> Matrix:
    """The matrix of a version's records, model by model.

    Args:
        version: whose records.
        models: names of their directories; all if None.
    """
    names = version.models() if models is None else [*models]
    parts = list(each(partial(_of_model, version), names))
    return Matrix(
        cells=tuple(cell for part in parts for cell in part.cells),
        metrics=tuple(metric for part in parts for metric in part.metrics),
        problems=tuple(problem for part in parts for problem in part.problems),
    )


def _of_model(version: Version, name: str) -> Matrix:
    found, unreadable = version.read(name)
    efficiency = efficiencies({key: record.figures.throughput for key, record in found.items()})
    return Matrix(
        cells=tuple(_cell(record, efficiency[key]) for key, record in sorted(found.items())),
        metrics=tuple(metrics(efficiency)),
        problems=unreadable,
    )


def _cell(record: Record, efficiency: float) -> Cell:
    figures = record.figures
    return Cell(
        key=record.key,
        throughput=figures.throughput,
        unit=figures.unit,
        effective=record.effective,
        latency_p50_s=figures.latency_p50_s,
        memory_bytes=figures.memory_bytes,
        efficiency=efficiency,
    )


def efficiencies(throughput: Mapping[Key, float]) -> dict[Key, float]:
    """Throughput of each build of a model ÷ the best one at its profile on its target.

    Args:
        throughput: items per second, above 0, of each.
    """
    best: dict[tuple[object, ...], float] = {}
    for key, figure in throughput.items():
        place = key.target, key.batch, key.profile
        best[place] = max(best.get(place, 0.0), figure)
    return {key: v / best[key.target, key.batch, key.profile] for key, v in throughput.items()}


def metrics(efficiency: Mapping[Key, float]) -> Iterator[Portability]:
    """The metric of each way to build a model, at each of its profiles.

    Args:
        efficiency: of each build of one model, from above 0 to 1.
    """
    profiles: dict[tuple[object, ...], list[Key]] = {}
    for key in sorted(efficiency):
        profiles.setdefault((key.batch, key.profile), []).append(key)
    for of_profile in profiles.values():
        targets = tuple(sorted({key.target for key in of_profile}))
        ways: dict[tuple[str, str], dict[str, float]] = {}
        for key in of_profile:
            way = key.runtime.partition(".")[0], key.precision
            best = ways.setdefault(way, {})
            best[key.target] = max(best.get(key.target, 0.0), efficiency[key])
        for (family, precision), best in sorted(ways.items()):
            of_way = replace(of_profile[0], target="", runtime=family, precision=precision)
            here = harmonic_mean([*best.values()])
            yield Portability(
                key=of_way,
                present=tuple(sorted(best)),
                targets=targets,
                strict=here if len(best) == len(targets) else 0.0,
                here=here,
            )
