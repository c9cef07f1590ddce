"""ONNX Runtime: one adapter for every execution provider."""

from __future__ import annotations

import contextlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from pytest_portability import onnx_graph
from pytest_portability.errors import (
    BuildError,
    DoesNotFit,
    ModelError,
    PortabilityError,
    Unsupported,
    UsageError,
)
from pytest_portability.kernels import KernelPath, KernelUse
from pytest_portability.models import Arrays, Model
from pytest_portability.runtimes import Observed, Request, loaded_libraries, tf32
from pytest_portability.runtimes import onnxruntime_layers as layers
from pytest_portability.runtimes import onnxruntime_library as library
from pytest_portability.runtimes import onnxruntime_profile as profile
from pytest_portability.runtimes import onnxruntime_providers as providers
from pytest_portability.runtimes.host_arrays import contiguous
from pytest_portability.runtimes.onnxruntime_library import LIBRARY
from pytest_portability.runtimes.onnxruntime_options import Settings, caching, in_force
from pytest_portability.runtimes.onnxruntime_session import (
    Choice,
    check_precision,
    choose,
    index_of,
    open_session,
    session_options,
)

# --- errors -------------------------------------------------------------------------------------

_NO_MEMORY = re.compile(
    r"failed to allocate memory|bad_alloc|out of memory|OOM\b|allocat\w+ failed|"
    r"insufficient memory|CUDA failure 2\b|CUBLAS_STATUS_ALLOC_FAILED|DXGI_ERROR_.*MEMORY|"
    r"storage size overflowed",
    re.IGNORECASE,
)
_TOO_NEW = re.compile(r"Opset \d+ is under development|Unsupported model IR version")


@contextlib.contextmanager
def _translated(runtime: str, action: str) -> Iterator[None]:
    try:
        yield
    except (PortabilityError, NameError, AttributeError):  # the latter two are our own mistakes
        raise
    except MemoryError as exc:
        msg = f"{runtime} could not {action}: out of memory ({exc})"
        raise DoesNotFit(msg) from exc
    except Exception as exc:
        words = library.words(exc)
        msg = f"{runtime} could not {action}: {words}"
        if _NO_MEMORY.search(str(exc)):
            raise DoesNotFit(msg) from exc
        if _TOO_NEW.search(words):
            advice = "install a newer onnxruntime, or export with an older op-set"
            msg = f"{msg}; {advice}"
            raise ModelError(msg) from exc
        raise BuildError(msg) from exc


# --- builds -------------------------------------------------------------------------------------


class OnnxRuntimeBuild:
    """A session.

    On the CPU ``launch`` runs the inference to its end. On a device whose memory ONNX Runtime can
    name (CUDA, CANN) inputs are copied by ``stage`` and outputs stay there until ``fetch``, so that
    ``launch`` only enqueues, unless a plugin provides the device: then each ``launch`` waits. With
    other devices ``launch`` waits and copies the outputs.
    """

    def __init__(
        self,
        provider: providers.Provider,
        session: Any,
        facts: Observed,
        index: int,
        run_options: Any,
    ) -> None:
        self._provider = provider
        self._session: Any = session
        self._facts = facts
        self._names = [output.name for output in session.get_outputs()]
        self._index = index
        self._run_options = run_options
        self._on_device = bool(provider.memory)
        self._feeds: Arrays = {}
        self._binding: Any = None
        self._outputs: list[Any] | None = None

    def stage(self, inputs: Arrays) -> None:
        """Put one batch of inputs where ``launch`` finds it."""
        self._feeds = {name: contiguous(array) for name, array in inputs.items()}
        if self._on_device:
            with self._errors("take the inputs"):
                self._binding = self._bound(self._feeds)

    def launch(self) -> None:
        """Enqueue one inference of the staged batch; on the CPU, run it."""
        with self._errors("run the model"):
            if self._binding is not None:
                self._session.run_with_iobinding(self._binding, self._run_options)
            else:
                self._outputs = self._session.run(None, self._feeds, self._run_options)

    def synchronize(self) -> None:
        """Return when every launched inference is done."""
        if self._binding is not None:
            with self._errors("run the model"):
                self._binding.synchronize_outputs()

    def fetch(self) -> Arrays:
        """The outputs of the last launched inference as new host arrays."""
        outputs = self._outputs
        if self._binding is not None:
            with self._errors("copy the outputs"):
                outputs = self._binding.copy_outputs_to_cpu()
        if outputs is None:
            msg = f"{self._provider.runtime}: fetch() was called before launch()"
            raise BuildError(msg)
        return {n: np.array(array) for n, array in zip(self._names, outputs, strict=True)}

    def predict(self, inputs: Arrays) -> Arrays:
        """Run other inputs of any batch size; the staged batch stays staged."""
        kept = (self._feeds, self._binding, self._outputs)
        try:
            self.stage(inputs)
            self.launch()
            self.synchronize()
            return self.fetch()
        finally:
            self._feeds, self._binding, self._outputs = kept

    def observed(self) -> Observed:
        """The facts of this build; what was asked for is not among them."""
        return self._facts

    def threads(self) -> int | None:
        """Threads of the pool for one operator."""
        return self._facts.threads

    def device_memory_bytes(self) -> int | None:
        """None: ONNX Runtime does not tell the peak of its device allocators."""
        return None

    def close(self) -> None:
        """Free the session."""
        self._session = self._binding = self._outputs = None
        self._feeds = {}

    def _bound(self, feeds: Arrays) -> Any:
        binding = self._session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        for name in self._names:
            binding.bind_output(name, self._provider.memory, self._index)
        binding.synchronize_inputs()
        return binding

    def _errors(self, action: str) -> contextlib.AbstractContextManager[None]:
        if self._session is None:
            msg = f"{self._provider.runtime}: the build is closed"
            raise BuildError(msg)
        return _translated(self._provider.runtime, action)


# --- the runtime --------------------------------------------------------------------------------


class OnnxRuntime:
    """The runtime ``onnxruntime.<ep>``.

    Attributes:
        arena_peak_bytes: of the last ``trace``: most bytes in use in the CPU arena during its
            first run, within a few per cent between processes. None before a trace, where the
            arena is switched off, or where another provider, whose memory it does not hold, took
            part.
    """

    family = "onnxruntime"
    kinds = ("onnx",)

    def __init__(self, short: str) -> None:
        provider = providers.named(short)
        self.name = f"onnxruntime.{short}"
        self.converted = provider.converted
        # Importing a build whose CUDA provider is a plugin counts the devices, by its source
        # (cuda/plugin/cuda_ep_factory.cc), and a process that did cannot fork children that use
        # them. Torch, where it is here, does the yardstick's work there, and loads CUDA's libraries
        # for both.
        self._cuda = provider.platform == "cuda"
        self.packages = ("numpy", "torch" if self._cuda else "onnxruntime")
        self.environment: Mapping[str, str] = {}
        self.arena_peak_bytes: int | None = None
        self._short = short

    def supports(self, precision: str, platform: str) -> str:  # the contract's
        """Why this precision cannot be done; empty if it can, as far as the provider tells."""
        return providers.named(self._short).supports(precision)

    def build(self, request: Request) -> OnnxRuntimeBuild:
        """Make a session.

        ``Observed.precision`` is ``fp32`` where every float of the graph is and the CPU provider
        has every node; elsewhere it is empty, as only a trace tells.

        Raises:
            BuildError: ONNX Runtime refused; its own words.
            ModelError: the op-set is newer than this ONNX Runtime.
            RuntimeUnavailable: no ONNX Runtime, provider or device of this name.
            Unsupported: this precision or kind of output cannot be done here.
            DoesNotFit: out of memory.
            UsageError: an option that does not exist; the valid ones are listed.
        """
        ort, choice, chosen = self._prepare(request)
        before = psutil.Process().num_threads()
        with _translated(self.name, "build the model"):
            options = partial(session_options, ort, chosen)
            session = open_session(ort, choice, request, chosen, options)
        threads = _pool(choice, chosen, psutil.Process().num_threads() - before)
        _check_outputs(self.name, session)
        facts = replace(_observe(ort, choice, request, chosen, session), threads=threads)
        return OnnxRuntimeBuild(
            choice.provider, session, facts, index_of(request), _run_options(ort, choice)
        )

    def trace(self, request: Request, inputs: Arrays, runs: int = 5) -> KernelPath:
        """The kernel path, from a separate profiled session: one warm-up run and ``runs`` more.

        ``source`` counts the nodes of the model as loaded; what a kernel ``absorbs`` is derived
        from the optimised graph, where the provider lets ONNX Runtime save it.
        """
        ort, choice, chosen = self._prepare(request)
        if request.cache_dir:
            Path(request.cache_dir).mkdir(parents=True, exist_ok=True)
        with (
            # There a child that dies leaves nothing for good.
            tempfile.TemporaryDirectory(dir=request.cache_dir or None) as folder,
            _translated(self.name, "trace the model"),
        ):
            left = Path(folder, "compiled")
            left.mkdir()
            keep = layers.settings(self._short, left, caching(choice.provider, request, chosen))
            session, saved = _profiled(ort, choice, request, chosen, Path(folder), keep=keep)
            feeds = {name: contiguous(array) for name, array in inputs.items()}
            for _ in range(runs + 1):
                session.run(None, feeds)
            events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
            del session  # another one may be opened, and the device's memory is not for two
            found = profile.read(events, _TRUSTED, _absorbs(request.model, saved), _COMPILING)
            traced = layers.Traced(
                request=request, inputs=inputs, runs=runs, options=chosen.provider, folder=left
            )
            told = layers.inside(self._short, found, traced)
        self.arena_peak_bytes = found.arena_peak_bytes
        return KernelPath(
            runtime=self.name,
            uses=tuple(_in_tf32(use, request, chosen) for use in told.uses),
            evidence="planned" if told.planned else "executed",
            source=onnx_graph.op_types(request.model.value),
            caveats=told.caveats,
        )

    def _prepare(self, request: Request) -> tuple[Any, Choice, Settings]:
        ort = library.load(cuda=self._cuda)
        if request.model.kind != "onnx":
            msg = f"{self.name} builds ONNX models; this is a {request.model.kind} model: export it"
            raise Unsupported(msg)
        choice = choose(ort, self._short, request)
        check_precision(choice, request)
        return ort, choice, in_force(choice.provider, request)


def _run_options(ort: Any, choice: Choice) -> Any:
    made = ort.RunOptions()
    if choice.provider.memory and choice.device is None:
        # A run would end by waiting for the device. ``synchronize_outputs`` waits later: a provider
        # that is compiled in has a Sync for it (CUDA's is cudaDeviceSynchronize). One that lists
        # its devices is a plugin, which may have none, and windows would end before their work. By
        # the sources; no plugin was seen on a device.
        made.add_run_config_entry("disable_synchronize_execution_providers", "1")
    return made


def _pool(choice: Choice, chosen: Settings, started: int) -> int | None:
    """Intra-op threads in force, None where they cannot be told from others.

    Args:
        choice: a provider of an accelerator starts threads of its own.
        chosen: says whether the session has a second pool, between operators.
        started: threads that opening the session started; the caller works in each pool too.
    """
    if choice.provider.short != "cpu":
        return None
    if chosen.session.get("execution_mode") != "parallel":
        return started + 1
    between = chosen.session.get("inter_op_num_threads")
    return started - (between - 1) + 1 if between else None


def _in_tf32(use: KernelUse, request: Request, chosen: Settings) -> KernelUse:
    provider = providers.of_ep(use.kernel.provider)
    hidden = partial(providers.runs_tf32, provider, index_of(request), chosen.provider)
    return replace(use, kernel=tf32.in_tf32(use.kernel, hidden))


def _check_outputs(runtime: str, session: Any) -> None:
    for value in (*session.get_inputs(), *session.get_outputs()):
        if not value.type.startswith("tensor("):
            msg = f"{runtime}: {value.name!r} is a {value.type}; only tensors can be compared"
            raise Unsupported(msg)


def _observe(
    ort: Any, choice: Choice, request: Request, chosen: Settings, session: Any
) -> Observed:
    provider = choice.provider
    notes: list[str] = []
    counts: Counter[str] = Counter()
    if hasattr(session, "get_provider_graph_assignment_info"):
        assigned = [
            (part.ep_name, node.op_type)
            for part in session.get_provider_graph_assignment_info()
            for node in part.get_nodes()
        ]
        counts = Counter(ep for ep, _ in assigned)
        other = Counter(f"{op} on {ep}" for ep, op in assigned if ep != provider.ep)
        notes += [f"{provider.ep} left {n} × {what}" for what, n in sorted(other.items())]
    elif session.get_providers() == ["CPUExecutionProvider"]:
        # Nobody else is in the session, so nobody else got a node.
        counts["CPUExecutionProvider"] = sum(onnx_graph.op_types(request.model.value).values())
    else:
        notes.append(f"onnxruntime {ort.__version__} does not tell which provider got which node")
    # The same ONNX Runtime computes with whichever of CUDA's libraries it finds.
    found = loaded_libraries.versions() if provider.platform == "cuda" else {}
    toolchain = {"onnxruntime": ort.__version__, **found}
    if choice.device is not None:
        version = choice.device.ep_metadata.get("version", "")
        toolchain[f"onnxruntime {provider.short} provider"] = version
    return Observed(
        precision=_known_precision(request.model, counts, chosen),
        providers=dict(sorted(counts.items())),
        asked_provider=provider.ep,
        options=chosen.as_text(),
        toolchain={name: version for name, version in toolchain.items() if version},
        notes=tuple(notes),
    )


def _known_precision(model: Model, counts: Counter[str], chosen: Settings) -> str:
    """What the CPU provider must compute in, if the graph leaves it no choice."""
    fast = any("fastmath" in name and value == "1" for name, value in chosen.config.items())
    if set(counts) != {"CPUExecutionProvider"} or fast or onnx_graph.quantised(model.value):
        return ""
    return "fp32" if onnx_graph.float_types(model.value) == {"FLOAT"} else ""


# --- traces -------------------------------------------------------------------------------------

_SAVE_LIMIT_BYTES = 512 * 2**20
"""Larger models are not saved again to learn which nodes were fused."""

_TRUSTED = [provider.ep for provider in providers.TABLE if provider.synchronous]
_COMPILING = [provider.ep for provider in providers.TABLE if provider.compiles]


def _profiling_options(ort: Any, chosen: Settings, folder: Path, target: Path | None) -> Any:
    options = session_options(ort, chosen)
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    options.log_severity_level = 3  # it warns that the saved model is for this hardware only
    if target is not None:
        options.optimized_model_filepath = str(target)
    return options


def _profiled(
    ort: Any,
    choice: Choice,
    request: Request,
    chosen: Settings,
    folder: Path,
    *,
    keep: Mapping[str, str] | None,
) -> tuple[Any, Path | None]:
    """A profiling session and the optimised model, None where it cannot be saved."""
    saved = folder / "optimised.onnx" if _bytes(request.model) <= _SAVE_LIMIT_BYTES else None
    for target in (saved, None):
        options = partial(_profiling_options, ort, chosen, folder, target)
        try:
            return open_session(ort, choice, request, chosen, options, keep=keep), target
        except Exception as exc:  # the second turn is rare
            # A compiling provider's nodes cannot be saved, and nothing tells so beforehand.
            if target is None or "compiled nodes" not in str(exc):
                raise
    raise AssertionError


def _bytes(model: Model) -> int:
    if model.path is None:
        return int(model.value.ByteSize())
    files = {model.path, *(model.path.parent / f for f in onnx_graph.external_files(model.value))}
    return sum(file.stat().st_size for file in files)


def _absorbs(model: Model, saved: Path | None) -> dict[tuple[str, str], tuple[str, ...]]:
    if saved is None or not saved.is_file():
        return {}
    import onnx

    return profile.fused(model.value, onnx.load(str(saved), load_external_data=False))


def runtime(name: str) -> OnnxRuntime:
    """The runtime of that name.

    Raises:
        UsageError: no execution provider in the name.
    """
    short = name.partition(".")[2]
    if not short:
        known = ", ".join(f"onnxruntime.{provider.short}" for provider in providers.TABLE)
        msg = f"runtime {name!r} names no execution provider; known: {known}"
        raise UsageError(msg)
    return OnnxRuntime(short)


__all__ = ["LIBRARY", "OnnxRuntime", "OnnxRuntimeBuild", "runtime"]
