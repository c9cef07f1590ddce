"""Intel's GPUs by what the kernel's drivers xe and i915 show in sysfs.

Written to the documentation, not seen on a device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from pytest_portability.sensors.reading import (
    Asked,
    Reading,
    UnknownError,
    hottest,
    number_in,
    once,
    only,
)


def open_sysfs(facts: Mapping[str, str], root: Path) -> Callable[[], Reading]:
    """Find the device, and give what reads it.

    Raises:
        UnknownError: it is not there, or which of several it is cannot be told.
    """
    devices = root / "sys/bus/pci/devices"
    if facts.get("pci"):
        device = devices / facts["pci"]
        if not _tiles(device):
            what = f"{device} has no frequencies, as drivers xe and i915 show them"
            raise UnknownError(what)
    else:
        device = only([d for d in devices.glob("*") if _tiles(d)])
    return partial(_read, device)


def _tiles(device: Path) -> list[tuple[Path, str, str]]:
    """Folder of each tile, the file with its clock, and the pattern of its throttle reasons."""
    xe = [(f, "act_freq", "throttle/reason_*") for f in device.glob("tile*/gt*/freq0")]
    i915 = device.glob("drm/card*/gt/gt*")
    return xe or [(folder, "rps_act_freq_mhz", "throttle_reason_*") for folder in i915]


def _read(device: Path) -> Reading:
    ask = Asked()
    return Reading(
        clock_hz=ask("clock", lambda: _clock(device) * 1e6),
        temperature_c=ask("temperature", lambda: hottest(device.glob("hwmon/hwmon*/temp*_input"))),
        throttled=ask("throttling", lambda: _reasons(device)) or (),
        missing=(*ask.missing, "power: not asked", "neighbours: not told"),
    )


def _clock(device: Path) -> float:
    fastest = max(number_in(folder / file) or 0.0 for folder, file, _ in _tiles(device))
    if not fastest:
        what = "every tile is parked"
        raise UnknownError(what)
    return fastest


def _reasons(device: Path) -> tuple[str, ...]:
    """File names as words: ``reason_pl1`` is a power cap, ``reason_vr_tdc`` is "vr tdc"."""
    found = []
    for folder, _, pattern in _tiles(device):
        for file in sorted(folder.glob(pattern)):
            reason = file.name.partition("reason_")[2].replace("_", " ")
            if reason != "status" and number_in(file):
                found.append(f"power cap {reason}" if reason.startswith("pl") else reason)
    return once(found)
