"""CPUs by what Linux shows in sysfs and of cgroups."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import fmean

from pytest_portability.sensors.reading import (
    QUOTA,
    Asked,
    Counter,
    Reading,
    UnknownError,
    hottest,
    number_in,
    text_in,
)
from pytest_portability.targets import cgroup_folders

MOST_CPUS = 16
"""Processors to ask, spread over those that may be used: each costs some file reads."""

_MONITORS = {"coretemp", "k10temp", "zenpower", "cpu_thermal"}


def open_linux(_facts: Mapping[str, str], root: Path) -> Callable[[], Reading]:
    """Give what reads the processors that this process may use.

    Raises:
        UnknownError: this is not Linux.
    """
    if not (root / "sys/devices/system/cpu").is_dir() or not hasattr(os, "sched_getaffinity"):
        what = "this system shows no clocks to an ordinary user"
        raise UnknownError(what)
    return partial(_read, root)


def _read(root: Path) -> Reading:
    ask = Asked()
    usable = sorted(os.sched_getaffinity(0))
    chosen = usable[:: math.ceil(len(usable) / MOST_CPUS)]
    folders = [root / f"sys/devices/system/cpu/cpu{number}" for number in chosen]
    thermal = ask("thermal throttling", lambda: _thermal_counters(folders)) or ()
    quota = ask(QUOTA, lambda: _quota_counters(root)) or ()
    return Reading(
        clock_hz=ask("clock", lambda: _clock(folders)),
        temperature_c=ask("temperature", lambda: hottest(_temperatures(root))),
        counters=(*thermal, *quota),
        missing=(*ask.missing, "power: told to root only"),
    )


def _clock(folders: Iterable[Path]) -> float:
    """Mean clock in Hz; the kernel writes kHz."""
    found = [number_in(folder / "cpufreq/scaling_cur_freq") for folder in folders]
    known = [khz for khz in found if khz]
    if not known:
        what = "no cpufreq, as in a virtual machine"
        raise UnknownError(what)
    return fmean(known) * 1e3


def _thermal_counters(folders: Iterable[Path]) -> tuple[Counter, ...]:
    """Time under the processor's own thermal throttling; how often, on kernels before 5.5."""
    found = []
    for folder in folders:
        for part in ("core", "package"):
            reason, files = f"{part} thermal", folder / "thermal_throttle"
            ms = number_in(files / f"{part}_throttle_total_time_ms")
            count = number_in(files / f"{part}_throttle_count")
            if ms is not None:
                found.append(Counter(reason=reason, where=folder.name, value=ms / 1e3))
            elif count is not None:
                found.append(Counter(reason=reason, where=folder.name, value=count, total=0.0))
    if not found:
        what = "no counters, as in a virtual machine or on a CPU not of Intel"
        raise UnknownError(what)
    return tuple(found)


def _temperatures(root: Path) -> Iterable[Path]:
    """The first input of a monitor is the package's; zones are what Arm and some laptops have."""
    for folder in sorted((root / "sys/class/hwmon").glob("hwmon*")):
        if text_in(folder / "name") in _MONITORS:
            yield folder / "temp1_input"
    for folder in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        if text_in(folder / "type").startswith(("cpu", "x86_pkg")):
            yield folder / "temp"


def _quota_counters(root: Path) -> tuple[Counter, ...]:
    """Time that this process's cgroups and those above them waited for their quota, v2 and v1."""
    found = []
    for folder in cgroup_folders(root):
        stat = dict(x.split(maxsplit=1) for x in text_in(folder / "cpu.stat").splitlines())
        for key, unit_s in (("throttled_usec", 1e-6), ("throttled_time", 1e-9)):
            if key in stat:
                value = int(stat[key]) * unit_s
                found.append(Counter(reason=QUOTA, where=str(folder), value=value))
    return tuple(found)
