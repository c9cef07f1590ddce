"""One measurement at a time on a device: of xdist's workers, and of this user's other sessions."""

from __future__ import annotations

import getpass
import hashlib
import logging
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import filelock

from pytest_portability.targets import Target

POLL_S = 0.05


@contextmanager
def held(
    target: Target, waiting: Callable[[str], None], runtime: str | None = None
) -> Iterator[Target]:
    """Hold a device while the block runs; the operating system lets go of a killed holder.

    Every CPU target is the same device: the processor of this machine. Another user of the machine
    has locks of his own; what he does is for the contention witness to tell.

    Args:
        target: whose device; of several identical ones the first that is free.
        waiting: told that other processes have them all, in a few words.
        runtime: what has to reach the device; None is any.

    Yields:
        The target with the index, handles and address of that very device.
    """
    twins = [t for t in target.twins if runtime is None or runtime in t.handles]
    # A library may see a twin alone, whose handle the target then has.
    own = all(runtime is None or t.handles[runtime] != target.handles[runtime] for t in twins)
    able = [target, *twins] if own else twins
    devices = [(one, filelock.FileLock(_path(one))) for one in able]
    try:
        taken, lock = _first_free(devices, waiting)
    except OSError as exc:
        logging.getLogger(__name__).warning("measured without a lock on the device: %s", exc)
        taken, lock = devices[0]
    try:
        yield taken
    finally:
        lock.release()


def _first_free(
    devices: Sequence[tuple[Target, filelock.FileLock]], waiting: Callable[[str], None]
) -> tuple[Target, filelock.FileLock]:
    said = False
    while True:
        for target, lock in devices:
            try:
                lock.acquire(timeout=0)
            except filelock.Timeout:
                continue
            return target, lock
        if not said:
            waiting(f"waiting for {devices[0][0].id}: another process measures on it")
            said = True
        time.sleep(POLL_S)


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
