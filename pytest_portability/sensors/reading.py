"""One reading of a device, and how it is asked for: what fails is unknown, with the reason."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import psutil

QUOTA = "cpu quota"
"""The cgroup's time was used up: work waited, but no clock was lowered."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Counter:
    """How much a device was throttled so far.

    Attributes:
        reason: in words.
        where: the part it is of; counters of several parts are told apart by it.
        value: seconds, or occurrences.
        total: of how many, so that growth ÷ growth is a share; 0 where any growth counts; None
            where the value is seconds, of the time passed.
    """

    reason: str
    where: str = ""
    value: float
    total: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The state of a device at one moment; None or empty is unknown.

    Attributes:
        clock_hz: of the compute units; the mean over processors on a CPU.
        temperature_c: degrees Celsius of the chip, its hottest spot where that is told.
        power_w: watts of the device.
        throttled: reasons in force, in words.
        neighbours: other processes that hold the device, None where unknown.
        own_bytes: of the device's memory that this process holds, None where unknown.
        counters: throttling so far.
        missing: what is unknown, and why.
    """

    clock_hz: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None
    throttled: tuple[str, ...] = ()
    neighbours: int | None = None
    own_bytes: int | None = None
    counters: tuple[Counter, ...] = ()
    missing: tuple[str, ...] = ()


class UnknownError(Exception):
    """What is asked cannot be told, and why."""


class Asked:
    """Asks one thing after another; what fails is missing, with the reason."""

    def __init__(self) -> None:
        self.missing: list[str] = []

    def __call__(self, what: str, question: Callable[[], T]) -> T | None:
        """The answer, None if asking raised."""
        try:
            return question()
        except Exception as exc:  # noqa: BLE001 - a driver raises anything; all is a reason
            self.missing.append(f"{what}: {words(exc)}")
            return None


def words(exc: Exception) -> str:
    """One line; of the type too, unless the exception is our own."""
    text = " ".join(str(exc).split())
    return text if isinstance(exc, UnknownError) else f"{type(exc).__name__}: {text}"


def once(*reasons: Iterable[str]) -> tuple[str, ...]:
    """Every reason once, in order."""
    return tuple(dict.fromkeys(reason for some in reasons for reason in some))


def only(found: Sequence[T]) -> T:
    """The device, where there is no other that could be meant."""
    if len(found) != 1:
        what = f"which of {len(found)} devices it is is not known" if found else "no device"
        raise UnknownError(what)
    return found[0]


def own(held: Mapping[int, int | None]) -> int | None:
    """What this process holds, by process id; None where the driver does not tell its amount."""
    return held[_found(held)]


def others(pids: Iterable[int]) -> int:
    """How many processes beside this one, which holds the device too."""
    found = set(pids)
    foreign = found - {_found(found)}
    if foreign:  # compilers that this process started are its own
        foreign -= {child.pid for child in psutil.Process().children(recursive=True)}
    return len(foreign)


def _found(pids: Collection[int]) -> int:
    """This process's id, which must be among them."""
    if os.getpid() not in pids:
        # Process ids of another namespace (a container): ours is among them, or is hidden.
        what = "this process is not among those on the device, as in a container"
        raise UnknownError(what)
    return os.getpid()


# --- the kernel's files ---------------------------------------------------------------------


def hottest(files: Iterable[Path]) -> float:
    """Degrees Celsius; the kernel writes thousandths."""
    found = [number_in(file) for file in files]
    known = [value for value in found if value is not None]
    if not known:
        what = "no monitor"
        raise UnknownError(what)
    return max(known) / 1e3


def number_in(file: Path) -> float | None:
    """A file's number, None if there is no such file.

    Raises:
        OSError: it must not be read, or the device behind it does not answer.
        ValueError: it holds no number.
    """
    text = text_in(file)
    return float(text) if text else None


def text_in(file: Path) -> str:
    """A file's text, empty if there is no such file."""
    try:
        return file.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return ""
