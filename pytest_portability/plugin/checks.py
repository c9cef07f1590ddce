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
        request: of its fixture, until its first check is shown in pytest-benchmark.
        begun: whether there was one.
        entries: what was measured and no report carries yet.
        failure: what the first that failed raised, until that is said.
        running: the threads in which one goes on.
    """

    request: pytest.FixtureRequest | None = None
    begun: bool = False
    entries: list[Entry] = field(default_factory=list)
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

    def unfinished(self) -> bool:
        """Whether one still goes on; of each it is said once."""
        left = bool(self.running)
        self.running.clear()
        return left


_key = pytest.StashKey[Checks]()


def begin(request: pytest.FixtureRequest) -> None:
    """Start an item, or start it again."""
    request.node.stash[_key] = Checks(request=request)


def of(node: pytest.Item) -> Checks | None:
    """The checks of an item, None if it is not ours, has not begun or has ended."""
    return node.stash.get(_key, None)


def end(node: pytest.Item) -> None:
    """What is checked from now on comes too late."""
    if _key in node.stash:
        del node.stash[_key]


def broke(why: BaseException, ours: BaseException | None) -> bool:
    """Whether a test failed for a reason of its own.

    Args:
        why: what it raised.
        ours: what a failed check of it raised.
    """
    return why is not ours and not isinstance(why, (pytest.skip.Exception, pytest.xfail.Exception))
