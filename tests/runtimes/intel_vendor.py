"""Lets the OpenVINO provider run on CPUs of other vendors, for the tests only.

The plugin takes a CPU only if ONNX Runtime says that Intel made it, though OpenVINO runs on any
x86 CPU. The vendor id is one number in ONNX Runtime's description of the machine, and no call
changes it; so it is overwritten in memory, after a look that the memory is what it should be.
Without this the provider pair that CI without accelerators can have (CPU and OpenVINO) would be
tested on half of the machines only.
"""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import sys

INTEL = 0x8086


def pretend_intel_cpu() -> None:
    """Make ONNX Runtime describe this CPU as Intel's; does nothing where that is not possible."""
    known = sys.platform == "linux" and platform.python_implementation() == "CPython"
    if not known or importlib.util.find_spec("onnxruntime") is None:
        return
    import onnxruntime  # noqa: PLC0415 # may be absent

    for entry in onnxruntime.get_ep_devices():
        hardware = entry.device
        if entry.ep_name != "CPUExecutionProvider" or hardware.vendor_id == INTEL:
            continue
        # A pybind11 object holds the pointer to its C++ object right after Python's own header;
        # the C++ object begins with type, vendor id and device id.
        address = ctypes.c_void_p.from_address(id(hardware) + object.__basicsize__).value
        fields = (ctypes.c_uint32 * 3).from_address(address or 0)
        if list(fields) == [0, hardware.vendor_id, hardware.device_id]:
            fields[1] = INTEL
