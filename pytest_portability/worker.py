"""What a child process does: look for devices, convert a model, or measure one build of it."""

from __future__ import annotations

import contextlib
import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from pytest_portability import answers, convert, models, sensors, targets, yardstick
from pytest_portability.errors import BuildError
from pytest_portability.kernels import KernelPath
from pytest_portability.measure import Stopwatch
from pytest_portability.models import Arrays, Model
from pytest_portability.runtimes import Build, Request, Runtime, library
from pytest_portability.samples import Memory, Repeat, Sampling
from pytest_portability.subject import Inputs, Source, torch_module, users_failure
from pytest_portability.targets import Absent, Device
from pytest_portability.yardstick import Yardstick

Predict = Callable[[Inputs], Arrays]
Metric = Callable[[Predict], float | Mapping[str, float]]


# --- discovery -------------------------------------------------------------------------------


def probe(package: str) -> tuple[tuple[Device, ...], tuple[Absent, ...]]:
    """Ask one platform library which devices it sees."""
    devices, absents = library(package).devices()
    return tuple(devices), tuple(absents)


def devices(runtime: Any) -> tuple[tuple[Device, ...], tuple[Absent, ...]]:
    """Ask a registered runtime that looks for its own devices."""
    found, absents = runtime.devices()
    return tuple(found), tuple(absents)


# --- conversion ------------------------------------------------------------------------------


def prepare(
    source: Source, inputs: Arrays, precision: str, out: Path, opset: int
) -> dict[str, str]:
    """Make the ONNX file a runtime needs from a torch module, or one of another precision.

    Args:
        source: a torch module or an ONNX model.
        inputs: one batch, for the exporter to trace with.
        precision: ``fp16`` or ``bf16`` converts; anything else keeps the precision.
        out: the file to write.
        opset: op-set to export to.

    Returns:
        Facts: exporter, op-set, converter.
    """
    answers.doing("converting the model")
    model = source.load()
    facts: dict[str, str] = {}
    path = model.path
    if model.kind == "torch":
        path = out
        facts |= convert.export(model.value, inputs, out, opset=opset)
    elif path is None:
        import onnx  # noqa: PLC0415 - heavy

        path = out
        onnx.save(model.value, str(out))
    if precision in {"fp16", "bf16"}:
        facts |= convert.to_precision(path, precision, out)
    return facts


# --- measuring -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One repeat.

    Attributes:
        source: the model; ``path`` wins where it was converted.
        path: a converted ONNX file, None to build from the source itself.
        yardstick: torch's name of the accelerator; empty on a CPU, and where torch does not reach
            the device, so that the runtime itself has to do the yardstick's work.
        yardstick_threads: of what this repeat will be held against; 0 is as many as the build is
            seen to keep busy.
        metric: the task metric, in the first repeat only.
        address: of the target; ``uuid`` and ``pci`` say whose sensors to read.
    """

    source: Source
    path: Path | None
    runtime: Runtime
    handle: str
    platform: str
    precision: str
    options: Mapping[str, Any]
    inputs: Arrays
    sampling: Sampling
    cache_dir: str
    yardstick: str = ""
    yardstick_threads: int = 0
    metric: Metric | None = None
    address: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one repeat found.

    Attributes:
        outputs: of the last inference of the timed run.
        again: the same from one more inference of the same build, to see whether it repeats.
    """

    repeat: Repeat
    outputs: Arrays
    again: Arrays
    metrics: Mapping[str, float]


def measure(job: Job) -> Outcome:
    """Build, time, and take outputs, task metric and (if sampled) the kernel path."""
    outcome, request = _timed(job)
    if not job.sampling.trace:
        return outcome
    answers.leave(outcome)  # profilers crash and hang; what was measured by then is good
    path, arena_bytes = _trace(job, request)
    memory = replace(outcome.repeat.memory, arena_bytes=arena_bytes)
    return replace(outcome, repeat=replace(outcome.repeat, path=path, memory=memory))


def _timed(job: Job) -> tuple[Outcome, Request]:
    # Sensors and a device's yardstick first: their own memory must not count as the model's.
    on_cpu = job.platform == "cpu"
    fixed = None if on_cpu else _yardstick(job)
    watch = sensors.Watch(job.platform, job.address)
    resident = _Resident()
    request = Request(
        model=model_of(job),
        handle=job.handle,
        platform=job.platform,
        precision=job.precision,
        options=job.options,
        cache_dir=job.cache_dir,
    )
    answers.doing("building the model")
    start = time.perf_counter()
    build = job.runtime.build(request)
    build_s = time.perf_counter() - start
    with contextlib.closing(build):
        build.stage(job.inputs)

        def fixed_for(seen: int) -> Yardstick:
            return fixed or yardstick.on_cpu(_threads(build, job.yardstick_threads or seen))

        stopwatch = Stopwatch(build, fixed_for, job.sampling, on_cpu=on_cpu)
        answers.doing("timing the build")
        watch.start()
        timing = stopwatch.run()
        seen = watch.stop()
        answers.doing("taking its outputs")
        outputs = build.fetch()
        process_bytes = resident.growth_bytes()
        # A runtime that does not tell keeps what it took: what is held now is the most it held.
        told = build.device_memory_bytes()
        device_bytes = seen.grown_bytes if told is None else told
        again = build.predict(job.inputs)
        answers.doing("computing the task metric")
        metrics = _metrics(job.metric, build, request.model)
        observed = build.observed()
    bandwidth = yardstick.copy_bandwidth() if on_cpu else math.nan
    repeat = Repeat(
        windows=timing.windows,
        straight=timing.straight,
        build_s=build_s,
        first_call_s=timing.first_call_s,
        warmup_s=timing.warmup_s,
        steady=timing.steady,
        latency=timing.latency,
        memory=Memory(device_bytes=device_bytes, process_bytes=process_bytes),
        yardstick=timing.yardstick,
        observed=observed,
        neighbours=timing.neighbours,
        at_once=timing.at_once,
        copy_bandwidth=bandwidth,
        sensors=seen,
    )
    return Outcome(repeat=repeat, outputs=outputs, again=again, metrics=metrics), request


def _threads(build: Build, known: int) -> int:
    """Of the yardstick: as known, else of the build; one that does not say is taken to use all."""
    usable = targets.usable_cores()
    return min(known or build.threads() or usable, usable, yardstick.MOST_THREADS)


def _yardstick(job: Job) -> Yardstick:
    if job.yardstick:
        return yardstick.on_device(job.yardstick)
    model, inputs = yardstick.node()
    request = Request(model=model, handle=job.handle, platform=job.platform)
    build = job.runtime.build(request)
    build.stage(inputs)
    name, toolchain = job.runtime.name, build.observed().toolchain
    # The package, and a plugin of it that does the work. A registered runtime need not have an
    # entry of its family's name: then it is told by its own name, and an update of it is not seen.
    versions = [v for key, v in toolchain.items() if key.partition(" ")[0] == job.runtime.family]
    return yardstick.on_build(build, " ".join([name, *versions]))


def model_of(job: Job) -> Model:
    """What the job builds: the converted file, or the test's own model."""
    if job.path is not None:
        return models.load(job.path, name=job.source.name)
    return job.source.load()


def _trace(job: Job, request: Request) -> tuple[KernelPath, int | None]:
    answers.doing("taking the kernel path")
    try:
        path = job.runtime.trace(request, job.inputs)
    except Exception as exc:  # noqa: BLE001 - the figures are good; only how they arose is unknown
        traceback.print_exc()
        path = no_path(job, f"{type(exc).__name__}: {exc}")
    return path, getattr(job.runtime, "arena_peak_bytes", None)


def no_path(job: Job, why: str) -> KernelPath:
    """A kernel path of which nothing is known but the reason."""
    caveat = f"the kernel path could not be taken: {why}"
    return KernelPath(runtime=job.runtime.name, evidence="none", caveats=(caveat,))


def _metrics(metric: Metric | None, build: Build, model: Model) -> dict[str, float]:
    if metric is None:
        return {}
    facts = models.describe(model)

    def predict(inputs: Inputs) -> Arrays:
        return build.predict(models.bind(inputs, facts, None, torch_module(model)))

    try:
        value = metric(predict)
    except (Exception, SystemExit) as exc:
        raise users_failure(exc, "metric", BuildError) from exc
    named = value if isinstance(value, Mapping) else {"metric": value}
    figures: dict[str, float] = {}
    for name, figure in named.items():
        try:
            figures[str(name)] = float(figure)
        except OverflowError as exc:
            msg = f"metric {str(name)!r} is too large for a float; a task metric must be finite"
            raise BuildError(msg) from exc
        except (TypeError, ValueError) as exc:
            msg = f"metric gave {value!r}; expected a number or a mapping from name to number"
            raise BuildError(msg) from exc
        if not math.isfinite(figures[str(name)]):
            msg = f"metric {str(name)!r} is {figures[str(name)]}; a task metric must be finite"
            raise BuildError(msg)
    return figures


class _Resident:
    """Growth of this process's resident memory from now to its peak."""

    def __init__(self) -> None:
        # Linux resets the peak on request; elsewhere only what is resident later is known.
        self._resets = False
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
            self._resets = True
        self._before = psutil.Process().memory_info().rss

    def growth_bytes(self) -> int:
        now: int = psutil.Process().memory_info().rss
        if self._resets:
            for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
                if line.startswith("VmHWM:"):
                    now = int(line.split()[1]) * 1024
        return max(0, now - self._before)
