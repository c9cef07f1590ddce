"""NVIDIA's GPUs by NVML: the module ``pynvml`` of the package nvidia-ml-py.

Written to the documentation, not seen on a device.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pytest_portability.sensors.reading import (
    Asked,
    Counter,
    Reading,
    UnknownError,
    only,
    others,
    own,
)

_IDLE = 0x1
_POWER_CAP = 0x4
_REASONS = {
    _POWER_CAP: "sw power cap",
    0x8: "hw slowdown",
    0x10: "sync boost",
    0x20: "sw thermal slowdown",
    0x40: "hw thermal slowdown",
    0x80: "hw power brake",
    0x200: "board limit",
    0x400: "reliability",
}
"""Bits of the clocks' event reasons. Idle (0x1), application clocks (0x2) and the display's clock
(0x100) are what somebody set or did not ask for, not throttling."""

_POLICIES = {0: "sw power cap", 1: "thermal slowdown", 3: "board limit", 5: "reliability"}
"""Performance policies whose violations are counted, in nanoseconds."""


def open_nvml(facts: Mapping[str, str], _root: Path) -> Callable[[], Reading]:
    """Find the device, and give what reads it; whatever is raised is why that cannot be."""
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return partial(_read, nvml, _device(nvml, facts))


def _device(nvml: Any, facts: Mapping[str, str]) -> Any:
    """Known by its ids alone: CUDA numbers devices in another order than NVML does."""
    uuid, pci = facts.get("uuid", ""), facts.get("pci", "")
    asked = Asked()
    found = None
    if uuid:  # torch leaves out the prefix
        full = uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
        found = asked(f"uuid {full}", lambda: nvml.nvmlDeviceGetHandleByUUID(full))
    if pci and found is None:
        found = asked(f"pci {pci}", lambda: nvml.nvmlDeviceGetHandleByPciBusId(pci))
    if asked.missing and found is None:
        raise UnknownError("; ".join(asked.missing))
    if found is None:
        found = nvml.nvmlDeviceGetHandleByIndex(only(range(nvml.nvmlDeviceGetCount())))
    return found


def _read(nvml: Any, device: Any) -> Reading:
    ask = Asked()
    reasons = ask("throttling", lambda: _reasons(nvml, device))
    mhz = ask("clock", lambda: nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM))
    degrees = ask("temperature", lambda: _temperature(nvml, device))
    milliwatts = ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(device))
    counters = []
    for policy, reason in _POLICIES.items():
        spent_s = ask(f"time of {reason}", partial(_violation_s, nvml, device, policy))
        if spent_s is not None:
            counters.append(Counter(reason=reason, value=spent_s))
    return Reading(
        clock_hz=None if mhz is None else mhz * 1e6,
        temperature_c=None if degrees is None else float(degrees),
        power_w=None if milliwatts is None else milliwatts / 1e3,
        throttled=reasons or (),
        neighbours=ask("neighbours", lambda: _neighbours(nvml, device)),
        own_bytes=ask("own memory", lambda: own(_held(nvml, device))),
        counters=tuple(counters),
        missing=tuple(ask.missing),
    )


def _reasons(nvml: Any, device: Any) -> tuple[str, ...]:
    try:
        mask = nvml.nvmlDeviceGetCurrentClocksEventReasons(device)
    except (AttributeError, nvml.NVMLError):  # the name until driver 535, deprecated since
        mask = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device)
    if mask & _IDLE:
        mask &= ~_POWER_CAP  # a low power state shows as capped, and holds nothing back
    return tuple(words for bit, words in _REASONS.items() if mask & bit)


def _violation_s(nvml: Any, device: Any, policy: int) -> float:
    nanoseconds: int = nvml.nvmlDeviceGetViolationStatus(device, policy).violationTime
    return nanoseconds / 1e9


def _temperature(nvml: Any, device: Any) -> int:
    try:
        found: int = nvml.nvmlDeviceGetTemperatureV(device, nvml.NVML_TEMPERATURE_GPU)
    except (AttributeError, nvml.NVMLError):  # an older library or driver
        found = nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU)
    return found


def _neighbours(nvml: Any, device: Any) -> int:
    try:
        sliced = nvml.nvmlDeviceGetMigMode(device)[0] == nvml.NVML_DEVICE_MIG_ENABLE
    except (AttributeError, nvml.NVMLError):  # a device that cannot be partitioned
        sliced = False
    if sliced:
        what = "a partitioned device (MIG): processes of other slices are no neighbours"
        raise UnknownError(what)
    return others(_held(nvml, device))


def _held(nvml: Any, device: Any) -> dict[int, int | None]:
    """Process id → bytes; None where a driver for displays (WDDM) keeps them to itself."""
    found = nvml.nvmlDeviceGetComputeRunningProcesses(device)
    return {process.pid: process.usedGpuMemory for process in found}
