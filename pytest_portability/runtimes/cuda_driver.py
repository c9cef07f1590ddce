"""What NVIDIA's driver says of the devices, in the order in which CUDA counts them."""

from __future__ import annotations

import ctypes
import sys
import uuid
from typing import Any


def uuids() -> tuple[str, ...]:
    """Ids of the devices that CUDA shows to this process, in its order, as ``nvidia-smi`` has them.

    CUDA counts the fastest card first, ``nvidia-smi`` by place on the bus: where cards differ, the
    same number may mean two of them. Empty where the driver does not tell. Opens the driver, so it
    belongs in a process that is not forked later.
    """
    try:
        driver: Any = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return ()
    count, device, raw = ctypes.c_int(), ctypes.c_int(), (ctypes.c_ubyte * 16)()
    if driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        return ()
    found = []
    for index in range(count.value):
        if driver.cuDeviceGet(ctypes.byref(device), index):
            return ()
        if driver.cuDeviceGetUuid(ctypes.byref(raw), device):
            return ()
        found.append(f"GPU-{uuid.UUID(bytes=bytes(raw))}")
    return tuple(found)


__all__ = ["uuids"]
