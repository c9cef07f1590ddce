"""Which devices torch sees, and why others are not there; builds nothing.

What is read of CUDA, ROCm, XPU and MPS is written to the documentation, not seen on a device.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_portability.errors import RuntimeUnavailable
from pytest_portability.runtimes import gpu_drivers
from pytest_portability.targets import Absent, Device, apple_chip, cpu_device, split_partition

RUNTIMES = ("torch", "torch.compile")
_XE = {
    "0b6": "xe-hpc",
    "0bd": "xe-hpc",
    "56": "xe-hpg",
    "64": "xe2-lpg",
    "7d": "xe-lpg",
    "e2": "xe2-hpg",
}
"""First hexadecimal digits of an Intel PCI device id → architecture, as Intel's drivers name it."""
_OTHER_VENDORS = {"hpu": "intel", "npu": "huawei", "mlu": "cambricon", "mtia": "meta"}


def import_torch(runtime: str, purpose: str) -> Any:
    """Import torch.

    Args:
        runtime: name of the runtime that needs it.
        purpose: what it needs it for, for the message.

    Raises:
        RuntimeUnavailable: torch is not installed, or present but unusable.
    """
    try:
        import torch
    except Exception as exc:
        if isinstance(exc, ModuleNotFoundError) and exc.name == "torch":
            msg = (
                f"torch is not installed: runtime {runtime!r} needs it to {purpose}; "
                f"pip install 'pytest-portability[torch]' ({exc})"
            )
        else:
            msg = f"torch is present but unusable: {type(exc).__name__}: {exc}"
        raise RuntimeUnavailable(msg) from exc
    return torch


class TorchLibrary:
    """Torch as a source of devices."""

    def devices(self) -> tuple[Sequence[Device], Sequence[Absent]]:
        """Devices found, and what is not there with its reason.

        Initialises the accelerators' drivers, so it belongs in a process that is not forked later.

        Raises:
            RuntimeUnavailable: torch is not installed, or present but unusable.
        """
        torch = import_torch("torch", "find devices")
        facts = {"torch": str(torch.__version__), "cpu_capability": _cpu_capability(torch)}
        found = [cpu_device(runtimes=RUNTIMES, handle="cpu", facts=facts)]
        absent = []
        for platform in ("cuda", "rocm", "xpu", "mps", *_others(torch)):
            devices, reason = _probe(torch, platform)
            found += devices
            if reason:
                absent.append(Absent(name=platform, reason=reason))
        return found, absent


def _probe(torch: Any, platform: str) -> tuple[list[Device], str]:
    """Devices of one platform, or the reason for there being none."""
    if reason := _not_built(torch, platform):
        return [], reason
    kind = "cuda" if platform == "rocm" else platform
    describe = _DESCRIBE.get(platform, _other)
    with warnings.catch_warnings():
        # Counting devices warns of a driver that is missing or too old; the reason tells it.
        warnings.simplefilter("ignore")
        try:
            devices = [describe(torch, kind, i) for i in range(_count(torch, kind))]
        except Exception as exc:  # noqa: BLE001 - a broken driver raises anything; all is a reason
            return [], f"present but unusable: {_words(exc)}"
        return devices, "" if devices else _why_none(torch, kind)


def _not_built(torch: Any, platform: str) -> str:
    """Why this torch cannot know the platform at all; empty if it can."""
    if platform == "mps":
        built = torch.backends.mps.is_built()
    elif platform in {"cuda", "rocm", "xpu"}:
        version = {"rocm": "hip"}.get(platform, platform)
        built = getattr(torch.version, version, None) is not None
    else:
        built = True
    names = {"cuda": "CUDA", "rocm": "ROCm", "xpu": "XPU", "mps": "MPS"}
    return "" if built else f"torch {torch.__version__} has no {names[platform]} build"


def _others(torch: Any) -> tuple[str, ...]:
    """The current accelerator, if it is none of the four that are asked by name."""
    try:
        device = torch.accelerator.current_accelerator()
    except (AttributeError, RuntimeError):  # torch < 2.6, or an extension that failed to load
        return ()
    known = {"cuda", "xpu", "mps"}
    return () if device is None or device.type in known else (str(device.type),)


def _count(torch: Any, kind: str) -> int:
    if kind == "mps":
        return 1 if torch.backends.mps.is_available() else 0
    module = getattr(torch, kind, None)
    counter = getattr(module, "device_count", None) or torch.accelerator.device_count
    return int(counter())


def _why_none(torch: Any, kind: str) -> str:
    """Torch answers "no device" and "driver broken" alike with a count of 0; only init() tells."""
    init = getattr(getattr(torch, kind, None), "init", None)
    if init is None:
        return "no device"
    try:
        init()
    except Exception as exc:  # noqa: BLE001 - a broken driver raises anything; all is a reason
        words = _words(exc)
        if re.search(r"no nvidia driver", words, re.IGNORECASE):
            return f"driver missing: {words}"
        if re.search(r"no \w+ (gpus|devices) (are|is) available", words, re.IGNORECASE):
            return "no device"
        return f"present but unusable: {words}"
    return "no device"


def _words(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines()
    return f"{type(exc).__name__}: {lines[0]}" if lines else type(exc).__name__


def _cuda(torch: Any, kind: str, index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    product, partition = split_partition(properties.name)
    return Device(
        runtimes=RUNTIMES,
        handle=f"{kind}:{index}",
        vendor="nvidia",
        arch=f"sm_{properties.major}{properties.minor}",
        product=product,
        platform="cuda",
        index=index,
        memory_bytes=int(properties.total_memory),
        partition=partition,
        facts=_facts(torch, cuda=torch.version.cuda, driver=gpu_drivers.nvidia_driver()),
        address=_address(properties),
    )


def _rocm(torch: Any, kind: str, index: int) -> Device:
    properties = torch.cuda.get_device_properties(index)
    address = _address(properties)
    return Device(
        runtimes=RUNTIMES,
        handle=f"{kind}:{index}",
        vendor="amd",
        # "gfx942:sramecc+:xnack-": the features are modes of one architecture.
        arch=str(properties.gcnArchName).split(":")[0],
        product=str(properties.name),
        platform="rocm",
        index=index,
        memory_bytes=int(properties.total_memory),
        partition=amd_partition(address.get("pci", "")),
        facts=_facts(torch, hip=torch.version.hip, driver=gpu_drivers.amd_driver()),
        address=address,
    )


def _xpu(torch: Any, kind: str, index: int) -> Device:
    properties = torch.xpu.get_device_properties(index)
    digits = f"{getattr(properties, 'device_id', 0):04x}"
    arch = next((name for start, name in _XE.items() if digits.startswith(start)), "")
    if not arch:
        arch = "xe-hpc" if " Max " in properties.name else f"xe-{digits}"
    driver = str(getattr(properties, "driver_version", ""))
    return Device(
        runtimes=RUNTIMES,
        handle=f"{kind}:{index}",
        vendor="intel",
        arch=arch,
        product=str(properties.name),
        platform="xpu",
        index=index,
        memory_bytes=int(properties.total_memory),
        facts=_facts(torch, xpu=torch.version.xpu, driver=driver),
        address=_address(properties),
    )


def _mps(torch: Any, kind: str, index: int) -> Device:
    product, arch = apple_chip()
    memory = getattr(torch.mps, "recommended_max_memory", None)
    return Device(
        runtimes=RUNTIMES,
        handle=kind,
        vendor="apple",
        arch=arch,
        product=product,
        platform="mps",
        index=index,
        memory_bytes=int(memory()) if memory else None,
        facts=_facts(torch, driver=gpu_drivers.apple_driver()),
    )


def _other(torch: Any, kind: str, index: int) -> Device:
    """An accelerator that an extension added; what it does not tell stays empty."""
    module = getattr(torch, kind, None)
    try:
        product = str(module.get_device_name(index)) if module else ""
    except (AttributeError, RuntimeError, NotImplementedError):
        product = ""
    return Device(
        runtimes=("torch",),
        handle=f"{kind}:{index}",
        vendor=_OTHER_VENDORS.get(kind, kind),
        arch=kind,
        product=product,
        platform=kind,
        index=index,
        facts=_facts(torch),
    )


_DESCRIBE: dict[str, Callable[[Any, str, int], Device]] = {
    "cuda": _cuda,
    "rocm": _rocm,
    "xpu": _xpu,
    "mps": _mps,
}


def _facts(torch: Any, **versions: object) -> Mapping[str, str]:
    facts = {"torch": str(torch.__version__)}
    return facts | {name: str(value) for name, value in versions.items() if value}


def _address(properties: Any) -> dict[str, str]:
    """``uuid`` and ``pci`` as far as torch tells them."""
    address = {}
    uuid = getattr(properties, "uuid", None)
    if uuid:
        address["uuid"] = str(uuid)
    if hasattr(properties, "pci_bus_id"):
        place = (properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id)
        address["pci"] = "{:04x}:{:02x}:{:02x}.0".format(*place)
    return address


def amd_partition(pci: str, root: Path = Path("/sys/bus/pci/devices")) -> str:
    """AMD compute and memory partition modes from sysfs, such as ``CPX/NPS4``.

    Args:
        pci: address such as ``0000:1b:00.0``; empty gives an empty answer.
        root: where the kernel lists PCI devices.
    """
    names = ("current_compute_partition", "current_memory_partition")
    modes = [_text(root / pci / name) for name in names] if pci else []
    return "/".join(mode for mode in modes if mode)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except (OSError, ValueError):  # only the MI300 family has these files
        return ""


def _cpu_capability(torch: Any) -> str:
    """Instruction set that ATen's kernels use; ``ATEN_CPU_CAPABILITY`` can cap it."""
    return str(torch.backends.cpu.get_cpu_capability())
