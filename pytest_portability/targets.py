"""What hardware a build runs on. Knows devices as facts; which library sees them is the runtimes' job."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as one library sees it.

    Attributes:
        runtimes: names of the runtimes that can build for it through this handle.
        handle: the library's own name of the device, such as ``cuda:0`` or ``GPU.1``.
        vendor: ``nvidia``, ``amd``, ``intel``, ``apple``, … or ``cpu`` for a CPU of any vendor.
        arch: ``sm_90``, ``gfx942``, ``xe-hpc``, ``x86_64``, … as the field writes it.
        product: marketing name as reported, such as ``NVIDIA H200``.
        platform: ``cuda``, ``rocm``, ``xpu``, ``mps``, ``cpu``, ``directml``, ``webgpu``, …
        index: position among the devices of this library; never part of an identity.
        memory_bytes: device memory, None where the library does not say.
        partition: MIG profile or AMD compute/memory partition, empty for a whole device.
        facts: driver and library facts for the record's toolchain, name → value.
    """

    runtimes: tuple[str, ...]
    handle: str
    vendor: str
    arch: str
    product: str
    platform: str
    index: int = 0
    memory_bytes: int | None = None
    partition: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The hardware a build runs on; two identical cards are one target.

    Attributes:
        handles: runtime name → that library's handle of the first free such device.
    """

    vendor: str
    arch: str
    product: str
    platform: str
    index: int = 0
    memory_bytes: int | None = None
    handles: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """Slug of vendor and product: no host name, driver, clock or device index in it."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A library or a device that is not here, and why.

    Attributes:
        name: the package or platform asked about, such as ``torch`` or ``cuda``.
        reason: ``not installed``, ``no device``, or ``present but unusable: …``.
    """

    name: str
    reason: str
