"""Versions of NVIDIA's libraries that this process has loaded, by their own word.

ONNX Runtime does not tell which ones it computes with. Written to NVIDIA's documentation, not seen
on a device.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any


def versions() -> dict[str, str]:
    """Library → version, as ``{"cuda": "13.0", "cudnn": "9.14.0"}``; belongs behind a build.

    Nothing is loaded to be asked. Empty on other systems than Linux; what is not loaded, or does
    not answer, is left out. Of several releases in one process the newest answers, whoever uses it.
    """
    if sys.platform != "linux":
        return {}
    found = {name: _asked(files, ask) for name, (files, ask) in _LIBRARIES.items()}
    return {name: version for name, version in found.items() if version}


def _asked(files: Sequence[str], ask: Callable[[Any], str]) -> str:
    for file in files:
        try:
            return ask(ctypes.CDLL(file, mode=os.RTLD_NOLOAD))
        except (OSError, AttributeError):  # not loaded; loaded, and without the function
            continue
    return ""


def _cuda(library: Any) -> str:
    number = ctypes.c_int()
    if library.cudaRuntimeGetVersion(ctypes.byref(number)):
        return ""
    return f"{number.value // 1000}.{number.value % 1000 // 10}"


def _cudnn(library: Any) -> str:
    library.cudnnGetVersion.restype = ctypes.c_size_t
    return _dotted(library.cudnnGetVersion())


def _tensorrt(library: Any) -> str:
    library.getInferLibVersion.restype = ctypes.c_int32
    return _dotted(library.getInferLibVersion())


def _dotted(number: int) -> str:
    """8907 is 8.9.7; from cuDNN 9 and TensorRT 10 on there is one more digit: 91400 is 9.14.0."""
    unit = 10_000 if number >= 10_000 else 1000
    return f"{number // unit}.{number % unit // 100}.{number % 100}"


_LIBRARIES: dict[str, tuple[Sequence[str], Callable[[Any], str]]] = {
    "cuda": (("libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"), _cuda),
    "cudnn": (("libcudnn.so.9", "libcudnn.so.8"), _cudnn),
    "tensorrt": (("libnvinfer.so.11", "libnvinfer.so.10", "libnvinfer.so.8"), _tensorrt),
}
"""Name in a toolchain → names for the loader, the newest first, and what to ask."""


__all__ = ["versions"]
