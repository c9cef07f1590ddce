"""The contract of a runtime, the names of the built-in ones, and their lazy loading."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from pytest_portability.errors import UsageError
from pytest_portability.kernels import KernelPath
from pytest_portability.models import Arrays, Model
from pytest_portability.targets import Absent, Device

PRECISIONS = ("native", "fp32", "tf32", "bf16", "fp16", "int8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a build is asked to be.

    Attributes:
        model: of a kind the runtime accepts.
        handle: the device, in the words of the runtime's own library (``Device.handle``).
        platform: ``cpu``, ``cuda``, … (``Target.platform``).
        precision: one of ``PRECISIONS``. A file converted to fp16 or bf16 is already converted.
        options: the user's options for this runtime; they win over the defaults below.
        cache_dir: where the runtime may keep compiled artefacts for the next repeat.
    """

    model: Model
    handle: str
    platform: str
    precision: str = "native"
    options: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a build is found to be; never what was asked for.

    Attributes:
        precision: the effective precision of the compute work, as in ``PRECISIONS``; empty if the
            runtime does not say before a trace.
        providers: who got how many nodes (or kernels), provider → count.
        asked_provider: the provider this runtime's name stands for; empty if it has none.
        threads: intra-op threads in force, None where the runtime does not say.
        options: options in force, name → value as text.
        toolchain: library → version that this build rests on.
        graph_breaks: None where the word has no meaning.
        compiled: False when a compiler declined and the model ran eagerly; None where meaningless.
        notes: fall-backs and warnings, one sentence each.
    """

    precision: str = ""
    providers: Mapping[str, int] = field(default_factory=dict)
    asked_provider: str = ""
    threads: int | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    toolchain: Mapping[str, str] = field(default_factory=dict)
    graph_breaks: int | None = None
    compiled: bool | None = None
    notes: tuple[str, ...] = ()


class Build(Protocol):
    """One executable of a model on one device. Arrays are the host's, owned by the caller."""

    def stage(self, inputs: Arrays) -> None:
        """Put one batch of inputs where ``launch`` finds it: on the device, outside the clock."""

    def launch(self) -> None:
        """Enqueue one inference of the staged batch; may return before the work is done."""

    def synchronize(self) -> None:
        """Return when every launched inference is done."""

    def fetch(self) -> Arrays:
        """The outputs of the last launched inference as new host arrays, names in model order."""

    def predict(self, inputs: Arrays) -> Arrays:
        """``stage``, ``launch``, ``synchronize``, ``fetch`` for other inputs, any batch size."""

    def observed(self) -> Observed:
        """The facts of this build; complete only after a first inference."""

    def threads(self) -> int | None:
        """Intra-op threads in force on a CPU, before any inference; None where it does not say."""

    def device_memory_bytes(self) -> int | None:
        """Peak device memory of the process's allocator since the build began, None on a CPU."""

    def close(self) -> None:
        """Free what the build holds."""


@runtime_checkable
class Runtime(Protocol):
    """An adapter that makes executables of models.

    Attributes:
        name: unique, such as ``onnxruntime.cpu``.
        family: selection marker, such as ``onnxruntime``.
        packages: import names worth preloading before a child is forked, or ``module:function``
            for what a library finds out once per process.
        kinds: model kinds it builds without conversion, ``("onnx",)`` or ``("torch",)``.
        converted: precisions it reaches only with an ONNX file already converted to them.
        environment: variables its server needs before the packages load, such as
            ``{"OMP_WAIT_POLICY": "PASSIVE"}``; the user's own environment wins.
    """

    name: str
    family: str
    packages: tuple[str, ...]
    kinds: tuple[str, ...]
    converted: tuple[str, ...]
    environment: Mapping[str, str]

    def supports(self, precision: str, platform: str) -> str:
        """Why this precision cannot be done on this platform; empty if it can (as far as known)."""

    def build(self, request: Request) -> Build:
        """Make an executable.

        Raises:
            BuildError: the runtime refused; its own words.
            Unsupported: this model or precision cannot be done here.
            DoesNotFit: out of memory.
            UsageError: an option that does not exist; the valid ones are listed.
        """

    def trace(self, request: Request, inputs: Arrays, runs: int = 5) -> KernelPath:
        """The kernel path, from a separate short profiled build; never while timing."""


class Library(Protocol):
    """A platform library that can be asked, in a child process, which devices it sees."""

    def devices(self) -> tuple[Sequence[Device], Sequence[Absent]]:
        """Devices found, and what is not there with its reason.

        Raises:
            RuntimeUnavailable: the library is not installed, or present but unusable.
        """


BUILT_IN = {
    "torch": "pytest_portability.runtimes.torch",
    "torch.compile": "pytest_portability.runtimes.torch_compile",
    "onnxruntime": "pytest_portability.runtimes.onnxruntime",
    "openvino": "pytest_portability.runtimes.openvino",
}
"""Runtime name (or family, before the first dot) → module with ``runtime(name) -> Runtime``."""

LIBRARIES = {
    "torch": "pytest_portability.runtimes.torch",
    "onnxruntime": "pytest_portability.runtimes.onnxruntime",
    "openvino": "pytest_portability.runtimes.openvino",
}
"""Package → module with ``LIBRARY: Library``."""


def load(name: str, registered: Sequence[Runtime] = ()) -> Runtime:
    """The runtime of that name; importing its package is left to ``build``.

    Args:
        name: such as ``torch.compile`` or ``onnxruntime.cuda``.
        registered: runtimes that a conftest or a plugin added; they win over built-in ones.

    Raises:
        UsageError: no such runtime; the known ones are listed.
    """
    for runtime in registered:
        if runtime.name == name:
            return runtime
    module = BUILT_IN.get(name) or BUILT_IN.get(name.partition(".")[0])
    if module is None:
        known = sorted([*BUILT_IN, *(r.name for r in registered)])
        msg = f"unknown runtime {name!r}; known: {', '.join(known)} (onnxruntime.<ep> for an EP)"
        raise UsageError(msg)
    found: Runtime = importlib.import_module(module).runtime(name)
    return found


def library(package: str) -> Library:
    """The library of that package, to be asked for devices in a child process."""
    found: Library = importlib.import_module(LIBRARIES[package]).LIBRARY
    return found
