"""What was used last; older things are let go of, so that a long session does not grow."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping that keeps the values used last.

    Args:
        most: how many.
        drop: called with each value that is let go of.
    """

    def __init__(self, most: int, drop: Callable[[V], object] = lambda _value: None) -> None:
        self._most = most
        self._drop = drop
        self._values: dict[K, V] = {}

    def __contains__(self, key: K) -> bool:
        return key in self._values

    def __getitem__(self, key: K) -> V:
        self._values[key] = value = self._values.pop(key)  # the last one now
        return value

    def __setitem__(self, key: K, value: V) -> None:
        self._values.pop(key, None)
        self._values[key] = value
        while len(self._values) > self._most:
            self._drop(self._values.pop(next(iter(self._values))))


def delete(path: Path) -> None:
    """Delete a file, and what is stored beside it under its name: weights of a large model."""
    for found in path.parent.glob(f"{path.name}*"):
        found.unlink(missing_ok=True)
