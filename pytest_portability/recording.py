"""Makes a Record of what was measured: figures from samples, facts from what was observed."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from statistics import fmean, median, stdev

from pytest_portability.kernels import KernelPath, effective_precision
from pytest_portability.models import ModelFacts
from pytest_portability.parity import Parity
from pytest_portability.records import Axis, Figures, Key, ModelVersion, Record
from pytest_portability.runtimes import Observed
from pytest_portability.samples import Measurement, Repeat
from pytest_portability.targets import Target

SPEED_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "DNNL_MAX_CPU_ISA",
    "KMP_AFFINITY",
    "KMP_BLOCKTIME",
    "MKL_ENABLE_INSTRUCTIONS",
    "OMP_NUM_THREADS",
    "OMP_WAIT_POLICY",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
)
"""Environment variables that change speed; those in force are recorded as ``env.NAME`` options."""


def figures(measurement: Measurement) -> Figures:
    """Figures of a measurement: medians over repeats, memory the least of them.

    Memory is the least over repeats because what else a process happens to touch only adds to it.
    """
    repeats = measurement.repeats
    wall = _axis(repeats, "wall")
    busy = _axis(repeats, "busy")
    if wall is None:
        msg = "a measurement without a single repeat has no figures"
        raise ValueError(msg)
    return Figures(
        throughput=measurement.throughput,
        unit=measurement.unit,
        items=measurement.items,
        repeats=len(repeats),
        wall=wall,
        busy=busy,
        burst_throughput=measurement.items / min(r.burst_s for r in repeats),
        latency_p50_s=median(r.latency.p50_s for r in repeats),
        latency_p90_s=median(r.latency.p90_s for r in repeats),
        latency_p99_s=median(r.latency.p99_s for r in repeats),
        yardstick=repeats[0].yardstick,
        yardstick_s=median(r.yardstick_s for r in repeats),
        build_s=repeats[0].build_s,
        first_call_s=repeats[0].first_call_s,
        memory_device_bytes=_least(r.memory.device_bytes for r in repeats),
        memory_arena_bytes=_least(r.memory.arena_bytes for r in repeats),
        memory_process_bytes=_least(r.memory.process_bytes for r in repeats),
        batch_effective=measurement.batch_effective,
        memory_process_most_bytes=max(
            (b for r in repeats if (b := r.memory.process_bytes) is not None), default=None
        ),
        contended=_median(r.contended for r in repeats),
        threads_at_once=_median(r.at_once for r in repeats),
        copy_bandwidth=_median(r.copy_bandwidth for r in repeats),
        throttled=measurement.throttled,
        neighbours=measurement.neighbours or None,
        faults_per_batch=_median(
            sum(w.faults for w in r.windows) / sum(w.batches for w in r.windows) for r in repeats
        ),
    )


def _median(values: Iterable[float]) -> float | None:
    known = [v for v in values if math.isfinite(v)]
    return median(known) if known else None


def _axis(repeats: Sequence[Repeat], name: str) -> Axis | None:
    """The figures of one axis, ``wall`` or ``busy``."""
    seconds = [getattr(r, f"{name}_s") for r in repeats]
    if not seconds or None in seconds:
        return None
    ratios = [getattr(r, f"{name}_ratio") for r in repeats]
    logs = [math.log(r) for r in ratios if r is not None and r > 0]
    return Axis(
        seconds=median(seconds),
        ratio=math.exp(fmean(logs)) if logs else math.nan,
        spread_rel=stdev(logs) if len(logs) > 1 else 0.0,
        unrest_rel=_median(getattr(r, f"{name}_unrest_rel") for r in repeats),
    )


def _least(values: Iterable[int | None]) -> int | None:
    known = [v for v in values if v is not None]
    return min(known) if known else None


def record(
    key: Key,
    target: Target,
    model: ModelVersion,
    measurement: Measurement,
    parity: Parity,
    *,
    environment: Mapping[str, str],
    asked: Iterable[str] = (),
    commit: str,
) -> Record:
    """The record of a measurement.

    Args:
        key: what it is of.
        target: where it ran.
        model: the model scope.
        measurement: samples and facts.
        parity: of the outputs of the timed run.
        environment: of the measuring processes.
        asked: names of variables that a hook set; recorded besides ``SPEED_VARIABLES``.
        commit: git commit of the project, empty outside a repository.
    """
    observed = measurement.observed
    path = measurement.path or KernelPath(runtime=key.runtime, evidence="none")
    variables = {
        f"env.{name}": environment[name]
        for name in sorted({*SPEED_VARIABLES, *asked})
        if environment.get(name)
    }
    return Record(
        key=key,
        model=model,
        vendor=target.vendor,
        arch=target.arch,
        product=target.product,
        platform=target.platform,
        effective=observed.precision or effective_precision(path),
        toolchain={**_platform_facts(target), **observed.toolchain},
        options={**observed.options, **variables},
        providers=_providers(observed, path),
        threads=observed.threads,
        graph_breaks=observed.graph_breaks,
        compiled=observed.compiled,
        figures=figures(measurement),
        path=path,
        parity=parity,
        commit=commit,
        measured=datetime.now(timezone.utc).isoformat(timespec="seconds"),
    )


def _platform_facts(target: Target) -> dict[str, str]:
    """The driver; not the libraries that also see the device: the build tells its own."""
    return {name: value for name, value in target.facts.items() if name == "driver"}


def _providers(observed: Observed, path: KernelPath) -> dict[str, int]:
    if observed.providers:
        return dict(observed.providers)
    counts: dict[str, int] = {}
    for use in path.uses:
        counts[use.kernel.provider] = counts.get(use.kernel.provider, 0) + use.launches
    return counts


def version(
    facts: ModelFacts, conversion: Mapping[str, str], config: Mapping[str, str]
) -> ModelVersion:
    """The model scope of a record.

    Args:
        facts: of the model as the test handed it over.
        conversion: exporter, op-set and converter where it was converted.
        config: the training configuration the test gave.
    """
    return ModelVersion(
        kind=facts.kind,
        framework=facts.framework,
        opset=facts.opset,
        weights=facts.weights,
        tensors=facts.tensors,
        graph=facts.graph,
        parameters=facts.parameters,
        config={**config, **{f"conversion.{k}": v for k, v in conversion.items()}},
    )
