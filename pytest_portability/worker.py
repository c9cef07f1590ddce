"""What a child process does: read a model, convert it, or measure one build of it. Facts go out."""

from __future__ import annotations

import contextlib
import logging
import pickle
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pytest_portability import convert, models, sensors, yardstick
from pytest_portability.errors import (
    BuildError,
    DoesNotFit,
    InputsError,
    ModelError,
    PortabilityError,
)
from pytest_portability.kernels import KernelPath
from pytest_portability.measure import Stopwatch
from pytest_portability.models import Arrays, Model, ModelFacts
from pytest_portability.outputs import error_rel
from pytest_portability.runtimes import Build, Request, Runtime, library, load
from pytest_portability.samples import Memory, Repeat, Sampling
from pytest_portability.targets import Absent, Device

Inputs = Mapping[str, Any] | Sequence[Any]
Predict = Callable[[Inputs], Arrays]
Metric = Callable[[Predict], float | Mapping[str, float]]

INPUT_SEED = 20261130
"""Seed of the generator given to ``inputs``: the same inputs on every machine, for ever."""


# --- discovery -------------------------------------------------------------------------------


def probe(package: str) -> tuple[tuple[Device, ...], tuple[Absent, ...]]:
    """Ask one platform library which devices it sees."""
    devices, absents = library(package).devices()
    return tuple(devices), tuple(absents)


def devices(runtime: Any) -> tuple[tuple[Device, ...], tuple[Absent, ...]]:
    """Ask a registered runtime that looks for its own devices."""
    found, absents = runtime.devices()
    return tuple(found), tuple(absents)


# --- the model and its reference -------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the test handed over, as files of pickles, so that children read it when they want to.

    Attributes:
        model: file of the pickled model, path or factory.
        inputs: file of the pickled ``(inputs, reference)``.
        name: the model's name, for messages.
    """

    model: Path
    inputs: Path
    name: str

    def load(self) -> Model:
        """Read the model in this process."""
        return models.load(_unpickle(self.model), name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model with its inputs at one batch size and what its outputs should be.

    Attributes:
        inputs: named arrays, in the model's order.
        inputs_digest: hash of the inputs.
        reference: outputs of the reference, by name.
        reference_name: what computed it.
        floor_rel: worst relative L2 difference between two arrangements of the reference.
    """

    facts: ModelFacts
    inputs: Arrays
    inputs_digest: str
    reference: Arrays
    reference_name: str
    floor_rel: float


def describe(source: Source, batch: int, fits: int) -> Subject:
    """Read the model, make its inputs and compute the CPU reference.

    Args:
        source: model and inputs of the test.
        batch: the item's batch, which ready arrays must have.
        fits: the batch to measure; smaller where the item's does not fit into memory.

    Raises:
        ModelError: the model cannot be read.
        InputsError: the inputs do not fit it, or making them raised.
    """
    model = source.load()
    facts = models.describe(model)
    given, own_reference = _unpickle(source.inputs)
    made = fits if callable(given) else batch
    arrays = models.bind(_make_inputs(given, made), facts, made, _torch_module(model))
    arrays = _cut(arrays, made, fits)
    if own_reference is not None:
        reference = _own_reference(own_reference, arrays, facts)
        if not callable(own_reference):
            reference = _cut(reference, batch, fits)
        name, floor = "given by the test", 0.0
    else:
        reference, name, floor = _reference(model, arrays)
    return Subject(
        facts=facts,
        inputs=arrays,
        inputs_digest=models.digest(arrays),
        reference=reference,
        reference_name=name,
        floor_rel=floor,
    )


def _cut(arrays: Arrays, batch: int, fits: int) -> Arrays:
    """The first ``fits`` samples of ready arrays."""
    if fits == batch:
        return arrays
    return {name: a[:fits] if a.shape[:1] == (batch,) else a for name, a in arrays.items()}


def _torch_module(model: Model) -> Any:
    return model.value if model.kind == "torch" else None


def _make_inputs(given: Any, batch: int) -> Inputs:
    if not callable(given):
        ready: Inputs = given
        return ready
    try:
        made: Inputs = given(batch, np.random.default_rng(INPUT_SEED))
    except PortabilityError:
        raise
    except Exception as exc:
        msg = f"inputs(batch={batch}, rng) raised {type(exc).__name__}: {exc} ({_where(exc)})"
        raise InputsError(msg) from exc
    return made


def _own_reference(given: Any, inputs: Arrays, facts: ModelFacts) -> Arrays:
    outputs = given(inputs) if callable(given) else given
    if isinstance(outputs, Mapping):
        return {str(name): np.asarray(value) for name, value in outputs.items()}
    many = isinstance(outputs, (list, tuple))
    values = list(outputs) if many else [outputs]
    names = [spec.name for spec in facts.outputs]
    if not names:
        names = [f"output_{i}" for i in range(len(values))] if many else ["output"]
    if len(names) != len(values):
        msg = f"reference= gives {len(values)} outputs, the model has {len(names)}: {names}"
        raise InputsError(msg)
    return {name: np.asarray(value) for name, value in zip(names, values, strict=True)}


def _reference(model: Model, inputs: Arrays) -> tuple[Arrays, str, float]:
    if model.kind == "torch":
        return _torch_reference(model, inputs)
    try:
        import onnxruntime as _  # noqa: F401, PLC0415 - only whether it is there
    except ImportError:
        return _onnx_reference(model, inputs)
    options: dict[str, Any] = {"graph_optimization_level": "ORT_DISABLE_ALL"}
    one, two = ({**options, "intra_op_num_threads": threads} for threads in (1, 2))
    reference = _run("onnxruntime.cpu", model, inputs, one)
    others = (
        _run("onnxruntime.cpu", model, inputs, two),
        _run("onnxruntime.cpu", model, _nudged(inputs), one),
    )
    floor = max(error_rel(other, reference).worst_rel for other in others)
    return reference, "onnxruntime.cpu in fp32 without optimiser", floor


def _nudged(inputs: Arrays) -> Arrays:
    """The inputs, every floating element moved to a neighbouring number of its type.

    What that does to the outputs is the model's own sensitivity to rounding, which no build in
    the same precision can be below.
    """
    rng = np.random.default_rng(INPUT_SEED)
    return {
        name: np.nextafter(a, np.where(rng.random(a.shape) < 0.5, -np.inf, np.inf).astype(a.dtype))
        if a.dtype.kind == "f"
        else a
        for name, a in inputs.items()
    }


def _onnx_reference(model: Model, inputs: Arrays) -> tuple[Arrays, str, float]:
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - heavy, rarely needed

    evaluator = ReferenceEvaluator(str(model.path) if model.path else model.value)
    outputs = evaluator.run(None, inputs)
    named = dict(zip(evaluator.output_names, map(np.asarray, outputs), strict=True))
    return named, "onnx.reference evaluator", 0.0


def _torch_reference(model: Model, inputs: Arrays) -> tuple[Arrays, str, float]:
    import copy  # noqa: PLC0415 - only here

    single = replace(model, value=copy.deepcopy(model.value).eval())
    narrow = _run("torch", single, inputs, {"num_threads": 1})
    try:
        double = replace(model, value=copy.deepcopy(single.value).double())
        wide = {
            name: a.astype(np.float64) if a.dtype.kind == "f" else a for name, a in inputs.items()
        }
        reference = _run("torch", double, wide, {})
    except (BuildError, DoesNotFit) as exc:
        logging.getLogger(__name__).warning("no fp64 reference: %s", exc)
        floor = error_rel(_run("torch", single, _nudged(inputs), {}), narrow).worst_rel
        return narrow, "torch eager on the CPU in fp32 (the module refused fp64)", floor
    # How far fp32 itself is from fp64 is the floor of every build in fp32.
    floor = error_rel(narrow, reference).worst_rel
    return reference, "torch eager on the CPU in fp64", floor


def _run(runtime: str, model: Model, inputs: Arrays, options: Mapping[str, Any]) -> Arrays:
    request = Request(model=model, handle="cpu", platform="cpu", options=options)
    with contextlib.closing(load(runtime).build(request)) as build:
        return build.predict(inputs)


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
            the device, so that the host's speed is all that is known.
        metric: the task metric, in the first repeat only.
        facts: of the target; ``uuid`` and ``pci`` say whose sensors to read.
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
    metric: Metric | None = None
    facts: Mapping[str, str] = field(default_factory=dict)


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
    # Yardstick and sensors first: their own memory must not count as the model's.
    fixed = yardstick.on_device(job.yardstick) if job.yardstick else yardstick.on_cpu()
    watch = sensors.Watch(job.platform, job.facts)
    resident = _Resident()
    request = Request(
        model=_model(job),
        handle=job.handle,
        platform=job.platform,
        precision=job.precision,
        options=job.options,
        cache_dir=job.cache_dir,
    )
    start = time.perf_counter()
    build = job.runtime.build(request)
    build_s = time.perf_counter() - start
    with contextlib.closing(build):
        build.stage(job.inputs)
        stopwatch = Stopwatch(build, fixed, job.sampling, on_cpu=job.platform == "cpu")
        watch.start()
        timing = stopwatch.run()
        seen = watch.stop()
        outputs = build.fetch()
        process_bytes = resident.growth_bytes()
        device_bytes = build.device_memory_bytes()
        again = build.predict(job.inputs)
        metrics = _metrics(job.metric, build, request.model)
        observed = build.observed()
    path, arena_bytes = _trace(job, request)
    memory = Memory(device_bytes=device_bytes, arena_bytes=arena_bytes, process_bytes=process_bytes)
    repeat = Repeat(
        windows=timing.windows,
        straight=timing.straight,
        build_s=build_s,
        first_call_s=timing.first_call_s,
        warmup_s=timing.warmup_s,
        steady=timing.steady,
        latency=timing.latency,
        memory=memory,
        yardstick=fixed.id,
        observed=observed,
        path=path,
        neighbours=timing.neighbours,
        sensors=seen,
    )
    return Outcome(repeat=repeat, outputs=outputs, again=again, metrics=metrics)


def _model(job: Job) -> Model:
    if job.path is not None:
        return models.load(job.path, name=job.source.name)
    return job.source.load()


def _trace(job: Job, request: Request) -> tuple[KernelPath | None, int | None]:
    if not job.sampling.trace:
        return None, None
    try:
        path = job.runtime.trace(request, job.inputs)
    except Exception as exc:  # noqa: BLE001 - the figures are good; only how they arose is unknown
        traceback.print_exc()
        caveat = f"the kernel path could not be taken: {type(exc).__name__}: {exc}"
        path = KernelPath(runtime=job.runtime.name, evidence="none", caveats=(caveat,))
    return path, getattr(job.runtime, "arena_peak_bytes", None)


def _metrics(metric: Metric | None, build: Build, model: Model) -> dict[str, float]:
    if metric is None:
        return {}
    facts = models.describe(model)

    def predict(inputs: Inputs) -> Arrays:
        return build.predict(models.bind(inputs, facts, None, _torch_module(model)))

    try:
        value = metric(predict)
    except PortabilityError:
        raise
    except Exception as exc:
        msg = f"metric raised {type(exc).__name__}: {exc} ({_where(exc)})"
        raise BuildError(msg) from exc
    named = value if isinstance(value, Mapping) else {"metric": value}
    try:
        return {str(name): float(figure) for name, figure in named.items()}
    except (TypeError, ValueError) as exc:
        msg = f"metric gave {value!r}; expected a number or a mapping from name to number"
        raise BuildError(msg) from exc


def _where(exc: BaseException) -> str:
    """The user's line that raised; functions that travelled by value have lost their file."""
    frame = traceback.extract_tb(exc.__traceback__)[-1]
    return f"in {frame.name}, line {frame.lineno}"


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


def _unpickle(path: Path) -> Any:
    try:
        return pickle.loads(path.read_bytes())
    except ImportError as exc:
        msg = (
            f"the model or its inputs cannot be read in the child process: {exc}. Make the module "
            "importable there, or define what is needed in the test's own file"
        )
        raise ModelError(msg) from exc


__all__ = [
    "Job",
    "Outcome",
    "Source",
    "Subject",
    "describe",
    "measure",
    "prepare",
    "probe",
]
