"""Versions of drivers as their kernel modules write them."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from pytest_portability.runtimes import gpu_drivers

CLOSED = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
GCC version:  gcc version 11.4.0 (Ubuntu 11.4.0-1ubuntu1~22.04)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  \
(dvs-builder@U22-I3-B17-02-5)  Thu Jan 23 23:11:47 UTC 2025
GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)
"""
TWO_PARTS = (
    "NVRM version: NVIDIA UNIX x86_64 Kernel Module  390.157  Wed Oct 12 09:19:07 UTC 2022\n"
)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (CLOSED, "535.104.05"),
        (OPEN, "570.86.15"),
        (TWO_PARTS, "390.157"),
        ("NVRM version: of another form\nGCC version:  gcc version 13.3.0\n", ""),
    ],
)
def test_nvidia_s_module_tells_its_version(tmp_path: Path, text: str, version: str) -> None:
    """The closed and the open one; the compiler's version is not the driver's."""
    assert gpu_drivers.nvidia_driver(tmp_path) == ""
    file = tmp_path / "proc/driver/nvidia/version"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert gpu_drivers.nvidia_driver(tmp_path) == version


def test_amd_s_module_tells_its_version_where_it_has_one(tmp_path: Path) -> None:
    """The one built beside the kernel has; the kernel's own has that of the kernel."""
    assert gpu_drivers.amd_driver(tmp_path) == ""
    file = tmp_path / "sys/module/amdgpu/version"
    file.parent.mkdir(parents=True)
    file.write_text("6.10.5\n")
    assert gpu_drivers.amd_driver(tmp_path) == "6.10.5"


@pytest.mark.parametrize(("version", "driver"), [("15.1", "macOS 15.1"), ("", "")])
def test_a_mac_s_driver_is_its_system(
    version: str, driver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metal comes with it; elsewhere Python knows no such version."""
    monkeypatch.setattr(platform, "mac_ver", lambda: (version, ("", "", ""), ""))
    assert gpu_drivers.apple_driver() == driver
