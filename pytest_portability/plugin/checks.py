"""What became of an item's checks, in whatever thread its test calls them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_portability.report import Entry


@dataclass(slots=True)
class Checks:
    """Of an item of ours, from its beginning to its end.

    Attributes:
        entries: what was measured and no report carries yet; None before the first.
        failure: what the first that failed raised, until that is said.
        running: the threads in which one goes on.
    """

    entries: list[Entry] | None = None
    failure: BaseException | None = None
    running: set[int] = field(default_factory=set)

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Know that one goes on in this thread: a test may not wait for it."""
        self.running.add(threading.get_ident())
        try:
            yield
        finally:
            self.running.discard(threading.get_ident())


_key = pytest.StashKey[Checks]()


def begin(node: pytest.Item) -> None:
    """Start an item, or start it again."""
    node.stash[_key] = Checks()


def of(node: pytest.Item) -> Checks | None:
    """The checks of an item, None if it is not ours, has not begun or has ended."""
    return node.stash.get(_key, None)


def end(node: pytest.Item) -> None:
    """What is checked from now on comes too late."""
    if _key in node.stash:
        del node.stash[_key]
