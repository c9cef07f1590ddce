"""Clocks, temperature, throttling and neighbours of a device, read before and after it is timed.

What a device does not tell is unknown, with the reason: reading never fails, and never happens
while a window is timed. NVIDIA is asked by ``pynvml`` (nvidia-ml-py) and AMD by ``amdsmi``, where
they are installed; Intel GPUs and CPUs by the Linux kernel's files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_portability.sensors import amd, cpu, intel, nvidia
from pytest_portability.sensors.reading import QUOTA, Asked, Counter, Reading, once

MIN_SHARE = 0.01
"""Throttling for less than this share of the time cannot cost what a tolerance is about."""


__all__ = [
    "QUOTA",
    "Counter",
    "Reading",
    "Sensors",
    "Watch",
    "disturbance",
    "read",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensors:
    """What the sensors saw around the timed part of one repeat; None is unknown.

    Attributes:
        throttled: reasons in force at either end or for at least ``MIN_SHARE`` of the time.
        neighbours: other processes on the accelerator, the more of both ends.
        grown_bytes: of the device's memory that this process holds, since the watch was opened.
        missing: what is unknown, and why.
    """

    throttled: tuple[str, ...] = ()
    neighbours: int | None = None
    grown_bytes: int | None = None
    clock_before_hz: float | None = None
    clock_after_hz: float | None = None
    temperature_before_c: float | None = None
    temperature_after_c: float | None = None
    power_before_w: float | None = None
    power_after_w: float | None = None
    missing: tuple[str, ...] = ()


class Watch:
    """Reads a device's sensors before and after what is timed.

    Opening it loads the vendor's library, which takes memory and time: do it before the build.
    The library stays open, as others in the process (torch) use it too.

    Args:
        platform: of the target: ``cuda``, ``rocm``, ``xpu``, ``cpu``; another one is unknown.
        facts: of the target: ``uuid`` and ``pci`` say which device it is.
        root: where ``proc`` and ``sys`` are mounted.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        platform: str,
        facts: Mapping[str, str],
        root: Path = Path("/"),
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._clock = clock
        self._read = _open(platform, facts, root)
        self._start_s = clock()
        self._opened_bytes = self._read().own_bytes
        self._before = Reading()

    def start(self) -> None:
        """Take the first reading."""
        self._before = self._read()
        self._start_s = self._clock()

    def stop(self) -> Sensors:
        """Take the second reading, and tell what happened since the first."""
        passed_s = self._clock() - self._start_s
        before, after = self._before, self._read()
        grown = _grown(before.counters, after.counters, passed_s)
        known = [n for n in (before.neighbours, after.neighbours) if n is not None]
        return Sensors(
            throttled=once(before.throttled, after.throttled, grown),
            neighbours=max(known, default=None),
            grown_bytes=_growth(self._opened_bytes, after.own_bytes),
            clock_before_hz=before.clock_hz,
            clock_after_hz=after.clock_hz,
            temperature_before_c=before.temperature_c,
            temperature_after_c=after.temperature_c,
            power_before_w=before.power_w,
            power_after_w=after.power_w,
            missing=once(before.missing, after.missing),
        )


def read(platform: str, facts: Mapping[str, str], root: Path = Path("/")) -> Reading:
    """One reading; the arguments are those of ``Watch``."""
    return _open(platform, facts, root)()


def disturbance(
    throttled: Sequence[str], recorded: Sequence[str], neighbours: int | None = None
) -> str:
    """Why a device was not at its own speed, in words; empty if nothing says so.

    A power cap that the record met too is how this device sustains its load. A CPU quota lengthens
    wall time only, by what the yardstick misses of it, and so is judged as contention is.

    Args:
        throttled: reasons now.
        recorded: reasons when the record was made.
        neighbours: other processes on the accelerator now.
    """
    known = {QUOTA, *(reason for reason in recorded if "power cap" in reason)}
    new = [reason for reason in throttled if reason not in known]
    found = [f"throttled: {', '.join(new)}"] if new else []
    if neighbours:
        others = "another process" if neighbours == 1 else f"{neighbours} other processes"
        found.append(f"contended: {others} on the device")
    return "; ".join(found)


def _grown(before: Iterable[Counter], after: Iterable[Counter], passed_s: float) -> list[str]:
    """Reasons whose counters grew by enough."""
    old = {(counter.reason, counter.where): counter for counter in before}
    found = []
    for new in after:
        first = old.get((new.reason, new.where))
        growth = new.value - first.value if first else 0.0
        if first is None or growth <= 0:  # a counter that went back was reset: nothing is known
            continue
        whole = passed_s if new.total is None else new.total - (first.total or 0.0)
        if growth >= MIN_SHARE * whole:
            found.append(new.reason)
    return found


def _growth(before: int | None, after: int | None) -> int | None:
    return None if before is None or after is None else max(0, after - before)


def _open(platform: str, facts: Mapping[str, str], root: Path) -> Callable[[], Reading]:
    """What reads the sensors of this device; where there are none it says so each time."""
    openers = {
        "cuda": nvidia.open_nvml,
        "rocm": amd.open_amdsmi,
        "xpu": intel.open_sysfs,
        "cpu": cpu.open_linux,
    }
    if platform not in openers:
        unknown = f"{platform}: no sensor that an ordinary user may read"
        return partial(Reading, missing=(unknown,))
    asked = Asked()
    reader = asked(platform, partial(openers[platform], facts, root))
    if reader is None:
        return partial(Reading, missing=tuple(asked.missing))
    return partial(_guarded, platform, reader)


def _guarded(platform: str, reader: Callable[[], Reading]) -> Reading:
    """A reading; one that raises as a whole is unknown as a whole."""
    asked = Asked()
    return asked(platform, reader) or Reading(missing=tuple(asked.missing))
