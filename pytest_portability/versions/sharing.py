"""Work on many files, shared among the cores of this machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

from pytest_portability.targets import usable_cores

T = TypeVar("T")

MOST_PROCESSES = 8
"""Windows allows 61; reading is faster than what more of them would wait for."""

MANY = 16
"""Models from which on more than one process reads them: a file of 12 rows takes some 6 ms, a
process to start some 50 ms."""

CHUNK = 4
"""Models that a process takes at once."""


def each(function: Callable[[str], T], models: Sequence[str]) -> Iterator[T]:
    """What a function says of each model, in their order.

    Args:
        function: of a model's name; picklable, as are its answers.
        models: names.
    """
    if len(models) < MANY:
        yield from map(function, models)
        return
    with pool() as processes:
        yield from processes.map(function, models, chunksize=CHUNK)


def pool() -> ProcessPoolExecutor:
    """Processes, one for each core, ``MOST_PROCESSES`` at most."""
    return ProcessPoolExecutor(max_workers=min(usable_cores(), MOST_PROCESSES))
