"""Where inside a model a build leaves its reference, looked for in a child process.

An ONNX model is cut behind one of its tensors, and what stands before the cut is built and computed
both ways: bisection finds a tensor that diverges although what it is computed from does not. It
keeps its own fusions; one across the cut is undone. A torch module gives what all its parts gave,
in one run.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pytest_portability import answers, onnx_graph, parity, subject, worker
from pytest_portability.models import Arrays, Model, describe
from pytest_portability.outputs import error_rel
from pytest_portability.runtimes import Request
from pytest_portability.worker import Job

MOST_CUTS = 48
"""Each costs a reference and a build; a bisection of 10,000 nodes takes 14."""


def first(job: Job, tolerance: float, weights: str = "") -> str:
    """Say which part of a model is the first whose output is not the reference's.

    Args:
        job: of the build that is not faithful.
        tolerance: allowed relative L2 error; more where rounding alone moves a part by more.
        weights: hash of those that the reference was computed with; empty if not known.

    Returns:
        One sentence.

    Raises:
        PortabilityError: a part of the model cannot be built or run by itself.
    """
    answers.doing("looking for the first node that diverges")
    built, source = worker.model_of(job), job.source.load()
    if weights and describe(source).weights != weights:
        return "what makes the model made other weights than for the reference: give it a seed"
    if built.kind == "torch":
        return _first_module(job, built, tolerance)
    cutter = _Cutter(built)
    # An exported module has other parts than the module: then the file is held against itself.
    right = _Cutter(source) if job.path is not None and source.kind == "onnx" else cutter
    try:
        return _Search(job, cutter, right, tolerance).sentence()
    except _Enough:
        return f"the first node that diverges was not found in {MOST_CUTS} cuts of the model"


def _run(job: Job, model: Model) -> Arrays:
    request = Request(
        model=model,
        handle=job.handle,
        platform=job.platform,
        # A model came quantised; its first parts may not be.
        precision="native" if job.precision == "int8" else job.precision,
        options=job.options,
        cache_dir=job.cache_dir,
    )
    with contextlib.closing(job.runtime.build(request)) as build:
        return build.predict(job.inputs)


def _failures(outputs: Arrays, reference: subject.Reference, tolerance: float) -> tuple[str, ...]:
    """What is wrong, by position: a part's output has no name of its own."""
    named = dict(zip(reference.outputs, outputs.values(), strict=True))
    differ = error_rel(named, reference.outputs)
    lost = [d.name for d in differ.outputs if d.elements and d.nonfinite == d.elements]
    floors = reference.floors_rel

    def allowed(name: str) -> float:
        return max(tolerance, parity.tolerance("fp32", floors.get(name, 0.0)))

    return (*differ.failures(allowed), *(f"output {name!r}: NaN or infinite" for name in lost))


# --- ONNX --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A tensor behind which a model can be cut.

    Attributes:
        op: type of the node that makes it.
        needs: names of the nearest places that it is computed from.
    """

    name: str
    op: str
    needs: tuple[str, ...]


class _Enough(Exception):
    """As many cuts as are worth their time."""


class _Search:
    """Looks for a place that diverges although what it needs does not."""

    def __init__(self, job: Job, built: _Cutter, right: _Cutter, tolerance: float) -> None:
        self._job = job
        self._built, self._right = built, right
        self._tolerance = tolerance
        both = {place.name for place in right.places}
        self._places = {place.name: place for place in built.places}
        self._known = {name: None for name in self._places if name in both}  # in order
        self._found: dict[str, str] = {}

    def sentence(self) -> str:
        last = next((name for name in self._built.ends if self._wrong(name)), None)
        if last is None:
            return "cut behind its outputs, the model agrees with itself on the CPU"
        while True:
            last = self._bisect([*self._before(last), last])
            wrong = [name for name in self._needs(last) if self._wrong(name)]
            if not wrong:
                break
            last = wrong[0]
        place = self._places[last]
        inputs = ", and what it is computed from does not" if self._needs(last) else ""
        return (
            f"first to diverge of {len(self._known)} nodes: {place.op} "
            f"({self._found[last]}){inputs}"
        )

    def _bisect(self, chain: Sequence[str]) -> str:
        """A member that diverges, unless it is the first behind one that does not."""
        low, high = -1, len(chain) - 1
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._wrong(chain[middle]) else (middle, high)
        return chain[high]

    def _before(self, name: str) -> list[str]:
        """Everything that a place is computed from, in order."""
        found: set[str] = set()
        pending = [name]
        while pending:
            new = set(self._places[pending.pop()].needs) - found
            found |= new
            pending += new
        return [known for known in self._known if known in found]

    def _needs(self, name: str) -> list[str]:
        """The nearest places before it that both models have."""
        found: set[str] = set()
        pending = [*self._places[name].needs]
        while pending:
            near = pending.pop()
            if near in self._known:
                found.add(near)
            else:
                pending += self._places[near].needs
        return [known for known in self._known if known in found]

    def _wrong(self, name: str) -> str:
        """What is wrong with the value at a place; empty if nothing is."""
        if name not in self._found:
            if len(self._found) >= MOST_CUTS:
                raise _Enough
            self._found[name] = self._compare(name)
        return self._found[name]

    def _compare(self, name: str) -> str:
        reference = subject.reference(self._right.cut(name), self._job.inputs)
        outputs = _run(self._job, self._built.cut(name))
        return "; ".join(_failures(outputs, reference, self._tolerance))


class _Cutter:
    """Cuts behind tensors of the main graph that hold floating-point numbers made of the inputs."""

    def __init__(self, model: Model) -> None:
        import onnx  # noqa: PLC0415 - heavy

        proto = model.value
        if model.path is not None and onnx_graph.external_files(proto):
            proto = onnx.load(str(model.path))
        self._proto = onnx.shape_inference.infer_shapes(proto)
        graph = self._proto.graph
        self._types = {
            value.name: value.type.tensor_type.elem_type
            for value in (*graph.value_info, *graph.input, *graph.output)
        }
        # Name of a tensor that depends on the inputs → the nearest places it is computed from.
        self._behind: dict[str, tuple[str, ...]] = dict.fromkeys(onnx_graph.inputs(graph), ())
        self.places = list(self._all(graph))
        # Of an output that is no floating-point number, what it is computed from.
        outputs = (self._behind.get(output.name, ()) for output in graph.output)
        self.ends = list(dict.fromkeys(place for places in outputs for place in places))

    def _all(self, graph: Any) -> Iterator[Place]:
        behind = self._behind
        for node in graph.node:
            made_of = [name for name in onnx_graph.reads(node) if name in behind]
            if not made_of:
                continue
            needs = tuple(dict.fromkeys(place for name in made_of for place in behind[name]))
            for name in filter(None, node.output):
                behind[name] = needs
                if self._is_float(name):
                    behind[name] = (name,)
                    yield Place(name=name, op=node.op_type, needs=needs)

    def _is_float(self, name: str) -> bool:
        from onnx import TensorProto  # noqa: PLC0415 - heavy

        floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)
        return self._types.get(name) in floats

    def cut(self, name: str) -> Model:
        """What computes this tensor."""
        return Model(kind="onnx", value=onnx_graph.cut(self._proto, name))


# --- torch -------------------------------------------------------------------------------------


def _first_module(job: Job, model: Model, tolerance: float) -> str:
    """In the order in which they ran; what runs between modules is told by the one behind it."""
    ran: list[tuple[str, str]] = []
    overwritten: list[int] = []
    tapped = replace(model, value=_tapped(model.value, ran, overwritten))
    reference = subject.reference(tapped, job.inputs)
    order = list(dict.fromkeys(ran))
    outputs = _run(job, tapped)
    if overwritten:
        return f"the module overwrites its input {min(overwritten)}: the next run starts from that"
    names = list(reference.outputs)
    whole = f"{type(model.value).__name__} as a whole"
    parts = [*(f"{kind} {name!r}" for name, kind in order), *[whole] * (len(names) - len(order))]
    for name, part in zip(names, parts, strict=True):
        one = replace(reference, outputs={name: reference.outputs[name]})
        output = dict(zip(names, outputs.values(), strict=True))[name]
        if wrong := _failures({name: output}, one, tolerance):
            return f"first to diverge of {len(order)} modules as they ran: {part} ({wrong[0]})"
    return "each of its modules agrees with itself on the CPU"


def _tensor(output: Any) -> Any:
    """The first floating-point tensor of what a module gave, None if there is none."""
    import torch  # noqa: PLC0415 - heavy

    while isinstance(output, (tuple, list)) and output:
        output = output[0]
    floats = isinstance(output, torch.Tensor) and output.is_floating_point()
    return output if floats else None


def _tapped(module: Any, ran: list[tuple[str, str]], overwritten: list[int]) -> Any:
    """The module, giving what each part without parts gave first, and then its own output.

    Args:
        module: in whatever mode each of its parts is.
        ran: takes name and class of the parts, in the order in which they ran.
        overwritten: takes the positions of inputs that are not what they were.
    """
    import torch  # noqa: PLC0415 - heavy

    class Tapped(torch.nn.Module):  # type: ignore[misc] # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(module)
            self.taken: dict[str, Any] = {}
            for name, part in self.inner.named_modules():
                if name and not any(part.children()):
                    part.register_forward_hook(functools.partial(self.take, name))

        def take(self, name: str, part: Any, _inputs: Any, output: Any) -> None:
            value = _tensor(output)
            if value is not None and name not in self.taken:
                self.taken[name] = value.clone()  # what comes next may write into it
                ran.append((name, type(part).__name__))

        def forward(self, *args: Any, **kwargs: Any) -> Any:
            self.taken = {}
            given = [a for a in (*args, *kwargs.values()) if isinstance(a, torch.Tensor)]
            before = [a.clone() for a in given]
            output = self.inner(*args, **kwargs)
            both = enumerate(zip(given, before, strict=True))
            overwritten.extend(i for i, (a, b) in both if not torch.equal(a, b))
            last = _tensor(output)
            return (*self.taken.values(), *([] if last is None else [last]))

    tapped = Tapped()
    tapped.training = module.training  # train() would put every part in the same mode
    Tapped.forward.__signature__ = inspect.signature(type(module).forward)  # type: ignore[attr-defined]
    return tapped
