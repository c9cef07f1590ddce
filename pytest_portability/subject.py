"""What the test handed over, as a child process reads it: model, inputs, and what is right.

The reference is the same model on the CPU: torch in fp64, ONNX in fp32 without optimiser, because
ONNX Runtime's CPU provider has no fp64 kernel for Conv, LSTM, Gelu, Resize and more.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pytest_portability import answers, models
from pytest_portability.errors import (
    BuildError,
    DoesNotFit,
    InputsError,
    ModelError,
    PortabilityError,
)
from pytest_portability.models import Arrays, Model, ModelFacts
from pytest_portability.outputs import Differences, error_rel
from pytest_portability.runtimes import Request, load

Inputs = Mapping[str, Any] | Sequence[Any]

INPUT_SEED = 20261130
"""Seed of the generator given to ``inputs``: the same inputs on every machine, for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What the test handed over, as files of pickles, so that children read it when they want to.

    Attributes:
        model: file of the pickled model, path or factory.
        inputs: file of the pickled ``(inputs, reference)``.
        name: the model's name, for messages.
        written: time and size of the model's file: written anew under its name it is another one.
    """

    model: Path
    inputs: Path
    name: str
    written: tuple[int, int] = (0, 0)

    def load(self) -> Model:
        """Read the model in this process."""
        return models.load(unpickle(self.model), name=self.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a model's outputs should be.

    Attributes:
        outputs: by name.
        name: what computed them.
        floors_rel: output name → relative L2 error that rounding alone makes, from the reference
            run in another arrangement: other threads, inputs moved by one rounding, fp32 beside
            fp64.
    """

    outputs: Arrays
    name: str
    floors_rel: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model with its inputs at one batch size and what its outputs should be.

    Attributes:
        inputs: named arrays, in the model's order.
        reference: what the outputs should be, None where it could not be computed.
        trouble: why it could not.
    """

    facts: ModelFacts
    inputs: Arrays
    reference: Reference | None
    trouble: str = ""


def describe(source: Source, batch: int, fits: int) -> Subject:
    """Read the model, make its inputs and compute the CPU reference.

    Args:
        source: model and inputs of the test.
        batch: the item's batch, which ready arrays must have.
        fits: the batch to measure; smaller where the item's does not fit into memory.

    Raises:
        ModelError: the model cannot be read.
        InputsError: the inputs do not fit it, making them or the reference raised, or the
            reference gives no arrays.
        DoesNotFit: making the inputs ran out of memory.
    """
    answers.doing("reading the model")
    model = source.load()
    facts = models.describe(model)
    answers.doing("making its inputs")
    given, own_reference = unpickle(source.inputs)
    made = fits if callable(given) else batch
    arrays = models.bind(_make_inputs(given, made), facts, made, torch_module(model))
    arrays = _cut(arrays, made, fits)
    answers.doing("computing its reference")
    if own_reference is not None:
        outputs = _own_reference(own_reference, arrays, facts)
        if not callable(own_reference):
            outputs = _cut(outputs, batch, fits)
        own = Reference(outputs=outputs, name="given by the test")
        return Subject(facts=facts, inputs=arrays, reference=own)
    without = partial(Subject, facts=facts, inputs=arrays, reference=None)
    answers.leave(without())  # whatever becomes of the reference
    try:
        right = reference(model, arrays)
    except Exception as exc:  # noqa: BLE001 - the build can be measured without; why is said
        return without(trouble=untold(str(exc) or type(exc).__name__))
    return Subject(facts=facts, inputs=arrays, reference=right)


def untold(why: str) -> str:
    """What is said of a model whose reference could not be computed."""
    return f"no reference, so parity with it is not known: {why}; give reference="


def _cut(arrays: Arrays, batch: int, fits: int) -> Arrays:
    """The first ``fits`` samples of ready arrays."""
    if fits == batch:
        return arrays
    return {name: a[:fits] if a.shape[:1] == (batch,) else a for name, a in arrays.items()}


def torch_module(model: Model) -> Any:
    """The module whose ``forward`` names the inputs; None for an ONNX model."""
    return model.value if model.kind == "torch" else None


def _make_inputs(given: Any, batch: int) -> Inputs:
    if not callable(given):
        ready: Inputs = given
        return ready
    try:
        made: Inputs = given(batch, np.random.default_rng(INPUT_SEED))
    except (Exception, SystemExit) as exc:
        raise users_failure(exc, f"inputs(batch={batch}, rng)", InputsError) from exc
    return made


def users_failure(exc: BaseException, what: str, kind: type[PortabilityError]) -> PortabilityError:
    """Translate what the user's own function raised.

    Args:
        exc: the exception.
        what: the function, as the user knows it.
        kind: of error where it is neither one of ours nor out of memory.
    """
    if isinstance(exc, PortabilityError):
        return exc
    msg = f"{what} raised {models.raised(exc)}"
    unfit = isinstance(exc, MemoryError) or type(exc).__name__ == "OutOfMemoryError"  # torch's
    return DoesNotFit(msg) if unfit else kind(msg)


def _own_reference(given: Any, inputs: Arrays, facts: ModelFacts) -> Arrays:
    outputs = given
    if callable(given):
        try:
            outputs = given(inputs)
        except (Exception, SystemExit) as exc:
            raise users_failure(exc, "reference", InputsError) from exc
    if outputs is None or (isinstance(outputs, (Mapping, list, tuple)) and not outputs):
        msg = f"reference= gives no outputs: {outputs!r}"
        raise InputsError(msg)
    if isinstance(outputs, Mapping):
        return {str(name): _reference_array(str(name), value) for name, value in outputs.items()}
    many = isinstance(outputs, (list, tuple))
    values = list(outputs) if many else [outputs]
    names = [spec.name for spec in facts.outputs]
    if not names:
        names = [f"output_{i}" for i in range(len(values))] if many else ["output"]
    if len(names) != len(values):
        msg = f"reference= gives {len(values)} outputs, the model has {len(names)}: {names}"
        raise InputsError(msg)
    return {name: _reference_array(name, value) for name, value in zip(names, values, strict=True)}


def _reference_array(name: str, value: Any) -> models.Array:
    try:
        return np.asarray(value)
    except (RuntimeError, TypeError, ValueError) as exc:  # ragged lists; tensors on a device
        msg = f"reference= output {name!r} is no array: {type(exc).__name__}: {exc}"
        raise InputsError(msg) from exc


def reference(model: Model, inputs: Arrays) -> Reference:
    """Compute a model on the CPU as exactly as it can be, and how far rounding alone moves it.

    Raises:
        BuildError: it cannot be run there.
        Unsupported: likewise, or the library that would do it is not installed.
        DoesNotFit: memory ran out.
    """
    if model.kind == "torch":
        return _torch_reference(model, inputs)
    try:
        import onnxruntime as _  # noqa: F401, PLC0415 - only whether it is there
    except ImportError:
        return _onnx_reference(model, inputs)
    options: dict[str, Any] = {"graph_optimization_level": "ORT_DISABLE_ALL"}
    one, two = ({**options, "intra_op_num_threads": threads} for threads in (1, 2))
    plain = _run("onnxruntime.cpu", model, inputs, one)
    others = (
        _run("onnxruntime.cpu", model, inputs, two),
        _run("onnxruntime.cpu", model, _nudged(inputs), one),
    )
    floors = _floors(*(error_rel(other, plain) for other in others))
    name = "onnxruntime.cpu in fp32 without optimiser"
    return Reference(outputs=plain, name=name, floors_rel=floors)


def _floors(*differences: Differences) -> dict[str, float]:
    """The largest error of each output, of those that could be compared."""
    found: dict[str, float] = {}
    for d in (d for each in differences for d in each.outputs):
        found[d.name] = max(d.error_rel, found.get(d.name, 0.0))
    return found


def _nudged(inputs: Arrays) -> Arrays:
    """The inputs, every fractional element moved to a neighbouring number of its type.

    What that does to the outputs is the model's own sensitivity to rounding, which no build in
    the same precision can be below.
    """
    rng = np.random.default_rng(INPUT_SEED)

    def moved(a: models.Array) -> models.Array:
        up = np.where(rng.random(a.shape) < 0.5, -np.inf, np.inf).astype(a.dtype)
        # Whole numbers may be flags or indices, the largest ones masks: they carry no rounding.
        exact = (a == np.trunc(a)) | ~np.isfinite(a)
        return np.nextafter(a, np.where(exact, a, up))

    return {name: moved(a) if a.dtype.kind == "f" else a for name, a in inputs.items()}


def _onnx_reference(model: Model, inputs: Arrays) -> Reference:
    from onnx.reference import ReferenceEvaluator  # noqa: PLC0415 - heavy, rarely needed

    evaluator = ReferenceEvaluator(str(model.path) if model.path else model.value)
    outputs = evaluator.run(None, inputs)
    named = dict(zip(evaluator.output_names, map(np.asarray, outputs), strict=True))
    return Reference(outputs=named, name="onnx.reference evaluator")


def _torch_reference(model: Model, inputs: Arrays) -> Reference:
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
        floors = _floors(error_rel(_run("torch", single, _nudged(inputs), {}), narrow))
        name = "torch eager on the CPU in its own precision (it refused fp64)"
        return Reference(outputs=narrow, name=name, floors_rel=floors)
    # How far its own precision is from fp64 is the floor of every build in that precision.
    floors = _floors(error_rel(narrow, reference))
    return Reference(outputs=reference, name="torch eager on the CPU in fp64", floors_rel=floors)


def _run(runtime: str, model: Model, inputs: Arrays, options: Mapping[str, Any]) -> Arrays:
    request = Request(model=model, handle="cpu", platform="cpu", options=options)
    with contextlib.closing(load(runtime).build(request)) as build:
        return build.predict(inputs)


def written(model: Any) -> tuple[int, int]:
    """When a model's file was written, in ns, and its size; zeros where it is not a file."""
    try:
        found = Path(model).stat()
    except (TypeError, ValueError, OSError):  # what is wrong with a path is said by who reads it
        return 0, 0
    return found.st_mtime_ns, found.st_size


def unpickle(path: Path) -> Any:
    """Read what the parent pickled.

    Raises:
        ModelError: it needs a module that cannot be imported here.
    """
    try:
        return pickle.loads(path.read_bytes())
    except ImportError as exc:
        msg = (
            f"the model or its inputs cannot be read in the child process: {exc}. Make the module "
            "importable there, or define what is needed in the test's own file"
        )
        raise ModelError(msg) from exc
