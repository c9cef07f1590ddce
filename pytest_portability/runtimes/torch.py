"""The torch runtime: a module run eagerly, and what was observed of it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from pytest_portability.errors import (
    BuildError,
    DoesNotFit,
    InputsError,
    PortabilityError,
    UsageError,
)
from pytest_portability.kernels import KernelPath, effective_precision
from pytest_portability.models import Array, Arrays
from pytest_portability.runtimes import Observed, Request
from pytest_portability.runtimes.torch_devices import TorchLibrary, import_torch
from pytest_portability.runtimes.torch_ops import (
    KernelTimes,
    Op,
    executed_ops,
    hosted_by,
    kernel_times,
    kernels_of,
    precision_word,
    source_of,
    uses_of,
)
from pytest_portability.runtimes.torch_settings import (
    OPTIONS,
    autocast,
    check_options,
    check_precision,
    in_force,
    options_in_force,
    refusal,
    runs_tf32,
    toolchain,
    weight_dtype,
)

LIBRARY = TorchLibrary()

ENVIRONMENT: Mapping[str, str] = {
    # Waiting OpenMP threads that spin eat the neighbours' time and are counted as the model's.
    "OMP_WAIT_POLICY": "PASSIVE",
    # glibc moves these by itself while running; pinned, no batch returns pages to the kernel and
    # faults them in again (spread of one build over processes 2.8-5.8 % without, 1.15 % with).
    # 32 MiB is the most that every glibc accepts.
    "MALLOC_MMAP_THRESHOLD_": str(32 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(2**30),
    # A fork server in which an import asks torch for devices could have no child that uses CUDA;
    # asked of NVML instead, it can (torch's note on fork poisoning).
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
}
_NO_ALLOCATOR = (AttributeError, RuntimeError, AssertionError, NotImplementedError)


def named_outputs(value: Any) -> list[tuple[str, Any]]:
    """Name whatever a module returns, depth first.

    Args:
        value: a tensor, a number, or a sequence, mapping, named tuple or dataclass of these.

    Returns:
        Name and tensor or number. A lone tensor is ``output``; the members of a sequence are
        ``output_0``, ``output_1``, …; those of anything with keys have their key; deeper levels
        are joined by dots. None and what is no number is left out.

    Raises:
        BuildError: there is nothing to compare, or two outputs have one name.
    """
    found = list(_named(value, ""))
    if not found:
        msg = (
            f"forward returned {type(value).__name__}: no output to compare; return a tensor, or "
            "a sequence, mapping or dataclass of tensors"
        )
        raise BuildError(msg)
    twice = [name for name, n in Counter(name for name, _ in found).items() if n > 1]
    if twice:
        names = ", ".join(map(repr, twice))
        msg = f"forward returned several outputs of one name: {names}; give each its own"
        raise BuildError(msg)
    return found


def _named(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    members: Iterable[tuple[str, Any]]
    if isinstance(value, Mapping):
        members = ((str(key), member) for key, member in value.items())
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        members = ((f.name, getattr(value, f.name)) for f in dataclasses.fields(value))
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        members = value._asdict().items()
    elif isinstance(value, list | tuple):
        members = ((f"{'' if prefix else 'output_'}{i}", member) for i, member in enumerate(value))
    else:
        if hasattr(value, "dtype") or isinstance(value, int | float):
            yield prefix or "output", value
        return
    for name, member in members:
        yield from _named(member, f"{prefix}.{name}" if prefix else name)


def failure(exc: Exception, what: str) -> PortabilityError:
    """Translate what torch raised.

    Args:
        exc: the exception.
        what: what was being done, such as ``run the module on cuda:0``.
    """
    if isinstance(exc, PortabilityError):
        return exc
    words = f"torch could not {what}: {type(exc).__name__}: {exc}"
    if isinstance(exc, MemoryError) or type(exc).__name__ == "OutOfMemoryError":
        return DoesNotFit(words)
    text = str(exc).lower()
    if "out of memory" in text or "can't allocate memory" in text:  # MPS and the CPU
        return DoesNotFit(words)
    return BuildError(words)


def host_tensor(torch: Any, name: str, array: Array) -> Any:
    """Copy a host array into a tensor.

    Args:
        torch: the package.
        name: of the input, for the message.
        array: any shape and layout; ``bfloat16`` of ml_dtypes is understood.

    Raises:
        InputsError: torch has no such dtype.
    """
    values = np.array(array, order="C")  # a copy: torch refuses read-only and reversed arrays
    if values.dtype.name == "bfloat16":
        return torch.from_numpy(values.view(np.int16)).view(torch.bfloat16)
    try:
        return torch.from_numpy(values.astype(values.dtype.newbyteorder("="), copy=False))
    except TypeError as exc:
        msg = f"input {name!r} has dtype {values.dtype.name!r}, which torch does not take ({exc})"
        raise InputsError(msg) from exc


def synchronize(torch: Any, device: Any, output: Any) -> None:
    """Return when the work queued on a device is done.

    Args:
        torch: the package.
        device: not a CPU.
        output: result of the last run, read where the device has no way to wait.
    """
    try:
        torch.accelerator.synchronize(device)
    except (AttributeError, NotImplementedError):
        waiting = getattr(getattr(torch, device.type, None), "synchronize", None)
        if waiting is not None:
            waiting()
    except RuntimeError:
        # An accelerator by an extension may lack it, and says so; a failed kernel says otherwise.
        if device.type in {"cuda", "xpu", "mps"}:
            raise
        for _, tensor in named_outputs(output):
            tensor.to("cpu")


class ModuleBuild:
    """A module on one device, ready to run.

    No gradient is kept: timed runs are under ``inference_mode``. The module stays in the mode it
    came in; a module in training mode is noted, not changed.
    """

    def __init__(
        self, request: Request, wrap: Callable[[Any], Callable[..., Any]] | None = None
    ) -> None:
        """Move the module to the device and set the switches of precision and options.

        Args:
            request: what to build; its module is moved, not copied.
            wrap: makes the callable that is launched out of the module; the module itself if None.
        """
        self.torch = import_torch("torch", "run a torch module")
        self.request = request
        self._args: tuple[Any, ...] = ()
        self._kwargs: dict[str, Any] = {}
        self._output: Any = None
        self._ops: Counter[Op] = Counter()
        self._notes: list[str] = []
        self._peak_bytes = self._foreign_bytes = 0
        self._settings = contextlib.ExitStack()
        try:
            self.device = self.torch.device(request.handle)
            self.module = request.model.value
            check_precision(self.torch, request)
            self._cast = autocast(self.torch, request, self.device)
            self._inference = self.torch.inference_mode()  # made once: each costs 1 us
            self._settings.enter_context(in_force(self.torch, request))
            self._reset_peak()
            own_bytes = _bytes_on(self.module, self.device)
            self._foreign_bytes = max(0, self._allocated_bytes() - own_bytes)
            self.module = self.module.to(self.device)
            if request.options.get("channels_last"):
                self.module = self.module.to(memory_format=self.torch.channels_last)
            self._call = wrap(self.module) if wrap else self.module
        except Exception as exc:
            self._settings.close()
            raise failure(exc, f"build the module on {request.handle}") from exc

    def stage(self, inputs: Arrays) -> None:
        """Put one batch of inputs on the device.

        Args:
            inputs: host arrays owned by the caller, copied; decimal names are positions.

        Raises:
            InputsError: they do not fit the module's ``forward``.
        """
        places = sorted((name for name in inputs if name.isdecimal()), key=int)
        names = [name for name in inputs if name not in places]
        _fit(self.module, len(places), names)
        # By position as far as they stand in their order: what was exported takes no names.
        places += _leading(self.module, len(places), names)
        names = [name for name in names if name not in places]
        try:
            self._args = tuple(self._tensor(name, inputs[name]) for name in places)
            self._kwargs = {name: self._tensor(name, inputs[name]) for name in names}
        except Exception as exc:
            raise failure(exc, f"put the inputs on {self.request.handle}") from exc

    def launch(self) -> None:
        """Enqueue one inference of the staged batch; may return before the work is done."""
        self._output = None  # or its memory could not be used again by this run
        try:
            with self._inference, self._cast:
                self._output = self._call(*self._args, **self._kwargs)
        except Exception as exc:
            raise failure(exc, f"run the module on {self.request.handle}") from exc

    def synchronize(self) -> None:
        """Return when every launched inference is done."""
        if self.device.type == "cpu":
            return
        try:
            synchronize(self.torch, self.device, self._output)
        except Exception as exc:
            raise failure(exc, f"run the module on {self.request.handle}") from exc

    def fetch(self) -> Arrays:
        """The outputs of the last launched inference as new host arrays, names in model order.

        bf16 comes as float32, which holds every bf16 value exactly: NumPy has no bf16.
        """
        try:
            return {name: self._array(name, value) for name, value in named_outputs(self._output)}
        except Exception as exc:
            raise failure(exc, f"fetch the outputs from {self.request.handle}") from exc

    def predict(self, inputs: Arrays) -> Arrays:
        """Run other inputs, any batch size; what was staged stays staged."""
        staged = self._args, self._kwargs
        try:
            self.stage(inputs)
            self.launch()
            self.synchronize()
            return self.fetch()
        finally:
            self._args, self._kwargs = staged

    def observed(self) -> Observed:
        """The facts of this build; the first call after staging runs the module once more."""
        uses = uses_of(self.ops(), {}, self.is_tf32)
        providers: Counter[str] = Counter()
        for use in uses:
            providers[use.kernel.provider] += use.launches
        notes = [*self._notes]
        if self.module.training:
            notes.append("the module is in training mode; call .eval()")
        return Observed(
            precision=effective_precision(KernelPath(runtime="torch", uses=uses)),
            providers=dict(sorted(providers.items())),
            asked_provider=f"aten:{self.device.type}",
            threads=self.threads(),
            options=options_in_force(self.torch, self.request, self.device),
            toolchain=toolchain(self.torch),
            notes=tuple(notes),
        )

    def ops(self) -> Counter[Op]:
        """What one eager run of the staged batch dispatches; empty before ``stage``."""
        if not self._ops and (self._args or self._kwargs):
            self._peak_bytes = self._allocator_peak_bytes() or 0
            try:
                self._ops = executed_ops(self.run_eagerly)
            except Exception as exc:  # noqa: BLE001 - facts are worth less than the measurement
                self.note(str(failure(exc, "trace the module's operators")))
            self._reset_peak()
        return self._ops

    def is_tf32(self, name: str) -> bool:
        """Whether an fp32 operator of that name runs in TF32 on this device."""
        return runs_tf32(self.torch, self.device, name)

    def run_eagerly(self) -> Any:
        """Run the module itself on the staged batch, outside ``inference_mode``."""
        with self.torch.no_grad(), self._cast:
            return self.module(*self._args, **self._kwargs)

    def threads(self) -> int | None:
        """Threads of one operator on a CPU."""
        return int(self.torch.get_num_threads()) if self.device.type == "cpu" else None

    def device_memory_bytes(self) -> int | None:
        """Peak device memory of the build, None on a CPU.

        What the process held before it, such as a yardstick's matrices, is not counted.
        """
        peak = self._allocator_peak_bytes()
        return None if peak is None else max(0, peak - self._foreign_bytes)

    def _allocator_peak_bytes(self) -> int | None:
        """Peak of the process's allocator since the build began, whoever allocated."""
        if self.device.type == "cpu":
            return None
        if self.device.type == "mps":  # no peak there; the driver's pool only grows
            return int(self.torch.mps.driver_allocated_memory())
        try:
            peak = int(self.torch.accelerator.max_memory_allocated(self.device))
        except _NO_ALLOCATOR:
            return None
        return max(peak, self._peak_bytes)

    def close(self) -> None:
        """Free what the build holds and put the process's switches back."""
        self._output, self._args, self._kwargs = None, (), {}
        self._settings.close()

    def note(self, text: str) -> None:
        """Add one sentence to the observed notes, once."""
        if text not in self._notes:
            self._notes.append(text)

    def _allocated_bytes(self) -> int:
        """What the process's allocator has given out now; 0 where it does not tell."""
        if self.device.type == "mps":
            return int(self.torch.mps.current_allocated_memory())
        if self.device.type != "cpu":
            with contextlib.suppress(*_NO_ALLOCATOR):
                return int(self.torch.accelerator.memory_allocated(self.device))
        return 0

    def _reset_peak(self) -> None:
        if self.device.type not in {"cpu", "mps"}:
            with contextlib.suppress(*_NO_ALLOCATOR):
                self.torch.accelerator.reset_peak_memory_stats(self.device)

    def _tensor(self, name: str, array: Array) -> Any:
        torch = self.torch
        tensor = host_tensor(torch, name, array)
        dtype = weight_dtype(torch, self.module)
        if tensor.dtype == torch.float32 and dtype not in {None, torch.float32}:
            self.note(f"input {name!r} was cast to {precision_word(dtype)}, as the weights are")
            tensor = tensor.to(dtype)
        tensor = tensor.to(self.device)
        if self.request.options.get("channels_last") and tensor.dim() == 4:
            tensor = tensor.contiguous(memory_format=torch.channels_last)
        return tensor

    def _array(self, name: str, value: Any) -> Array:
        if not isinstance(value, self.torch.Tensor):
            return np.asarray(value)
        tensor = value.detach().to("cpu")
        if tensor.is_quantized:
            tensor = tensor.dequantize()
        if tensor.layout != self.torch.strided:
            tensor = tensor.to_dense()
        if tensor.dtype == self.torch.bfloat16 or "float8" in str(tensor.dtype):
            self.note(f"output {name!r} is {precision_word(tensor.dtype)}, fetched as float32")
            tensor = tensor.float()
        return np.array(tensor.resolve_conj().resolve_neg().numpy())


def _bytes_on(module: Any, device: Any) -> int:
    """Bytes of a module's own tensors that lie on the device already."""
    tensors = (*module.parameters(), *module.buffers())
    there = [t for t in tensors if t.device.type == device.type]
    there = [t for t in there if device.index in (None, t.device.index)]
    return sum(t.numel() * t.element_size() for t in there)


def _leading(module: Any, places: int, names: list[str]) -> list[str]:
    """Names that follow so many positions in the very order of ``forward``."""
    try:
        parameters = list(inspect.signature(module.forward).parameters.values())
    except (TypeError, ValueError):  # a scripted module tells no signature
        return []
    positional = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    both = zip(names, positional[places:], strict=False)
    return [name for name, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], both)]


def _fit(module: Any, places: int, names: list[str]) -> None:
    """Check that inputs bind to the module's ``forward``."""
    try:
        parameters = inspect.signature(module.forward)
    except (TypeError, ValueError):  # a scripted module tells no signature
        return
    try:
        parameters.bind(*range(places), **dict.fromkeys(names))
    except TypeError as exc:
        given = f"{places} by position" + (f", {names!r} by name" if names else "")
        msg = (
            f"inputs ({given}) do not fit {type(module).__name__}.forward{parameters}: {exc}; "
            "a sequence is passed by position, a mapping by name"
        )
        raise InputsError(msg) from exc


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TorchRuntime:
    """The module as it is, without a compiler."""

    name: str = "torch"
    family: str = "torch"
    # Watching what a run dispatches imports dynamo: a second, in every child if not in the server.
    packages: tuple[str, ...] = ("torch", "torch._dynamo")
    kinds: tuple[str, ...] = ("torch",)
    converted: tuple[str, ...] = ()
    environment: Mapping[str, str] = dataclasses.field(default_factory=lambda: {**ENVIRONMENT})

    def supports(self, precision: str, platform: str) -> str:
        """Why this precision cannot be done on this platform; empty if it can, as far as known."""
        return refusal(precision, platform)

    def build(self, request: Request) -> ModuleBuild:
        """Make an executable; see ``Runtime.build`` for what it raises."""
        check_options(request.options, OPTIONS, self.name)
        return ModuleBuild(request)

    def trace(self, request: Request, inputs: Arrays, runs: int = 5) -> KernelPath:
        """Operators that one run dispatches, from a build of its own."""
        build = self.build(request)
        try:
            build.stage(inputs)
            ops = executed_ops(build.run_eagerly)
            build.synchronize()
            times = times_of_ops(build, ops, runs)
            return KernelPath(
                runtime=self.name,
                uses=uses_of(ops, times.shares, build.is_tf32),
                source=source_of(ops),
                busy_s=times.busy_s,
                caveats=times.caveats,
            )
        except Exception as exc:
            raise failure(exc, f"trace the module on {request.handle}") from exc
        finally:
            build.close()


def times_of_ops(build: ModuleBuild, ops: Mapping[Op, int], runs: int) -> KernelTimes:
    """Times of an eager run's operators."""
    return kernel_times(
        build.run_eagerly,
        build.synchronize,
        names={op.name for op in kernels_of(ops)},
        device=build.device.type,
        runs=runs,
        hosted=hosted_by(ops, build.device.type),
    )


def runtime(name: str) -> TorchRuntime:
    """The runtime of that name.

    Raises:
        UsageError: another name than ``torch``.
    """
    if name != "torch":
        msg = f"unknown runtime {name!r}; of this family: 'torch', 'torch.compile'"
        raise UsageError(msg)
    return TorchRuntime()
