"""The torch.compile runtime: whether a module really was compiled, and into which kernels."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_portability.errors import Unsupported, UsageError
from pytest_portability.kernels import KernelPath
from pytest_portability.models import Arrays
from pytest_portability.runtimes import Observed, Request
from pytest_portability.runtimes.tf32 import in_tf32
from pytest_portability.runtimes.torch import (
    ENVIRONMENT,
    ModuleBuild,
    failure,
    times_of_ops,
)
from pytest_portability.runtimes.torch_inductor import (
    Introspection,
    calls_of,
    import_compiler,
    introspection,
    uses_of_calls,
)
from pytest_portability.runtimes.torch_ops import (
    executed_ops,
    kernel_times,
    source_of,
    uses_of,
)
from pytest_portability.runtimes.torch_settings import (
    OPTIONS,
    Option,
    check_options,
    is_flag,
    refusal,
)

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_COMPILE: Mapping[str, Option] = {
    "backend": Option(valid="a backend's name", accepts=lambda value: isinstance(value, str)),
    "dynamic": Option(valid="true or false", accepts=is_flag),
    "fullgraph": Option(valid="true or false", accepts=is_flag),
    "mode": Option(valid=", ".join(map(repr, _MODES)), accepts=lambda value: value in _MODES),
    "options": Option(
        valid="a table of inductor options", accepts=lambda value: isinstance(value, Mapping)
    ),
}
KNOWN: Mapping[str, Option] = dict(sorted({**OPTIONS, **_COMPILE}.items()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """What the compiler did in this process since its counters were cleared.

    Attributes:
        frames: frames that dynamo took up, recompilations included.
        frames_ok: those it finished.
        graphs: graphs handed to the backend.
        calls: operator calls in these graphs.
        breaks: reason of a graph break → how often.
        failures: why frames were given up and ran eagerly, one sentence each.
    """

    frames: int
    frames_ok: int
    graphs: int
    calls: int
    breaks: Mapping[str, int]
    failures: tuple[str, ...]

    @property
    def really(self) -> bool:
        """Everything that was taken up was compiled, and something was."""
        whole = self.frames > 0 and self.frames_ok == self.frames
        return whole and self.graphs >= 1 and not self.failures

    @property
    def split(self) -> int:
        """Graph breaks: those that split a graph, and those that gave up a frame."""
        given_up = 0 if self.really else sum(self.breaks.values())
        return max(0, self.graphs - 1, given_up)

    @property
    def partly(self) -> bool:
        """Something was compiled. A graph break in a loop gives up the frame, not what it calls."""
        return self.graphs >= 1 and self.frames_ok >= 1


def compiled_facts() -> Compiled:
    """Read dynamo's counters."""
    from torch._dynamo.utils import counters, get_compilation_metrics

    metrics = [metric for metric in get_compilation_metrics() if metric.fail_type]
    failures = (f"{m.co_name}: {m.fail_type}: {_line(m.fail_reason, 2)}" for m in metrics)
    breaks: Counter[str] = Counter()
    for reason, n in counters["graph_break"].items():
        breaks[_line(reason)] += n
    return Compiled(
        frames=int(counters["frames"]["total"]),
        frames_ok=int(counters["frames"]["ok"]),
        graphs=int(counters["stats"]["unique_graphs"]),
        calls=int(counters["stats"]["calls_captured"]),
        breaks=dict(breaks),
        failures=tuple(dict.fromkeys(failures)),
    )


def _line(text: Any, lines: int = 1) -> str:
    return " ".join(line.strip() for line in str(text).strip().splitlines()[:lines])


def _forget() -> None:
    """Clear compiled code and counters: they belong to code objects, so builds would share them."""
    import torch._dynamo as dynamo
    from torch._dynamo.utils import clear_compilation_metrics, counters

    dynamo.reset()
    counters.clear()
    clear_compilation_metrics()


class CompiledBuild(ModuleBuild):
    """A module compiled by ``torch.compile``; the compiler runs inside the first launch."""

    def __init__(self, request: Request, seen: Introspection, *, caches: bool = True) -> None:
        """Prepare the compilation.

        Args:
            request: what to build.
            seen: where the compiler's own account of it goes.
            caches: whether a warm cache may be used.

        Raises:
            Unsupported: no C++ compiler, which inductor needs.
        """
        torch = import_compiler()
        self.backend = str(request.options.get("backend", "inductor"))
        self.first: Compiled | None = None  # what the first launch compiled
        self._introspection = introspection(seen, caches=caches)
        self._frames_elsewhere = 0
        asked = {name: value for name, value in request.options.items() if name in _COMPILE}
        super().__init__(request, wrap=lambda module: torch.compile(module, **asked))
        try:
            self.compiler = _compiler(torch, self.device) if self.backend == "inductor" else ""
        except Unsupported:
            self.close()
            raise
        if request.cache_dir:
            self._settings.enter_context(_environment("TORCHINDUCTOR_CACHE_DIR", request.cache_dir))
        _forget()

    def launch(self) -> None:
        """Enqueue one inference of the staged batch; the first one compiles."""
        if self.first is not None:
            super().launch()
            return
        with self._introspection:
            super().launch()
        self.first = compiled_facts()

    def predict(self, inputs: Arrays) -> Arrays:
        """Run other inputs; compiling for another batch size here is no fault of the timed runs."""
        before = compiled_facts().frames if self.first else 0
        outputs = super().predict(inputs)
        if before:
            self._frames_elsewhere += compiled_facts().frames - before
        return outputs

    def observed(self) -> Observed:
        """The facts of this build; those of the compiler only after a first launch."""
        now = compiled_facts()
        found = super().observed()
        options = {name: str(self.request.options.get(name, "")) for name in _COMPILE}
        options = {name: text for name, text in options.items() if text}
        found = dataclasses.replace(
            found,
            options=dict(sorted({**found.options, **options, "backend": self.backend}.items())),
            toolchain={**found.toolchain, **_toolchain(self.compiler)},
            asked_provider=self.backend,
        )
        return found if self.first is None else self._with_facts(found, self.first, now)

    def close(self) -> None:
        """Free what the build holds, compiled code too."""
        super().close()
        _forget()

    def _with_facts(self, found: Observed, first: Compiled, now: Compiled) -> Observed:
        recompiled = now.frames - first.frames - self._frames_elsewhere
        compiled = first.really and (recompiled == 0 or now.really)
        partly = first.partly and not first.really and recompiled == 0
        notes = [f"graph break ×{n}: {reason}" for reason, n in first.breaks.items()]
        if recompiled > 0:
            notes.append(f"recompiled {recompiled} × after the first call")
        if not compiled:
            why = "; ".join(now.failures) or _why_eager(now)
            whole = "torch.compile declined and the module ran eagerly"
            part = "torch.compile left part of the module eager"
            notes.append(f"{part if partly else whole}: {why}")
        return dataclasses.replace(
            found,
            providers={self.backend: first.calls} if compiled or partly else found.providers,
            graph_breaks=first.split,
            compiled=compiled,
            notes=(*found.notes, *notes),
        )


def _why_eager(facts: Compiled) -> str:
    if facts.frames == 0:
        return "no frame was compiled (stance force_eager, torch.compiler.disable or disable=True)"
    return f"{facts.frames_ok} of {facts.frames} frames were compiled, in {facts.graphs} graphs"


def _compiler(torch: Any, device: Any) -> str:
    """The C++ compiler that inductor finds; empty where it needs none of its own.

    Raises:
        Unsupported: none works.
    """
    if device.type != "cpu":  # triton brings its own and calls the host compiler only for stubs
        return ""
    from torch._inductor.cpp_builder import get_cpp_compiler

    try:
        return str(get_cpp_compiler())
    except RuntimeError as exc:
        msg = (
            "torch.compile needs a working C++ compiler for the CPU and there is none; install "
            f"g++ or clang++, or name one in CXX ({type(exc).__name__}: {exc})"
        )
        raise Unsupported(msg) from exc


_TRITON = (
    *("triton", "triton-rocm", "triton-xpu"),
    *("pytorch-triton", "pytorch-triton-rocm", "pytorch-triton-xpu"),
)
"""Packages that bring it: of releases, of nightly builds, and of vendors."""


def _toolchain(compiler: str) -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in _TRITON:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found["triton"] = metadata.version(name)
    if compiler:
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            done = subprocess.run(
                [compiler, "--version"], capture_output=True, text=True, timeout=10, check=True
            )
            found["c++"] = _line(done.stdout)
    return found


@contextlib.contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


class CompileRuntime:
    """A module compiled by ``torch.compile``, with inductor unless another backend is asked for."""

    name = "torch.compile"
    family = "torch"
    packages = (
        "torch",
        "torch._inductor.compile_fx",
        "pytest_portability.runtimes.torch_inductor:learn_instruction_sets",
    )
    kinds = ("torch",)
    converted: tuple[str, ...] = ()
    environment: Mapping[str, str] = ENVIRONMENT

    def __init__(self) -> None:
        self._seen: Introspection | None = None

    def supports(self, precision: str, platform: str) -> str:
        """Why this precision cannot be done on this platform; empty if it can, as far as known."""
        return refusal(precision, platform)

    def build(self, request: Request) -> CompiledBuild:
        """Make an executable; see ``Runtime.build`` for what it raises."""
        check_options(request.options, KNOWN, self.name)
        if {"mode", "options"} <= set(request.options):
            msg = f"runtime {self.name!r} takes 'mode' or 'options', not both"
            raise UsageError(msg)
        self._check_inductor_options(request.options.get("options", {}))
        self._seen = _account(request)
        return CompiledBuild(request, self._seen)

    def trace(self, request: Request, inputs: Arrays, runs: int = 5) -> KernelPath:
        """Kernels of one run, from the last compilation in this process that was not cached.

        A warm cache hides what was fused: if the last build hit one, this compiles once more and
        bypasses every cache, which takes 6 to 25 s.
        """
        caches = self._seen is not None and bool(self._seen.graphs)
        own = _account(request)
        build = CompiledBuild(request, own, caches=caches)
        try:
            build.stage(inputs)
            build.launch()
            build.synchronize()
            return self._path(build, self._seen if caches and self._seen else own, runs)
        except Exception as exc:
            raise failure(exc, f"trace the module on {request.handle}") from exc
        finally:
            build.close()

    def _path(self, build: CompiledBuild, seen: Introspection, runs: int) -> KernelPath:
        ops = executed_ops(build.run_eagerly)
        source = source_of(ops)
        if not (build.first and build.first.partly):
            times = times_of_ops(build, ops, runs)
            note = "torch.compile declined; these are the operators of the eager run"
            return KernelPath(
                runtime=self.name,
                uses=uses_of(ops, times.shares, build.is_tf32),
                source=source,
                busy_s=times.busy_s,
                caveats=(note, *times.caveats),
            )
        calls = [
            dataclasses.replace(call, kernel=in_tf32(call.kernel, build.is_tf32))
            for call in calls_of(seen.folder, seen.graphs)
        ]
        if not calls:
            note = f"backend {build.backend!r} does not tell its kernels"
            return KernelPath(runtime=self.name, evidence="none", source=source, caveats=(note,))
        times = kernel_times(
            build.launch,
            build.synchronize,
            names={call.timed for call in calls},
            device=build.device.type,
            runs=runs,
        )
        left = ""
        if not build.first.really:
            left = "what the compiler left eager is not in the path, and each graph is in it once"
        elif compiled_facts().graphs > 1:
            left = "what runs eagerly between graph breaks is not in the path"
        return KernelPath(
            runtime=self.name,
            uses=uses_of_calls(calls, times.shares),
            source=source,
            busy_s=None if left else times.busy_s,
            caveats=(*times.caveats, *[left] * bool(left)),
        )

    def _check_inductor_options(self, options: Mapping[str, Any]) -> None:
        if not options:
            return
        import_compiler()
        from torch._inductor import list_options

        known = list_options()
        wrong = [name for name in options if name.replace("-", "_") not in known]
        if wrong:
            import difflib

            near = difflib.get_close_matches(wrong[0], known, n=5) or sorted(known)[:20]
            msg = (
                f"unknown inductor option {wrong[0]!r} for runtime {self.name!r}; "
                f"near ones: {', '.join(near)}; all: torch._inductor.list_options()"
            )
            raise UsageError(msg)


def _account(request: Request) -> Introspection:
    """A place for what the compiler writes; it has to outlive the build, for ``trace``."""
    if request.cache_dir:
        Path(request.cache_dir).mkdir(parents=True, exist_ok=True)
    folder = tempfile.mkdtemp(prefix="inductor-", dir=request.cache_dir or None)
    return Introspection(Path(folder))


def runtime(name: str) -> CompileRuntime:
    """The runtime of that name.

    Raises:
        UsageError: another name than ``torch.compile``.
    """
    if name != "torch.compile":
        msg = f"unknown runtime {name!r}; of this family: 'torch', 'torch.compile'"
        raise UsageError(msg)
    return CompileRuntime()
