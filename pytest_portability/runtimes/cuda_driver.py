"""What NVIDIA's driver says of the devices, in the order in which CUDA counts them."""

from __future__ import annotations

import ctypes
import sys
from typing import Any


def addresses() -> tuple[str, ...]:
    """PCI addresses of the devices that CUDA shows to this process, in its order: ``0000:17:00.0``.

    CUDA counts the fastest card first (``CUDA_DEVICE_ORDER``), ``nvidia-smi`` by place on the bus:
    where cards differ, the same number may mean two of them. A MIG slice has its card's address,
    while its id is its own (``cuDeviceGetUuid_v2`` in NVIDIA's driver API) and none that
    ``nvidia-smi --query-gpu`` lists. Empty where the driver does not tell. Opens the driver, so it
    belongs in a process that is not forked later. Written to the documentation, not seen on a
    device.
    """
    try:
        driver: Any = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return ()
    count, device = ctypes.c_int(), ctypes.c_int()
    text = ctypes.create_string_buffer(32)
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found = []
    for index in range(count.value):
        if driver.cuDeviceGet(ctypes.byref(device), index):
            return ()
        if driver.cuDeviceGetPCIBusId(text, len(text), device):
            return ()
        found.append(text.value.decode("ascii").lower())
    return tuple(found)


__all__ = ["addresses"]
