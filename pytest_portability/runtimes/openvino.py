"""OpenVINO on its own devices. The only importer of ``openvino``."""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pytest_portability import onnx_graph
from pytest_portability.errors import (
    BuildError,
    DoesNotFit,
    ModelError,
    PortabilityError,
    RuntimeUnavailable,
    Unsupported,
    UsageError,
)
from pytest_portability.kernels import KernelPath
from pytest_portability.models import Arrays
from pytest_portability.runtimes import Observed, Request
from pytest_portability.runtimes import openvino_layers as layers
from pytest_portability.runtimes.host_arrays import contiguous
from pytest_portability.targets import Absent, Device, cpu_device

# --- the library --------------------------------------------------------------------------------


def _import() -> Any:
    try:
        import openvino
    except Exception as exc:
        msg = f"openvino is present but unusable: {type(exc).__name__}: {exc}"
        if isinstance(exc, ModuleNotFoundError) and exc.name == "openvino":
            msg = "openvino is not installed: pip install openvino"
        raise RuntimeUnavailable(msg) from exc
    if not hasattr(openvino, "Core"):
        msg = "openvino is present but unusable: the package holds no Core"
        raise RuntimeUnavailable(msg)
    return openvino


class OpenVinoLibrary:
    """OpenVINO as a source of devices; to be asked in a child process."""

    def devices(self) -> tuple[Sequence[Device], Sequence[Absent]]:
        """Devices that OpenVINO can compile for.

        Raises:
            RuntimeUnavailable: openvino is not installed, or present but unusable.
        """
        ov = _import()
        core = ov.Core()
        found = [_asked(core, name, _version(ov)) for name in core.available_devices]
        devices = [device for device in found if isinstance(device, Device)]
        return devices, [absent for absent in found if isinstance(absent, Absent)]


def _asked(core: Any, name: str, version: str) -> Device | Absent:
    try:
        return _device(name, _properties(core, name), version)
    except RuntimeError as exc:
        return Absent(name=f"openvino {name}", reason=f"present but unusable: {_words(exc)}")


LIBRARY = OpenVinoLibrary()

_FACTS = (
    "FULL_DEVICE_NAME",
    "DEVICE_ARCHITECTURE",
    "DEVICE_UUID",
    "DEVICE_PCI_INFO",
    "GPU_DEVICE_TOTAL_MEM_SIZE",
    "NPU_DRIVER_VERSION",
)


def _properties(core: Any, device: str) -> dict[str, str]:
    """The facts this device supports, as text; asking for another one raises."""
    supported = core.get_property(device, "SUPPORTED_PROPERTIES")
    asked = [name for name in _FACTS if name in supported]
    return {name: _fact(core.get_property(device, name)) for name in asked}


def _fact(value: Any) -> str:
    """A property as text; a PCI address as sysfs and torch write it.

    OpenVINO's ``PCIInfo`` has four numbers and no text of its own in Python.
    """
    if not hasattr(value, "domain"):
        return str(value)
    return f"{value.domain:04x}:{value.bus:02x}:{value.device:02x}.{value.function:x}"


def _device(name: str, facts: Mapping[str, str], version: str) -> Device:
    if name == "CPU":
        return cpu_device(runtimes=("openvino",), handle=name)
    kind, _, position = name.partition(".")
    memory = facts.get("GPU_DEVICE_TOTAL_MEM_SIZE", "")
    known = {"openvino": version, "driver": facts.get("NPU_DRIVER_VERSION", "")}
    address = {"uuid": facts.get("DEVICE_UUID", ""), "pci": facts.get("DEVICE_PCI_INFO", "")}
    return Device(
        runtimes=("openvino",),
        handle=name,
        vendor="intel",
        arch=architecture(facts.get("DEVICE_ARCHITECTURE", "")),
        product=facts.get("FULL_DEVICE_NAME", ""),
        platform="xpu" if kind == "GPU" else kind.lower(),
        index=int(position) if position.isdigit() else 0,
        memory_bytes=int(memory) if memory.isdigit() else None,
        facts={key: value for key, value in known.items() if value},
        address={key: value for key, value in address.items() if value},
    )


# Graphics IP versions as OpenVINO and the compute runtime print them (GMD_ID).
_ARCHITECTURES = (
    ("12.60", "xe-hpc"),
    ("12.5", "xe-hpg"),
    ("12.7", "xe-lpg"),
    ("12.", "xe-lp"),
    ("20.4", "xe2-lpg"),
    ("20.", "xe2-hpg"),
    ("30.", "xe3"),
)


def architecture(text: str) -> str:
    """Name of an Intel GPU's architecture: ``GPU: vendor=0x8086 arch=v12.60.7`` is ``xe-hpc``.

    A text without such a version, as an NPU's, is returned as it is.
    """
    found = re.search(r"arch=v?(\d+\.\d+)", text)
    if not found:
        return text.strip().lower()
    names = (name for prefix, name in _ARCHITECTURES if found[1].startswith(prefix))
    return next(names, f"xe-{found[1]}")


def _version(ov: Any) -> str:
    return str(ov.get_version()).partition("-")[0]


# --- errors -------------------------------------------------------------------------------------


def _words(exc: BaseException) -> str:
    """OpenVINO's own words, without the places in its source that it lists first."""
    text = re.sub(r"Exception from \S+:\d+:|Check '.*?' failed at \S+:\d+:", "", str(exc))
    return " ".join(text.split()) or type(exc).__name__


_NO_MEMORY = re.compile(
    r"bad_alloc|out of memory|OUT_OF_\w*MEMORY|failed to allocate", re.IGNORECASE
)


@contextlib.contextmanager
def _translated(action: str) -> Iterator[None]:
    try:
        yield
    except (PortabilityError, NameError, AttributeError):  # the latter two are our own mistakes
        raise
    except MemoryError as exc:
        msg = f"openvino could not {action}: out of memory ({exc})"
        raise DoesNotFit(msg) from exc
    except Exception as exc:
        msg = f"openvino could not {action}: {_words(exc)}"
        if _NO_MEMORY.search(str(exc)):
            raise DoesNotFit(msg) from exc
        raise BuildError(msg) from exc


# --- compiling ----------------------------------------------------------------------------------

_HINTS = {"fp32": "f32", "fp16": "f16", "bf16": "bf16"}
_CAPABILITIES = {"fp32": "FP32", "fp16": "FP16", "bf16": "BF16", "int8": "INT8"}


def _compile(core: Any, request: Request, extra: Mapping[str, Any]) -> Any:
    model, device = request.model, request.handle
    if model.kind != "onnx":
        msg = f"openvino builds ONNX models here; this is a {model.kind} model: export it"
        raise Unsupported(msg)
    if device not in core.available_devices:
        found = ", ".join(core.available_devices) or "no device"
        msg = f"openvino has no device {device!r}; it has: {found}"
        raise RuntimeUnavailable(msg)
    _check_precision(core, request)
    properties = {**_precision_hint(request), **dict(request.options), **extra}
    if request.cache_dir and device != "CPU":
        # Compiling for a CPU is quick, and a model from the cache has no layer names to trace.
        properties.setdefault("CACHE_DIR", request.cache_dir)
    try:
        source = str(model.path) if model.path else model.value.SerializeToString()
        read = core.read_model(source)
    except RuntimeError as exc:
        msg = f"openvino cannot read the model: {_words(exc)}"
        raise ModelError(msg) from exc
    try:
        return core.compile_model(read, device, properties)
    except Exception as exc:
        _raise_if_option(core, device, request.options, exc)
        raise


def _precision_hint(request: Request) -> dict[str, str]:
    hint = _HINTS.get(request.precision)
    return {"INFERENCE_PRECISION_HINT": hint} if hint else {}


def _check_precision(core: Any, request: Request) -> None:
    precision, device = request.precision, request.handle
    if reason := _refused(precision):
        raise Unsupported(reason)
    needed = _CAPABILITIES.get(precision)
    if needed:
        # The hint for a precision the device lacks is accepted and another one is used.
        can = core.get_property(device, "OPTIMIZATION_CAPABILITIES")
        if needed not in can:
            msg = f"openvino: {precision}: the device {device} computes {', '.join(can)}"
            raise Unsupported(msg)
    if precision == "int8" and not onnx_graph.quantised(request.model.value):
        msg = "openvino: int8 is for models that come quantised; this one has no quantised nodes"
        raise Unsupported(msg)


def _refused(precision: str) -> str:
    return "openvino: tf32: TF32 is a mode of NVIDIA GPUs" if precision == "tf32" else ""


def _raise_if_option(core: Any, device: str, options: Mapping[str, Any], exc: Exception) -> None:
    words = _words(exc)
    found = re.search(r"[Uu]nsupported property (\S+)|property key (\w+)|[Oo]ption '?(\w+)", words)
    named = next((part for part in found.groups() if part), "") if found else ""
    if not options or (named not in options and not isinstance(exc, TypeError)):
        return
    supported = core.get_property(device, "SUPPORTED_PROPERTIES")
    valid = sorted(name for name, access in supported.items() if "W" in str(access))
    msg = f"openvino refused an option: {words}; valid for {device}: {', '.join(valid)}"
    raise UsageError(msg) from exc


# --- builds -------------------------------------------------------------------------------------


class OpenVinoBuild:
    """A compiled model with one infer request.

    ``launch`` starts it and returns at once, but on a CPU it infers in the caller's thread as
    ``infer()`` does: handing each inference to a thread that sleeps cost up to 100 us each, twice
    the time of a small model.
    """

    def __init__(
        self,
        ov: Any,
        compiled: Any,
        names: Sequence[str],
        facts: Observed,
        *,
        queued: bool,
    ) -> None:
        self._ov = ov
        self._queued = queued
        self._compiled = compiled
        self._request: Any = compiled.create_infer_request()
        self._names = tuple(names)
        self._facts = facts
        self._staged: Arrays = {}
        self._running = self._ran = False

    def stage(self, inputs: Arrays) -> None:
        """Hand one batch of inputs to the request, which reads them where they lie."""
        self._open()
        self.synchronize()
        with _translated("take the inputs"):
            # The tensors share the arrays' memory, so the arrays have to live as long.
            self._staged = {name: contiguous(array) for name, array in inputs.items()}
            for name, array in self._staged.items():
                shared = array.dtype.kind not in "OUS"
                tensor = self._ov.Tensor(
                    array if shared else array.astype(str), shared_memory=shared
                )
                self._request.set_tensor(name, tensor)

    def launch(self) -> None:
        """Start one inference of the staged batch, after the one before it has ended."""
        self._open()
        self.synchronize()
        with _translated("run the model"):
            if self._queued:
                self._request.start_async()
            else:
                self._request.infer(share_outputs=True)
        self._running, self._ran = self._queued, True

    def synchronize(self) -> None:
        """Return when the launched inference is done."""
        if self._running:
            self._running = False
            with _translated("run the model"):
                self._request.wait()

    def fetch(self) -> Arrays:
        """The outputs of the last launched inference as new host arrays."""
        self._open()
        if not self._ran:
            msg = "openvino: fetch() was called before launch()"
            raise BuildError(msg)
        self.synchronize()
        tensors = [self._request.get_output_tensor(i) for i in range(len(self._names))]
        return {
            name: np.array(
                tensor.str_data if tensor.element_type == self._ov.Type.string else tensor.data
            )
            for name, tensor in zip(self._names, tensors, strict=True)
        }

    def predict(self, inputs: Arrays) -> Arrays:
        """Run other inputs of any batch size; the staged batch stays staged."""
        kept = self._staged
        self.stage(inputs)
        self.launch()
        outputs = self.fetch()
        if kept:
            self.stage(kept)
        return outputs

    def observed(self) -> Observed:
        """The facts of this build; what was asked for is not among them."""
        return self._facts

    def threads(self) -> int | None:
        """Threads of the pool for one operator."""
        return self._facts.threads

    def device_memory_bytes(self) -> int | None:
        """None: OpenVINO tells only what a GPU's allocations are now, not their peak."""
        return None

    def close(self) -> None:
        """Free the request and the compiled model."""
        if self._request is not None:
            with contextlib.suppress(PortabilityError):
                self.synchronize()
        self._request = self._compiled = None
        self._staged = {}

    def _open(self) -> None:
        if self._request is None:
            msg = "openvino: the build is closed"
            raise BuildError(msg)


# --- the runtime --------------------------------------------------------------------------------


class OpenVino:
    """The runtime ``openvino``."""

    name = "openvino"
    family = "openvino"
    packages = ("numpy", "openvino")
    kinds = ("onnx",)
    converted: tuple[str, ...] = ()

    def __init__(self) -> None:
        self.environment: Mapping[str, str] = {}

    def supports(self, precision: str, platform: str) -> str:  # the contract's
        """Why this precision cannot be done; what the device lacks only ``build`` can tell."""
        return _refused(precision)

    def build(self, request: Request) -> OpenVinoBuild:
        """Compile the model; ``native`` asks for no precision.

        Raises:
            BuildError: OpenVINO refused; its own words.
            ModelError: OpenVINO cannot read the model.
            RuntimeUnavailable: no OpenVINO or no such device.
            Unsupported: the device has not this precision.
            DoesNotFit: out of memory.
            UsageError: a property that OpenVINO refused; the valid ones are listed.
        """
        ov = _import()
        with _translated("build the model"):
            core = ov.Core()
            compiled = _compile(core, request, {})
            names = [output.name for output in request.model.value.graph.output]
            facts = _observe(ov, compiled, request)
            queued = request.platform != "cpu"
            return OpenVinoBuild(ov, compiled, names, facts, queued=queued)

    def trace(self, request: Request, inputs: Arrays, runs: int = 5) -> KernelPath:
        """The kernel path, from a separate build with performance counters.

        Op types in ``source`` and ``absorbs`` are those of the ONNX model. A device that does not
        tell its layers, as an NPU, leaves nothing but the source.
        """
        ov = _import()
        # What the measured build left in the cache has no layer names, on whatever device.
        request = dataclasses.replace(request, cache_dir="")
        with _translated("trace the model"):
            compiled = _compile(ov.Core(), request, {"PERF_COUNT": True})
            build = OpenVinoBuild(ov, compiled, (), Observed(), queued=False)
            build.stage(inputs)
            for _ in range(runs + 1):
                build.launch()
            build.synchronize()
            found = layers.of_compiled(compiled)
            build.close()
        devices = _devices(compiled, request)
        source = onnx_graph.op_types(request.model.value)
        if not found:
            caveat = f"OpenVINO does not tell the layers that run on {', '.join(devices)}"
            return KernelPath(runtime=self.name, evidence="none", source=source, caveats=(caveat,))
        named = onnx_graph.op_by_name(request.model.value)
        uses = layers.uses(found, _provider(devices), named)
        return KernelPath(runtime=self.name, uses=uses, source=source)


def runtime(name: str) -> OpenVino:
    """The runtime of that name.

    Raises:
        UsageError: the name holds more than ``openvino``.
    """
    if name != "openvino":
        msg = f"unknown runtime {name!r}; known: openvino (its device is the target's)"
        raise UsageError(msg)
    return OpenVino()


# --- facts ---------------------------------------------------------------------------------------

_REPORTED = (
    *("PERFORMANCE_HINT", "EXECUTION_MODE_HINT", "INFERENCE_PRECISION_HINT", "NUM_STREAMS"),
    *("INFERENCE_NUM_THREADS", "ENABLE_CPU_PINNING", "DYNAMIC_QUANTIZATION_GROUP_SIZE"),
)


def _observe(ov: Any, compiled: Any, request: Request) -> Observed:
    supported = compiled.get_property("SUPPORTED_PROPERTIES")
    names = [n for n in (*_REPORTED, *request.options) if n in supported]
    options = {name: _as_text(compiled.get_property(name)) for name in names}
    found = layers.of_compiled(compiled)
    threads = options.get("INFERENCE_NUM_THREADS", "")
    devices, asked = _devices(compiled, request), _plain(request.handle)
    ran = _provider(devices)
    several = f"OpenVINO does not tell which of {', '.join(devices)} ran which layer"
    return Observed(
        precision=layers.effective(found),
        # No layers is not none of them: who ran how many is unknown.
        providers={ran: len(found)} if found else {},
        # Of several devices together it is known that this one takes part, and no more.
        asked_provider=ran if asked in devices else _provider([asked]),
        threads=int(threads) if threads.isdigit() and threads != "0" else None,
        options=dict(sorted(options.items())),
        toolchain={"openvino": _version(ov)},
        notes=(several,) if len(devices) > 1 else (),
    )


def _devices(compiled: Any, request: Request) -> list[str]:
    """The devices that run it, in one spelling."""
    if "EXECUTION_DEVICES" not in compiled.get_property("SUPPORTED_PROPERTIES"):
        return [_plain(request.handle)]
    named = [_plain(str(device)) for device in compiled.get_property("EXECUTION_DEVICES")]
    return list(dict.fromkeys(named))


def _plain(device: str) -> str:
    """A device's name without the index 0, which OpenVINO writes at times: ``GPU.0`` is ``GPU``."""
    return device.removesuffix(".0")


def _provider(devices: Sequence[str]) -> str:
    return f"ov:{'+'.join(sorted(devices))}"


def _as_text(value: Any) -> str:
    named = getattr(value, "get_type_name", None)  # an element type prints as "<Type: 'bfloat16'>"
    return str(named() if named else value).rpartition(".")[2]


__all__ = ["LIBRARY", "OpenVino", "OpenVinoBuild", "OpenVinoLibrary", "architecture", "runtime"]
