"""The order of CUDA's devices, asked of a driver that is not here."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_portability.runtimes import cuda_driver

CARDS = (b"0000:65:00.0", b"0000:1B:00.0")


def driver(failing: str = "") -> Any:
    """NVIDIA's driver library with two cards; it answers 0 for success."""

    def count(pointer: Any) -> int:
        pointer._obj.value = len(CARDS)
        return 1 if failing == "count" else 0

    def get(pointer: Any, index: int) -> int:
        pointer._obj.value = index
        return 1 if failing == "device" else 0

    def place(text: Any, length: int, device: Any) -> int:
        assert length > len(CARDS[device.value])
        text.value = CARDS[device.value]
        return 1 if failing == "place" else 0

    return SimpleNamespace(
        cuInit=lambda _flags: 100 if failing == "init" else 0,
        cuDeviceGetCount=count,
        cuDeviceGet=get,
        cuDeviceGetPCIBusId=place,
    )


def test_the_driver_tells_the_devices_in_cuda_s_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver())
    assert cuda_driver.addresses() == ("0000:65:00.0", "0000:1b:00.0")


@pytest.mark.parametrize("failing", ["init", "count", "device", "place"])
def test_a_driver_that_does_not_answer_leaves_it_unknown(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: driver(failing))
    assert cuda_driver.addresses() == ()


def test_without_a_driver_it_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_name: str) -> None:
        msg = "libcuda.so.1: cannot open shared object file"
        raise OSError(msg)

    monkeypatch.setattr(ctypes, "CDLL", missing)
    assert cuda_driver.addresses() == ()
