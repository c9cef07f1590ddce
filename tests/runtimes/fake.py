"""A runtime in pure NumPy that behaves, or misbehaves, as a test wants it to."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from pytest_portability import onnx_graph
from pytest_portability.errors import BuildError, DoesNotFit, Unsupported, UsageError
from pytest_portability.kernels import Kernel, KernelPath, KernelUse
from pytest_portability.models import Arrays
from pytest_portability.runtimes import Observed, Request

PROVIDER = "FakeProvider"
CPU = "CPUExecutionProvider"


@dataclass(kw_only=True)
class FakeRuntime:
    """ONNX models by ``onnx.reference``, which is NumPy, with faults on demand.

    Attributes:
        asynchronous: ``launch`` only enqueues; the work is done by ``synchronize``.
        repeats: how often each inference is computed: 2 is a build half as fast.
        fails: ``build`` raises ``BuildError`` with these words.
        fits: largest batch that fits into memory.
        not_finite: every floating-point output is NaN.
        spoils: a tensor whose values are 10 % too large.
        hangs: the first inference never ends.
        dies: the first inference ends the process with this signal.
        untraced: what happens where the kernel path is taken: the process ``dies`` or ``hangs``.
        falls_back: op types that run on the CPU provider instead.
        refuses: precision → why it cannot be done.
        options: names of the options it accepts.
    """

    name: str = "fake"
    family: str = "fake"
    packages: tuple[str, ...] = ("numpy",)
    kinds: tuple[str, ...] = ("onnx",)
    converted: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    asynchronous: bool = False
    repeats: int = 1
    fails: str = ""
    fits: int | None = None
    not_finite: bool = False
    spoils: str = ""
    hangs: bool = False
    dies: int | None = None
    untraced: str = ""
    falls_back: tuple[str, ...] = ()
    refuses: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ("threads",)

    def supports(self, precision: str, platform: str) -> str:
        """Why this precision cannot be done."""
        del platform
        known = {"tf32", "fp16", "bf16", "int8"}
        default = "the fake computes in fp32" if precision in known else ""
        return self.refuses.get(precision, default)

    def build(self, request: Request) -> FakeBuild:
        """Make a build, or fail as configured."""
        for name in request.options:
            if name not in self.options:
                msg = f"unknown option {name!r} for {self.name}; valid: {', '.join(self.options)}"
                raise UsageError(msg)
        if reason := self.supports(request.precision, request.platform):
            raise Unsupported(reason)
        if self.fails:
            raise BuildError(self.fails)
        return FakeBuild(self, request)

    def trace(self, request: Request, inputs: Arrays, runs: int = 5) -> KernelPath:
        """One kernel per op type, of equal shares."""
        del inputs, runs
        if self.untraced == "dies":
            os.kill(os.getpid(), signal.SIGSEGV)
        elif self.untraced == "hangs":
            time.sleep(600)
        counts = onnx_graph.op_types(request.model.value)
        total = sum(counts.values()) or 1
        uses = tuple(
            KernelUse(
                kernel=Kernel(provider=self._who(op), op=op, precision="fp32", absorbs=(op,)),
                launches=n,
                share=n / total,
            )
            for op, n in counts.items()
        )
        return KernelPath(runtime=self.name, uses=uses, source=counts)

    def _who(self, op: str) -> str:
        return CPU if op in self.falls_back else PROVIDER

    def observed(self, request: Request) -> Observed:
        """The facts of any build of this runtime."""
        counts: Counter[str] = Counter()
        for op, n in onnx_graph.op_types(request.model.value).items():
            counts[self._who(op)] += n
        return Observed(
            precision="fp32",
            providers=dict(counts),
            asked_provider=PROVIDER,
            threads=1,
            options={name: str(value) for name, value in request.options.items()},
            toolchain={"fake": "1.0"},
        )


def _spoiled(proto: Any, tensor: str) -> Any:
    """A copy in which a tensor is made 10 % too large before anything reads it."""
    copied = onnx.ModelProto.FromString(proto.SerializeToString())
    nodes = []
    for node in copied.graph.node:
        nodes.append(node)
        if tensor in node.output:
            node.output[list(node.output).index(tensor)] = "right"
            nodes.append(onnx.helper.make_node("Mul", ["right", "more"], [tensor]))
    more = onnx.numpy_helper.from_array(np.array(1.1, np.float32), "more")
    graph = copied.graph
    made = onnx.helper.make_graph(
        nodes, graph.name, graph.input, graph.output, [*graph.initializer, more]
    )
    return onnx.helper.make_model(
        made, opset_imports=proto.opset_import, ir_version=proto.ir_version
    )


class FakeBuild:
    """An interpreter of one model."""

    def __init__(self, runtime: FakeRuntime, request: Request) -> None:
        model = request.model
        self._runtime = runtime
        self._facts = runtime.observed(request)
        given = _spoiled(model.value, runtime.spoils) if runtime.spoils else model.value
        whole = model.path and not runtime.spoils
        self._evaluator: Any = ReferenceEvaluator(str(model.path) if whole else given)
        self._staged: Arrays = {}
        self._pending = 0
        self._outputs: list[Any] | None = None

    def stage(self, inputs: Arrays) -> None:
        """Keep a copy of the inputs, as a device would."""
        batch = max((len(array) for array in inputs.values() if array.ndim), default=0)
        if self._runtime.fits is not None and batch > self._runtime.fits:
            msg = f"fake: out of memory: batch {batch} needs more than {self._runtime.fits}"
            raise DoesNotFit(msg)
        self._staged = {name: array.copy() for name, array in inputs.items()}

    def launch(self) -> None:
        """Enqueue one inference, or run it."""
        self._pending += 1
        if not self._runtime.asynchronous:
            self.synchronize()

    def synchronize(self) -> None:
        """Do the work that was enqueued."""
        if self._runtime.dies is not None:
            os.kill(os.getpid(), self._runtime.dies)
        if self._runtime.hangs:
            threading.Event().wait()
        for _ in range(self._pending * self._runtime.repeats):
            self._outputs = self._evaluator.run(None, self._staged)
        self._pending = 0

    def fetch(self) -> Arrays:
        """New arrays, NaN if configured."""
        self.synchronize()
        if self._outputs is None:
            msg = "fake: fetch() was called before launch()"
            raise BuildError(msg)
        arrays = [np.array(array) for array in self._outputs]
        if self._runtime.not_finite:
            arrays = [np.full_like(a, np.nan) if a.dtype.kind == "f" else a for a in arrays]
        return dict(zip(self._evaluator.output_names, arrays, strict=True))

    def predict(self, inputs: Arrays) -> Arrays:
        """Run other inputs."""
        kept, self._staged = self._staged, {}
        self.stage(inputs)
        self.launch()
        outputs = self.fetch()
        self._staged = kept
        return outputs

    def observed(self) -> Observed:
        """The facts of this build."""
        return self._facts

    def threads(self) -> int | None:
        """Threads of the pool for one operator."""
        return self._facts.threads

    def device_memory_bytes(self) -> int | None:
        """None: it lives on the CPU."""
        return None

    def close(self) -> None:
        """Forget the model."""
        self._evaluator = None
        self._staged = {}
