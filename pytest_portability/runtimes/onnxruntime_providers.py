"""ONNX Runtime's execution providers: what differs between them, and the devices they see.

All but the CPU provider, and OpenVINO's on a CPU, is written to the documentation, not seen on a
device.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_portability.runtimes import gpu_drivers, tf32
from pytest_portability.targets import Absent, Device, apple_chip, cpu_device

_OWN: Mapping[str, Mapping[str, str]] = {"fp32": {}, "fp16": {}, "bf16": {}, "int8": {}}
"""The provider computes in the types of the model's file; nothing has to be switched."""

_NO_TF32 = "TF32 is a mode of NVIDIA GPUs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Provider:
    """What differs between execution providers.

    Attributes:
        short: after the dot of the runtime's name, such as ``cuda``.
        ep: ONNX Runtime's name, such as ``CUDAExecutionProvider``.
        vendor: of its devices; empty where the device tells.
        platform: of its devices.
        kind: ``cpu``, ``gpu`` or ``npu``: what the device is of one that is part of the wheel and
            lists none.
        pinned: provider options that keep such a one on that device, where it has others.
        synchronous: a node's time in the profile is the time of its work, not of its launch.
        memory: where ``IOBinding`` leaves outputs; empty for plain runs, on the CPU and where
            ONNX Runtime cannot name the device's memory.
        switches: precision → provider options that ask for exactly it.
        refuses: precision → why it cannot be had.
        compiles: it turns subgraphs into one node each, which computes in a precision of its own.
        cache: provider options that keep what was compiled in a folder, as formats of ``folder``.
        profiled_cache: as ``cache``, of what depends on the inputs' shape without its name telling,
            and so is kept only where the model fixes it.
    """

    short: str
    ep: str
    vendor: str = ""
    platform: str = ""
    kind: str = "gpu"
    pinned: Mapping[str, str] = field(default_factory=dict)
    synchronous: bool = False
    memory: str = ""
    switches: Mapping[str, Mapping[str, str]] = field(default_factory=lambda: _OWN)
    refuses: Mapping[str, str] = field(default_factory=dict)
    compiles: bool = False
    cache: Mapping[str, str] = field(default_factory=dict)
    profiled_cache: Mapping[str, str] = field(default_factory=dict)

    @property
    def runtime(self) -> str:
        """Name of the runtime."""
        return f"onnxruntime.{self.short}"

    @property
    def computes(self) -> bool:
        """Whether it is one that runs models on a device of this machine."""
        return self.ep not in _NO_COMPUTE and "." not in self.ep

    @property
    def converted(self) -> tuple[str, ...]:
        """Precisions that come with the file, as there is no switch for them."""
        return tuple(p for p in ("bf16", "fp16") if self.switches.get(p, {"": ""}) == {})

    def supports(self, precision: str) -> str:
        """Why this precision cannot be asked for; empty if it can."""
        if precision == "native" or precision in self.switches:
            return ""
        if precision in self.refuses:
            return self.refuses[precision]
        return _NO_TF32 if precision == "tf32" else f"{self.ep} has no switch for {precision}"


def _cpu(short: str, ep: str) -> Provider:
    fp16 = "the CPU provider computes fp16 nodes in fp32"
    bf16 = "the CPU provider has hardly any bf16 kernels and computes the rest in fp32"
    return Provider(
        short=short,
        ep=ep,
        vendor="cpu",
        platform="cpu",
        kind="cpu",
        synchronous=True,
        switches={"fp32": {}, "int8": {}},
        refuses={"fp16": fp16, "bf16": bf16},
    )


_NVIDIA = Provider(short="", ep="", vendor="nvidia", platform="cuda", memory="cuda")
_AMD = Provider(short="", ep="", vendor="amd", platform="rocm")


def _openvino(hint: str) -> Mapping[str, str]:
    # Every other spelling is accepted, echoed back and ignored; this one reaches OpenVINO.
    entry = f'{{"INFERENCE_PRECISION_HINT":"{hint}"}}'
    parts = (f'"{device}":{entry}' for device in ("CPU", "GPU", "NPU"))
    return {"load_config": f"{{{','.join(parts)}}}"}


_OPENVINO_CACHE = '{{"GPU":{{"CACHE_DIR":"{folder}"}},"NPU":{{"CACHE_DIR":"{folder}"}}}}'
_TF32_FREE = "TensorRT uses TF32 unless the environment has NVIDIA_TF32_OVERRIDE=0"
_COREML = "Core ML picks fp16 or fp32 for each unit by itself"

TABLE = (
    _cpu("cpu", "CPUExecutionProvider"),
    _cpu("xnnpack", "XnnpackExecutionProvider"),
    replace(_cpu("dnnl", "DnnlExecutionProvider"), compiles=True),
    replace(
        _NVIDIA,
        short="cuda",
        ep="CUDAExecutionProvider",
        switches={**_OWN, "fp32": {"use_tf32": "0"}, "tf32": {"use_tf32": "1"}},
    ),
    replace(
        _NVIDIA,
        short="tensorrt",
        ep="TensorrtExecutionProvider",
        switches={
            "fp32": {},
            "tf32": {},
            "fp16": {"trt_fp16_enable": "1"},
            "bf16": {"trt_bf16_enable": "1"},
            "int8": {"trt_int8_enable": "1"},
        },
        compiles=True,
        cache={"trt_timing_cache_enable": "1", "trt_timing_cache_path": "{folder}"},
        # An engine of a symbolic shape is rebuilt wider for every new one, and then kept.
        profiled_cache={"trt_engine_cache_enable": "1", "trt_engine_cache_path": "{folder}"},
    ),
    replace(_NVIDIA, short="nvtensorrtrtx", ep="NvTensorRTRTXExecutionProvider", compiles=True),
    replace(
        _AMD,
        short="migraphx",
        ep="MIGraphXExecutionProvider",
        switches={
            "fp32": {},
            "fp16": {"migraphx_fp16_enable": "1"},
            "bf16": {"migraphx_bf16_enable": "1"},
            "int8": {},
        },
        compiles=True,
        cache={"migraphx_model_cache_dir": "{folder}"},
    ),
    replace(_AMD, short="rocm", ep="ROCMExecutionProvider"),
    Provider(
        short="openvino",
        ep="OpenVINOExecutionProvider",
        vendor="intel",
        platform="xpu",
        # Built in (the wheel onnxruntime-openvino) it says nothing of the hardware.
        kind="cpu",
        pinned={"device_type": "CPU"},
        synchronous=True,
        switches={
            "fp32": _openvino("f32"),
            "fp16": _openvino("f16"),
            "bf16": _openvino("bf16"),
            "int8": {},
        },
        compiles=True,
        cache={"load_config": _OPENVINO_CACHE},
    ),
    Provider(
        short="coreml",
        ep="CoreMLExecutionProvider",
        vendor="apple",
        platform="mps",
        switches={"int8": {}},
        refuses={"fp32": _COREML, "fp16": _COREML, "bf16": _COREML},
        compiles=True,
    ),
    Provider(short="dml", ep="DmlExecutionProvider", platform="directml"),
    Provider(short="webgpu", ep="WebGpuExecutionProvider", platform="webgpu"),
    Provider(
        short="qnn",
        ep="QNNExecutionProvider",
        vendor="qualcomm",
        platform="qnn",
        kind="npu",  # the backend "htp", its default in ONNX Runtime's C API
        switches={
            "fp32": {"enable_htp_fp16_precision": "0"},
            "fp16": {"enable_htp_fp16_precision": "1"},
            "int8": {},
        },
        compiles=True,
    ),
    Provider(
        short="vitisai",
        ep="VitisAIExecutionProvider",
        vendor="amd",
        platform="npu",
        kind="npu",
        compiles=True,
    ),
    Provider(
        short="cann",
        ep="CANNExecutionProvider",
        vendor="huawei",
        platform="cann",
        kind="npu",
        memory="cann",
        switches={
            **_OWN,
            "fp32": {"precision_mode": "must_keep_origin_dtype"},
            "fp16": {"precision_mode": "force_fp16"},
        },
        compiles=True,
    ),
)

_NO_COMPUTE = ("AzureExecutionProvider",)
"""Providers that run nothing on a device of this machine."""


def named(short: str) -> Provider:
    """The provider of a runtime's name; one that is not in the table has general properties."""
    found = next((provider for provider in TABLE if provider.short == short), None)
    return found or Provider(short=short, ep="", platform=short)


def of_ep(ep: str) -> Provider:
    """The provider of ONNX Runtime's name; the short name of an unknown one is derived."""
    found = next((provider for provider in TABLE if provider.ep == ep), None)
    short = re.sub(r"[^a-z0-9]+", "-", ep.removesuffix("ExecutionProvider").lower()).strip("-")
    return found or Provider(short=short, ep=ep, platform=short)


def resolve(short: str, available: Iterable[str]) -> Provider | None:
    """The provider of that short name if this ONNX Runtime has it."""
    return next((p for ep in available if (p := of_ep(ep)).short == short), None)


def needs_environment(provider: Provider, precision: str) -> str:
    """What the environment lacks for this precision; empty if nothing."""
    if (provider.platform, precision) == ("cuda", "tf32") and tf32.forbidden():
        return "NVIDIA_TF32_OVERRIDE=0 in the environment switches TF32 off"
    free = provider.short in ("tensorrt", "nvtensorrtrtx") and not tf32.forbidden()
    return _TF32_FREE if free and precision == "fp32" else ""


_TF32_OPS = re.compile(r"MatMul|Gemm|Conv|Attention|Einsum")
"""Ops whose float32 products the CUDA provider's ``use_tf32`` governs, on by default
(microsoft/onnxruntime #19357, products, and #19426, convolutions). Of recurrent ops they say
nothing."""


def runs_tf32(provider: Provider, index: int, options: Mapping[str, str], op: str) -> bool:
    """Whether float32 work of that op runs in TF32; the types of the tensors do not tell.

    Args:
        provider: who runs it.
        index: of the device, as CUDA counts.
        options: of the provider, in force.
        op: type after fusion, or one absorbed.
    """
    if provider.short != "cuda" or not _TF32_OPS.search(op) or tf32.forbidden():
        return False
    if options.get("use_tf32", "1").lower() in ("0", "false"):
        return False
    return (tf32.capability(index) or (0, 0)) >= tf32.FIRST_CAPABILITY


# --- devices ------------------------------------------------------------------------------------

_VENDORS = {
    0x10DE: "nvidia",
    0x1002: "amd",
    0x1022: "amd",
    0x8086: "intel",
    0x106B: "apple",
    0x5143: "qualcomm",
    0x4D4F4351: "qualcomm",  # "QCOM" of an ACPI device
    0x19E5: "huawei",
    0x13B5: "arm",
}


def offered(ep_devices: Iterable[Any]) -> list[tuple[str, str, Any]]:
    """Name the devices of ``get_ep_devices()``: (provider name, handle, device).

    The handle is ``cpu``, or ``gpu:0``, ``npu:0``, …: counted per provider and kind. Devices that
    stand for several others (OpenVINO's AUTO) and virtual ones (to compile for a device that is
    not here) are left out.
    """
    counts: dict[tuple[str, str], int] = {}
    found = []
    for entry in ep_devices:
        if "ov_meta_device" in entry.ep_metadata or entry.device.metadata.get("is_virtual") == "1":
            continue
        kind = str(entry.device.type).rpartition(".")[2].lower()
        position = counts.setdefault((entry.ep_name, kind), 0)
        counts[entry.ep_name, kind] += 1
        handle = "cpu" if kind == "cpu" else f"{kind}:{position}"
        found.append((entry.ep_name, handle, entry))
    return found


def device_of(ep: str, handle: str, entry: Any) -> Device:
    """The facts of one ``OrtEpDevice``; its product is empty where nothing has a name for it."""
    provider, hardware = of_ep(ep), entry.device
    metadata = {**hardware.metadata, **entry.ep_metadata}
    facts = {}
    if provider.short != "cpu":
        facts[f"onnxruntime {provider.short} provider"] = metadata.get("version", "")
    if handle == "cpu":
        return cpu_device(runtimes=(provider.runtime,), handle=handle, facts=facts)
    kind, _, index = handle.partition(":")
    vendor = _VENDORS.get(hardware.vendor_id) or hardware.vendor.lower() or provider.vendor
    pci = metadata.get("pci_bus_id", "")
    # What the CUDA plugin adds, by its source (cuda/plugin/cuda_ep_factory.cc).
    capability = metadata.get("cuda_compute_capability", "")
    cuda_arch = f"sm_{capability.replace('.', '')}" if capability else ""
    arch = metadata.get("DEVICE_ARCHITECTURE") or cuda_arch
    names = ("FULL_DEVICE_NAME", "cuda_device_name", "Description")
    product = next((metadata[name] for name in names if metadata.get(name)), "")
    if not product:
        product, unnamed = _unnamed(vendor, kind)
        arch = arch or unnamed
    return Device(
        runtimes=(provider.runtime,),
        handle=handle,
        vendor=vendor,
        arch=arch,
        product=product,
        platform="npu" if kind == "npu" and provider.short == "openvino" else provider.platform,
        index=int(index),
        facts={name: value for name, value in facts.items() if value} | _driver(vendor),
        address={"pci": pci} if pci else {},
    )


def built_in(
    available: Sequence[str],
    covered: set[str],
    root: Path = Path("/"),
    folder: Path | None = None,
) -> tuple[list[Device], list[Absent]]:
    """Devices of providers that are part of the wheel and do not list devices themselves.

    Args:
        available: ``get_available_providers()``: what was compiled in, whether usable or not.
        covered: providers that listed devices.
        root: where ``sys`` is mounted.
        folder: of the providers' own libraries.
    """
    devices: list[Device] = []
    absents: list[Absent] = []
    for ep in available:
        provider = of_ep(ep)
        if ep in covered or not provider.computes:
            continue
        found = _devices_of(provider, root)
        if found and folder is not None and (lacks := _lacks(provider, folder)):
            reason = f"present but unusable: {lacks}"
            absents.append(Absent(name=provider.runtime, reason=reason))
            continue
        devices += found
        if not found:
            reason = f"no device: onnxruntime has {ep}, and no {provider.vendor} GPU answered"
            absents.append(Absent(name=provider.runtime, reason=reason))
    return devices, absents


def _lacks(provider: Provider, folder: Path) -> str:
    """What cannot be loaded of the library that a provider is built on; empty if nothing.

    Every wheel for CUDA holds the TensorRT provider, and few machines have TensorRT. The provider's
    own library must not be loaded to find out: ONNX Runtime's build notes say so
    (microsoft/onnxruntime #5944), and others saw it crash outside of ONNX Runtime (#5876).
    """
    file = folder / "libonnxruntime_providers_tensorrt.so"
    if provider.short != "tensorrt" or not file.is_file():
        return ""
    needed = re.search(rb"libnvinfer\.so\.\d+", file.read_bytes())
    try:
        if needed:
            ctypes.CDLL(needed[0].decode())
    except OSError as exc:
        return str(exc)
    return ""


def _devices_of(provider: Provider, root: Path) -> list[Device]:
    names = (provider.runtime,)
    if provider.kind == "cpu":
        return [cpu_device(runtimes=names, handle="cpu")]
    if provider.platform == "cuda":
        return gpu_drivers.nvidia_devices(names)
    if provider.platform == "rocm":
        return gpu_drivers.amd_devices(names, root)
    # ONNX Runtime cannot be asked, so the device joins what another library names.
    vendor = provider.vendor or provider.short
    product, arch = _unnamed(vendor, provider.kind)
    single = Device(
        runtimes=names,
        handle=f"{provider.kind}:0",
        vendor=vendor,
        arch=arch,
        product=product,
        platform=provider.platform,
        facts=_driver(vendor),
    )
    return [single]


def _unnamed(vendor: str, kind: str) -> tuple[str, str]:
    """Product and architecture of a device that ONNX Runtime has no name for.

    The chip of a Mac; otherwise no product, and what sets a neural unit apart from the vendor's
    GPU, which has no name here either.
    """
    return apple_chip() if vendor == "apple" else ("", "npu" if kind == "npu" else "")


def _driver(vendor: str) -> dict[str, str]:
    driver = gpu_drivers.apple_driver() if vendor == "apple" else ""
    return {"driver": driver} if driver else {}


__all__ = [
    "TABLE",
    "Provider",
    "built_in",
    "device_of",
    "named",
    "needs_environment",
    "of_ep",
    "offered",
    "resolve",
    "runs_tf32",
]
