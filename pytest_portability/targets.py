"""What hardware a build runs on, as facts; which library sees it is the runtimes' job."""

from __future__ import annotations

import fnmatch
import math
import os
import platform
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pytest_portability.errors import UsageError

_FILLER = re.compile(
    r"\((?:r|tm|c|igpu|dgpu)\)|®|™|@.*$"
    r"|\b(?:instinct|data center gpu|graphics|corporation|processor|cpu|\d+-core)\b",
    re.IGNORECASE,
)
_MIG = re.compile(r"\s*\bMIG\s+(\S+)", re.IGNORECASE)
_WHOLE = {"", "spx", "nps1"}  # AMD's modes of an undivided device
_PLATFORM_ORDER = ("cuda", "rocm", "xpu", "mps")
"""Where libraries name one device's platform differently, the vendor's own compute stack wins."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One device as one library sees it.

    Attributes:
        runtimes: names of the runtimes that can build for it through this handle.
        handle: the library's own name of the device, such as ``cuda:0`` or ``GPU.1``.
        vendor: ``nvidia``, ``amd``, ``intel``, ``apple``, … or ``cpu`` for a CPU of any vendor.
        arch: ``sm_90``, ``gfx942``, ``xe-hpc``, ``x86_64``, … as the field writes it.
        product: marketing name as reported, such as ``NVIDIA H200``; empty where the library does
            not say.
        platform: ``cuda``, ``rocm``, ``xpu``, ``mps``, ``cpu``, ``directml``, ``webgpu``, …
        index: position among the devices of this library; never part of an identity.
        memory_bytes: device memory, None where the library does not say.
        partition: MIG profile or AMD compute/memory partition, empty for a whole device.
        facts: driver and library facts, name → value. ``driver`` is the platform's, for records;
            the rest is about the library.
        address: ``uuid`` and ``pci`` (``0000:1b:00.0``), where the library tells them: they join
            its view to another's and say whose sensors to read. Never part of a record.
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
    address: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The hardware a build runs on; two identical cards are one target.

    Attributes:
        partition: MIG profile or AMD partition modes, empty for a whole device.
        handles: runtime name → that library's handle of the first such device.
        facts: of the libraries that see it, and ``driver``.
        address: ``uuid`` and ``pci`` of the first such device, as far as known.
        twins: the other such devices, each as a target of its own.
    """

    vendor: str
    arch: str
    product: str
    platform: str
    index: int = 0
    memory_bytes: int | None = None
    partition: str = ""
    handles: Mapping[str, str] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    address: Mapping[str, str] = field(default_factory=dict)
    twins: tuple[Target, ...] = ()

    @property
    def id(self) -> str:
        """Slug of vendor and product: no host name, driver, clock or device index in it."""
        return _identity(self.vendor, self.arch, self.product, self.partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class Absent:
    """A library or a device that is not here, and why.

    Attributes:
        name: the package or platform asked about, such as ``torch`` or ``cuda``.
        reason: ``not installed``, ``no device``, or ``present but unusable: …``.
    """

    name: str
    reason: str


def split_partition(product: str) -> tuple[str, str]:
    """Part a reported name into product and MIG profile.

    Args:
        product: such as ``NVIDIA A100-SXM4-40GB MIG 1g.5gb``.

    Returns:
        ``("NVIDIA A100-SXM4-40GB", "MIG 1g.5gb")``; the second is empty for a whole device.
    """
    found = _MIG.search(product)
    return (_MIG.sub("", product), f"MIG {found[1]}") if found else (product, "")


def merge(devices: Sequence[Device]) -> tuple[Target, ...]:
    """Join what the libraries see into targets: accelerators by id, then the CPU.

    Devices of one identity (vendor, product, partition) are one target, and so are two views of
    one device under different names, known by an equal ``uuid`` or ``pci``. A device whose library
    does not name its product joins the named device of its vendor and address or, where their
    addresses cannot be compared, index among the GPUs or among the neural units.
    """
    groups: list[list[Device]] = []
    named_first = sorted(devices, key=lambda device: (not device.product, device.index))
    for device in named_first:
        found = next((g for g in groups if any(_same(device, other) for other in g)), None)
        if found is None:
            groups.append([device])
        else:
            found.append(device)
    targets = [_join(group, devices) for group in groups]
    return tuple(sorted(targets, key=lambda target: (target.vendor == "cpu", target.id)))


def matches(target: Target, pattern: str) -> bool:
    """Whether a pattern means this target.

    Args:
        target: the target asked about.
        pattern: shell pattern on the id (``amd-*``), or exactly its vendor, platform or
            architecture; case does not matter.
    """
    wanted = pattern.strip().lower()
    words = {target.vendor, target.platform, target.arch, *markers(target)}
    return fnmatch.fnmatchcase(target.id, wanted) or wanted in {word.lower() for word in words}


def select(targets: Sequence[Target], patterns: Sequence[str] | None) -> tuple[Target, ...]:
    """Choose targets, in the order given.

    Args:
        targets: what is here.
        patterns: as ``matches`` takes them, or ``all``; None means the accelerators that are
            here, or the CPU if there are none.

    Returns:
        The chosen targets; empty when nothing matches, which is for the caller to judge.
    """
    if patterns is None:
        accelerators = tuple(target for target in targets if target.vendor != "cpu")
        return accelerators or tuple(targets)
    if "all" in patterns:
        return tuple(targets)
    return tuple(t for t in targets if any(matches(t, pattern) for pattern in patterns))


def markers(target: Target) -> tuple[str, ...]:
    """Vendor, platform and architecture as names that a pytest marker can have, without repeats."""
    words = (target.vendor, target.platform, target.arch)
    return tuple(dict.fromkeys(re.sub(r"\W", "_", word) for word in words if word))


def require(targets: Sequence[Target], absents: Sequence[Absent], names: Sequence[str]) -> None:
    """Insist that every named target is here.

    Args:
        targets: what is here.
        absents: what is not, with reasons.
        names: patterns as ``matches`` takes them.

    Raises:
        UsageError: a name matches nothing; says what was found and why the rest was not.
    """
    missing = [name for name in names if not any(matches(t, name) for t in targets)]
    if not missing:
        return
    found = ", ".join(f"{t.id} ({t.platform}, {t.arch})" for t in targets) or "no device at all"
    reasons = "; ".join(f"{absent.name}: {absent.reason}" for absent in absents)
    msg = (
        f"required target(s) {', '.join(map(repr, missing))} not here; found: {found}; "
        f"not found: {reasons or 'no library was left out'}. Install the package or the driver "
        "of that device, or take the name out of the required targets"
    )
    raise UsageError(msg)


def cpu_device(
    *, runtimes: tuple[str, ...], handle: str, facts: Mapping[str, str] | None = None
) -> Device:
    """Describe this machine's CPU, the same for every library that can use it.

    Args:
        runtimes: names of the runtimes that can build for it through this handle.
        handle: the library's own name of it, such as ``cpu``.
        facts: library facts to carry along.
    """
    machine = platform.machine()
    return Device(
        runtimes=runtimes,
        handle=handle,
        vendor="cpu",
        arch={"AMD64": "x86_64"}.get(machine, machine),
        product=f"{_cpu_name(_cpu_info())} {usable_cores()}c",
        platform="cpu",
        memory_bytes=_main_memory_bytes(),
        facts=dict(facts or {}),
    )


def usable_cores(root: Path = Path("/")) -> int:
    """Logical cores this process may use: affinity and cgroup quota (rounded up), at least 1.

    Args:
        root: where ``proc`` and ``sys`` are mounted.
    """
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    cores = affine or 1
    quotas = (quota for folder in cgroup_folders(root) for quota in _quota(folder))
    quota = min(quotas, default=math.inf)
    return max(1, cores if quota >= cores else math.ceil(quota))


def cgroup_folders(root: Path = Path("/")) -> Iterator[Path]:
    """Folders of this process's CPU cgroups and those above them, innermost first, v2 and v1.

    Args:
        root: where ``proc`` and ``sys`` are mounted.

    Yields:
        Folders that may not exist: in a container the path is the host's and not mounted, and the
        mount itself, which comes last, is the group.
    """
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        mount = root / "sys/fs/cgroup" / controllers
        inside = mount / path.lstrip("/")
        yield from (f for f in (inside, *inside.parents) if f == mount or mount in f.parents)


def _quota(folder: Path) -> Iterable[float]:
    """The group's CPU quota in cores, if it has one."""
    fields = _read(folder / "cpu.max").split() or [
        _read(folder / "cpu.cfs_quota_us").strip(),
        _read(folder / "cpu.cfs_period_us").strip(),
    ]
    if len(fields) == 2 and all(part.isdigit() for part in fields):  # "max" and "-1" mean no limit
        yield int(fields[0]) / int(fields[1])


def _identity(vendor: str, arch: str, product: str, partition: str) -> str:
    name = _slug(product)
    if vendor == "cpu":
        return f"cpu-{name}"
    if not any(character.isdigit() for character in name):
        # "AMD Radeon Graphics" is what several chips call themselves.
        name = f"{name}-{_slug(arch) if arch != vendor else ''}"
    name = name.removeprefix(f"{vendor}-").strip("-")
    return "-".join(part for part in (vendor, name, *map(_slug, _modes(partition))) if part)


def _modes(partition: str) -> tuple[str, ...]:
    """The parts of a partition's name that set it apart from a whole device."""
    return tuple(m for m in re.split(r"[/\s,]+", partition.lower()) if m not in _WHOLE)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9.]+", "-", _FILLER.sub(" ", text).lower()).strip("-")


def _same(one: Device, two: Device) -> bool:
    if one.vendor != two.vendor:
        return False
    if one.vendor == "cpu":
        return True
    if not one.product or not two.product:
        return _one_card(one, two)
    if _identity_of(one) == _identity_of(two):
        return True
    # A MIG slice or an AMD partition has its card's address: two of them are not one device, but a
    # library that sees only the card means the part that this process can use.
    modes = {_modes(view.partition) for view in (one, two)} - {()}
    return len(modes) < 2 and bool(_equal_addresses(one, two))


def _identity_of(device: Device) -> str:
    product, partition = split_partition(device.product)
    return _identity(device.vendor, device.arch, product, device.partition or partition)


def _equal_addresses(one: Device, two: Device) -> bool | None:
    """Whether two views are of one place; None if one tells no address that the other does too."""
    first, second = _address(one), _address(two)
    told = [first[kind] == second[kind] for kind in first.keys() & second.keys()]
    return any(told) if told else None


def _one_card(one: Device, two: Device) -> bool:
    """Whether two views are of one card: by their address or, where that is not told, index.

    Libraries count GPUs and neural units apart: the first of each are two devices.
    """
    equal = _equal_addresses(one, two)
    alike = one.index == two.index and _is_npu(one) == _is_npu(two)
    return alike if equal is None else equal


def _is_npu(device: Device) -> bool:
    return device.platform == "npu" or device.handle.lower().startswith("npu")


def _address(device: Device) -> dict[str, str]:
    """The address in one spelling: libraries write more or fewer zeros, dashes and prefixes."""
    pci = re.sub(r"^0*(?=[0-9a-f]{4}:)", "", device.address.get("pci", "").lower())
    uuid = re.sub(r"^gpu-|-", "", device.address.get("uuid", "").lower())
    return {kind: text for kind, text in {"pci": pci, "uuid": uuid}.items() if text}


def _join(group: Sequence[Device], order: Sequence[Device]) -> Target:
    """One target of all views of it; where they differ the vendor's own stack is believed."""
    rank = {name: position for position, name in enumerate(_PLATFORM_ORDER)}
    views = sorted(group, key=lambda d: (d.index, rank.get(d.platform, len(rank)), order.index(d)))
    named = [view for view in views if view.product] or views
    best = min(named, key=lambda d: (rank.get(d.platform, len(rank)), d.index))
    parts = [view.partition or split_partition(view.product)[1] for view in (best, *views)]
    handles: dict[str, str] = {}
    facts: dict[str, str] = {}
    address: dict[str, str] = {}
    for view in (best, *views):
        facts = {**view.facts, **facts}
        if _one_card(view, best):
            address = {**view.address, **address}
    for view in sorted(views, key=lambda view: not _one_card(view, best)):
        handles = {**dict.fromkeys(view.runtimes, view.handle), **handles}
    return Target(
        vendor=best.vendor,
        arch=best.arch or next((view.arch for view in views if view.arch), ""),
        product=split_partition(best.product)[0],
        platform=best.platform,
        index=best.index,
        memory_bytes=next((v.memory_bytes for v in (best, *views) if v.memory_bytes), None),
        partition=next((part for part in parts if _modes(part)), parts[0]),
        handles=dict(sorted(handles.items())),
        facts=dict(sorted(facts.items())),
        address=dict(sorted(address.items())),
        twins=_twins(best, views, order),
    )


def _twins(best: Device, views: Sequence[Device], order: Sequence[Device]) -> tuple[Target, ...]:
    """Devices of one identity beside the first: identical cards in one machine."""
    cards: list[list[Device]] = [[best]]
    for view in () if best.vendor == "cpu" else views:
        known = (card for card in cards if any(_one_card(view, other) for other in card))
        card = next(known, None)
        if card is not None:
            card.append(view)
        elif all(any(_apart(view, other) for other in card) for card in cards):
            cards.append([view])
    return tuple(_join(card, order) for card in cards[1:])


def _apart(one: Device, two: Device) -> bool:
    """Whether two views are of two cards for certain: each library numbers cards in its order."""
    if _equal_addresses(one, two) is not None:
        return not _equal_addresses(one, two)
    return one.index != two.index and bool({*one.runtimes} & {*two.runtimes})


def _main_memory_bytes() -> int | None:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows has no sysconf
        return None


def _cpu_info() -> dict[str, str]:
    """What the operating system says of the first processor, keys as in ``/proc/cpuinfo``."""
    text = _read(Path("/proc/cpuinfo")).split("\n\n")[0]
    info = {
        key.strip(): value.strip()
        for key, _, value in (x.partition(":") for x in text.splitlines())
    }
    if platform.system() == "Darwin":
        info["model name"] = sysctl("machdep.cpu.brand_string")
    elif platform.system() == "Windows":
        # "Intel64 Family 6 Model 85 Stepping 7, GenuineIntel"
        found = re.search(r"Family (\d+) Model (\d+).*, (\w+)", platform.processor())
        if found:
            info.update({"cpu family": found[1], "model": found[2], "vendor_id": found[3]})
    return info


def _cpu_name(info: Mapping[str, str]) -> str:
    """Vendor with the brand's model number, or, where a hypervisor hides it, family and model."""
    vendor = info.get("vendor_id") or info.get("CPU implementer", "")
    maker = _CPU_VENDORS.get(vendor, vendor) or "unknown"
    brand = _slug(re.sub(r"QEMU.*", "", info.get("model name", ""))).removeprefix(f"{maker}-")
    words = [word for word in brand.split("-") if word not in {"", "unknown", maker}]
    if any(character.isdigit() for word in words for character in word):
        return " ".join([word for word in [maker] if word != "unknown"] + words)
    numbers = [info[key] for key in ("cpu family", "model", "CPU part") if info.get(key)]
    return " ".join([maker, *words, ".".join(numbers) or platform.machine()])


_CPU_VENDORS = {
    "GenuineIntel": "intel",
    "AuthenticAMD": "amd",
    "0x41": "arm",
    "0x48": "hisilicon",
    "0x4e": "nvidia",
    "0x50": "apm",
    "0x51": "qualcomm",
    "0x61": "apple",
    "0xc0": "ampere",
}
"""``vendor_id`` of x86 and ``CPU implementer`` of Arm → vendor."""


def apple_chip() -> tuple[str, str]:
    """Product and architecture of a Mac's GPU: its chip's, as no library has a name for it.

    Returns:
        Such as ``("Apple M2 Max", "m2")``; ``("Apple GPU", "apple")`` if the kernel does not tell.
    """
    brand = sysctl("machdep.cpu.brand_string")
    chip = re.search(r"\bM\d+", brand)
    return brand or "Apple GPU", chip[0].lower() if chip else "apple"


def sysctl(name: str) -> str:
    """A kernel fact of macOS, empty if it cannot be had."""
    try:
        done = subprocess.run(
            ["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True, timeout=5, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
