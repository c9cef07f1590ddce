"""One measurement at a time on a device: of xdist's workers, and of this user's other sessions."""

from __future__ import annotations

import getpass
import hashlib
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock

from pytest_portability.targets import Target


@contextmanager
def held(target: Target, waiting: Callable[[str], None]) -> Iterator[None]:
    """Hold a target's device while the block runs; the operating system lets go of a killed holder.

    Every CPU target is the same device: the processor of this machine. Another user of the machine
    has locks of his own; what he does is for the contention witness to tell.

    Args:
        target: whose device.
        waiting: told that another process has it, in a few words.
    """
    lock = filelock.FileLock(_path(target))
    try:
        _acquire(lock, target, waiting)
    except OSError as exc:
        logging.getLogger(__name__).warning("measured without a lock on the device: %s", exc)
    try:
        yield
    finally:
        lock.release()


def _acquire(lock: filelock.BaseFileLock, target: Target, waiting: Callable[[str], None]) -> None:
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting(f"waiting for {target.id}: another process measures on it")
        lock.acquire()


def _path(target: Target) -> Path:
    """A file of this user's for the device: by what its vendor calls it, where that is known."""
    address = target.address
    place = address.get("uuid") or address.get("pci") or str(target.index)
    device = "cpu" if target.platform == "cpu" else f"{target.platform}:{place}"
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may run under a number without a name
        user = ""
    name = hashlib.sha256(f"{user}\0{device}".encode()).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"pytest-portability-device-{name}.lock"
