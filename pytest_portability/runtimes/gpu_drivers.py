"""GPUs as their drivers list them, and drivers' versions, where a library tells neither.

Written to the documentation and the drivers' sources, not seen on a device.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_portability.runtimes import cuda_driver
from pytest_portability.targets import Device

_SMI = "name,compute_cap,memory.total,driver_version,pci.bus_id,uuid"


def nvidia_devices(runtimes: tuple[str, ...]) -> list[Device]:
    """Cards as ``nvidia-smi`` lists them, numbered as CUDA shows them to this process.

    Args:
        runtimes: names of the runtimes that can build for them.
    """
    rows = _nvidia_smi()
    chosen = [rows[place] for place in _visible("CUDA_VISIBLE_DEVICES", [row[5] for row in rows])]
    # nvidia-smi writes a domain of eight digits, CUDA one of four.
    by_place = {row[4].lower()[-12:]: row for row in rows}
    told = cuda_driver.addresses()
    if told and all(place in by_place for place in told):
        chosen = [by_place[place] for place in told]
    return [
        Device(
            runtimes=runtimes,
            handle=f"gpu:{index}",
            vendor="nvidia",
            arch=f"sm_{capability.replace('.', '')}",
            product=product,
            platform="cuda",
            index=index,
            memory_bytes=int(mib) * 2**20 if mib.isdigit() else None,
            facts={"driver": driver},
            address={"pci": pci.lower(), "uuid": uuid},
        )
        for index, (product, capability, mib, driver, pci, uuid) in enumerate(chosen)
    ]


def _nvidia_smi() -> list[list[str]]:
    command = ["nvidia-smi", f"--query-gpu={_SMI}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]


@dataclass(frozen=True, slots=True)
class _Node:
    """A GPU of the kernel's compute driver (KFD)."""

    facts: Mapping[str, int]

    @property
    def uuid(self) -> str:
        """As ROCr writes it; empty for a card without an id of its own."""
        unique = self.facts.get("unique_id", 0)
        return f"GPU-{unique:016x}" if unique else ""

    @property
    def arch(self) -> str:
        version = self.facts["gfx_target_version"]
        return f"gfx{version // 10000}{version // 100 % 100:x}{version % 100:x}"

    @property
    def pci(self) -> str:
        place = self.facts.get("location_id", 0)
        address = f"{place >> 8 & 0xFF:02x}:{place >> 3 & 0x1F:02x}.{place & 7}"
        return f"{self.facts.get('domain', 0):04x}:{address}"


def amd_devices(runtimes: tuple[str, ...], root: Path = Path("/")) -> list[Device]:
    """GPUs of the kernel's compute driver, numbered as HIP shows them to this process.

    The kernel lists every card and needs no ROCm user space to be asked. ``ROCR_VISIBLE_DEVICES``
    hides some from ROCr, and ``HIP_VISIBLE_DEVICES``, or else ``CUDA_VISIBLE_DEVICES``, some of
    those from HIP. Source: GPU isolation in ROCm's documentation; ROCr's ``amd_filter_device.cpp``
    and CLR's ``rocdevice.cpp``.

    Args:
        runtimes: names of the runtimes that can build for them.
        root: where ``sys`` is mounted.
    """
    nodes = _nodes(root)
    nodes = [nodes[place] for place in _visible("ROCR_VISIBLE_DEVICES", [n.uuid for n in nodes])]
    # HIP takes an empty variable for none, unlike ROCr and CUDA.
    for name in ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        if os.environ.get(name):
            nodes = [nodes[place] for place in _visible(name, [n.uuid for n in nodes])]
            break
    driver = amd_driver(root)
    return [
        Device(
            runtimes=runtimes,
            handle=f"gpu:{index}",
            vendor="amd",
            arch=node.arch,
            product=_text(root / "sys/bus/pci/devices" / node.pci / "product_name"),
            platform="rocm",
            index=index,
            facts={"driver": driver} if driver else {},
            address={"pci": node.pci},
        )
        for index, node in enumerate(nodes)
    ]


def _nodes(root: Path) -> list[_Node]:
    files = (root / "sys/class/kfd/kfd/topology/nodes").glob("*/properties")
    found = []
    for file in sorted(files, key=lambda f: int(f.parent.name)):
        lines = (line.split() for line in _text(file).splitlines())
        facts = {parts[0]: int(parts[1]) for parts in lines if len(parts) == 2}
        if facts.get("gfx_target_version"):  # the host's CPU is a node too
            found.append(_Node(facts))
    return found


def _visible(variable: str, uuids: Sequence[str]) -> list[int]:
    """Positions of the cards that the environment shows, in its order; all where it says nothing.

    A card is named by its position or by its uuid, or the beginning of it, with the prefix
    ``GPU-``. As with CUDA and ROCr, the list ends at the first name that no card has, or that comes
    again.
    """
    text = os.environ.get(variable)
    if text is None:
        return list(range(len(uuids)))
    found: list[int] = []
    for name in (word.strip().lower() for word in text.split(",")):
        by_uuid = len(name) > len("gpu-") and name.startswith("gpu-")
        meant = [
            place
            for place, uuid in enumerate(uuids)
            if name == str(place) or (by_uuid and uuid.lower().startswith(name))
        ]
        if len(meant) != 1 or meant[0] in found:
            break
        found += meant
    return found


_NVRM = re.compile(r"^NVRM version:.*Kernel Module\D.*?\s(\d+(?:\.\d+)+)", re.MULTILINE)


def nvidia_driver(root: Path = Path("/")) -> str:
    """Version of NVIDIA's kernel module, such as ``570.86.15``; empty where it is not loaded.

    Args:
        root: where ``proc`` is mounted.
    """
    found = _NVRM.search(_text(root / "proc/driver/nvidia/version"))
    return found[1] if found else ""


def amd_driver(root: Path = Path("/")) -> str:
    """Version of AMD's kernel module; empty for the kernel's own, which has none of its own.

    Args:
        root: where ``sys`` is mounted.
    """
    return _text(root / "sys/module/amdgpu/version")


def apple_driver() -> str:
    """The system that Metal is a part of, such as ``macOS 15.1``; empty elsewhere."""
    version = platform.mac_ver()[0]
    return f"macOS {version}" if version else ""


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


__all__ = ["amd_devices", "amd_driver", "apple_driver", "nvidia_devices", "nvidia_driver"]
