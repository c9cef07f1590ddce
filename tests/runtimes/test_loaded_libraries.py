"""Versions of NVIDIA's libraries, asked of stand-ins with the documented calls.

None of them is here; that nothing is loaded to be asked is tried with the C library.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pytest_portability.runtimes import loaded_libraries

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="no other system is asked")


class Function:
    """A function of a library as ctypes gives it: its result's type can be set."""

    restype: Any = ctypes.c_int

    def __init__(self, answer: int) -> None:
        self._answer = answer

    def __call__(self) -> int:
        return self._answer


class Cudart:
    """``cudaRuntimeGetVersion`` writes into a pointer and answers 0 for success."""

    def __init__(self, version: int, error: int = 0) -> None:
        self._version, self._error = version, error

    def cudaRuntimeGetVersion(self, pointer: Any) -> int:  # noqa: N802 - CUDA's name
        """Tell."""
        pointer._obj.value = self._version
        return self._error


class Cudnn:
    """``cudnnGetVersion`` answers a ``size_t``."""

    def __init__(self, version: int) -> None:
        self.cudnnGetVersion = Function(version)


class Nvinfer:
    """``getInferLibVersion`` answers an ``int32_t``."""

    def __init__(self, version: int) -> None:
        self.getInferLibVersion = Function(version)


def load(monkeypatch: pytest.MonkeyPatch, loaded: Mapping[str, object]) -> None:
    """Have this process hold these libraries, by the names that its loader knows."""

    def opened(name: str, mode: int) -> object:
        assert mode == os.RTLD_NOLOAD
        if name not in loaded:
            msg = f"{name}: cannot open shared object file"
            raise OSError(msg)
        return loaded[name]

    monkeypatch.setattr(ctypes, "CDLL", opened)


@pytest.mark.parametrize(
    ("loaded", "expected"),
    [
        (
            {
                "libcudart.so.13": Cudart(13000),
                "libcudnn.so.9": Cudnn(91400),
                "libnvinfer.so.10": Nvinfer(101302),
            },
            {"cuda": "13.0", "cudnn": "9.14.0", "tensorrt": "10.13.2"},
        ),
        (
            {
                "libcudart.so.11.0": Cudart(11080),
                "libcudnn.so.8": Cudnn(8907),
                "libnvinfer.so.8": Nvinfer(8601),
            },
            {"cuda": "11.8", "cudnn": "8.9.7", "tensorrt": "8.6.1"},
        ),
        (
            {"libcudart.so.12": Cudart(12090), "libcudart.so.13": Cudart(13010)},
            {"cuda": "13.1"},
        ),
        ({"libcudart.so.12": Cudart(12090, error=35), "libcudnn.so.9": object()}, {}),
        ({}, {}),
    ],
    ids=["new", "old", "two releases", "no answer", "none"],
)
def test_what_is_loaded_tells_its_version(
    monkeypatch: pytest.MonkeyPatch, loaded: Mapping[str, object], expected: dict[str, str]
) -> None:
    load(monkeypatch, loaded)
    assert loaded_libraries.versions() == expected


def test_the_whole_of_a_size_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A result is an ``int`` to ctypes unless it is told otherwise."""
    cudnn = Cudnn(91400)
    load(monkeypatch, {"libcudnn.so.9": cudnn})
    loaded_libraries.versions()
    assert cudnn.cudnnGetVersion.restype is ctypes.c_size_t


def test_another_system_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    load(monkeypatch, {"libcudnn.so.9": Cudnn(91400)})
    monkeypatch.setattr(sys, "platform", "win32")
    assert loaded_libraries.versions() == {}


def test_nothing_is_loaded_to_be_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A library that could be loaded, and is not, is left alone."""
    maps = Path("/proc/self/maps").read_text(encoding="utf-8").split()
    here = next(Path(word) for word in maps if Path(word).name.startswith("libc.so"))
    copied = Path(shutil.copy(here, tmp_path / "libcopied.so"))
    asked = {
        "here": ([here.name], lambda _library: "loaded"),
        "copied": ([str(copied)], lambda _library: "loaded"),
    }
    monkeypatch.setattr(loaded_libraries, "_LIBRARIES", asked)
    assert loaded_libraries.versions() == {"here": "loaded"}
    assert str(copied) not in Path("/proc/self/maps").read_text(encoding="utf-8")
