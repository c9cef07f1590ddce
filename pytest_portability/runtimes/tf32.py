"""TF32: products whose tensors are float32 and whose factors an NVIDIA GPU rounds to 10 bits.

No runtime shows it as a type, so it is told by the device, the environment and a library's switch.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from pytest_portability.kernels import Kernel

FIRST_CAPABILITY = (8, 0)
"""Compute capability of the first GPUs that have it (Ampere)."""

_MAJOR, _MINOR = 75, 76
"""``CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR`` and ``_MINOR``."""


def forbidden() -> bool:
    """Whether the environment switches TF32 off in every library of NVIDIA's, whatever they say.

    Source: https://docs.nvidia.com/deeplearning/cudnn/ (``CUDNN_DEFAULT_MATH``) and cuBLAS.
    """
    return os.environ.get("NVIDIA_TF32_OVERRIDE") == "0"


def in_tf32(kernel: Kernel, is_tf32: Callable[[str], bool]) -> Kernel:
    """The kernel with its precision corrected: TF32 work has float32 tensors."""
    hidden = kernel.precision == "fp32" and any(map(is_tf32, (kernel.op, *kernel.absorbs)))
    return replace(kernel, precision="tf32") if hidden else kernel


def capability(index: int) -> tuple[int, int] | None:
    """Compute capability of a CUDA device, None if NVIDIA's driver does not tell.

    Args:
        index: position among the devices that CUDA shows to this process.
    """
    try:
        driver: Any = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    device, value = ctypes.c_int(), ctypes.c_int()
    if driver.cuInit(0) or driver.cuDeviceGet(ctypes.byref(device), index):
        return None
    found = []
    for attribute in (_MAJOR, _MINOR):
        if driver.cuDeviceGetAttribute(ctypes.byref(value), attribute, device):
            return None
        found.append(value.value)
    return found[0], found[1]


__all__ = ["FIRST_CAPABILITY", "capability", "forbidden", "in_tf32"]
