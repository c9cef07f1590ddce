"""The compute capability of a CUDA device, asked of a driver that is not here."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_portability.runtimes import tf32


def driver(attributes: dict[int, int], failing: str = "") -> Any:
    """NVIDIA's driver library; it answers 0 for success."""

    def attribute(pointer: Any, name: int, _device: object) -> int:
        pointer._obj.value = attributes[name]
        return 1 if failing == "attribute" else 0

    return SimpleNamespace(
        cuInit=lambda _flags: 100 if failing == "init" else 0,
        cuDeviceGet=lambda _pointer, _index: 101 if failing == "device" else 0,
        cuDeviceGetAttribute=attribute,
    )


def test_the_driver_tells_the_compute_capability(monkeypatch: pytest.MonkeyPatch) -> None:
    """An H200 is 9.0."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver({75: 9, 76: 0}))
    assert tf32.capability(0) == (9, 0)


@pytest.mark.parametrize("failing", ["init", "device", "attribute"])
def test_a_driver_that_does_not_answer_leaves_it_unknown(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    """As without a device."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver({75: 9, 76: 0}, failing))
    assert tf32.capability(0) is None


def test_without_a_driver_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on most machines of a CI."""

    def missing(_name: str) -> None:
        msg = "libcuda.so.1: cannot open shared object file"
        raise OSError(msg)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert tf32.capability(0) is None
