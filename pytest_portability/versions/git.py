"""What git knows of a directory of records. Asks git itself; changes nothing."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pytest_portability.errors import UsageError

_PLAIN = "100"
"""How modes of plain files begin; those of links and submodules do not."""

_ELSEWHERE = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")
"""Variables that a git hook has, and that speak of its own repository."""

AT_ONCE = 500
"""Blobs read by one call, so that memory does not grow with their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blob:
    """A file in a commit.

    Attributes:
        path: relative to the directory asked for.
        id: hash of its content; empty where the commit removed it.
        commit: hash of the commit.
        date: of the commit, ISO 8601; empty where that was not asked for.
    """

    path: str
    id: str
    commit: str
    date: str = ""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A directory inside a git checkout, which need not exist there now.

    Args:
        top: the checkout's root.
        inside: the directory, relative to it.
    """

    top: Path
    inside: str

    @classmethod
    def of(cls, directory: Path) -> Checkout:
        """The checkout that a directory is in.

        Raises:
            UsageError: it is in none, or there is no git.
        """
        here = directory.resolve()
        near = next(path for path in (here, *here.parents) if path.is_dir())
        top = Path(os.fsdecode(_run(near, "rev-parse", "--show-toplevel").rstrip(b"\n"))).resolve()
        return cls(top, here.relative_to(top).as_posix())

    @property
    def shallow(self) -> bool:
        """Whether older commits were left out of the clone."""
        return _run(self.top, "rev-parse", "--is-shallow-repository").strip() == b"true"

    def commit(self, ref: str) -> str:
        """The hash of a commit by any name that git knows.

        Raises:
            UsageError: git knows none of that name.
        """
        # A leading dash would make it an option.
        asked = "" if ref.startswith("-") else f"{ref}^{{commit}}"
        try:
            return _run(self.top, "rev-parse", "--verify", asked).decode().strip()
        except UsageError as exc:
            hint = ""
            if self.shallow:
                hint = "; this clone is shallow: git fetch --unshallow brings the history"
            msg = f"git knows no commit {ref!r} in {self.top}{hint}"
            raise UsageError(msg) from exc

    def changes(self) -> Iterator[Blob]:
        """What commits did to files of the directory, oldest first, by first parents."""
        form = ["--format=%x01%H %cI", "--raw", "--no-abbrev", "--no-renames", "-z"]
        order = ["--reverse", "--first-parent", "-m"]
        listing = _run(self.top, "log", *order, *form, "--", self.inside)
        commit = date = ""
        tokens = (token.strip(b"\n") for token in listing.split(b"\0"))
        for token in filter(None, tokens):
            if token.startswith(b"\x01"):
                commit, date = token[1:].decode().split()
                continue
            _, mode, _, blob, _ = token[1:].decode().split()
            path = self._inner(os.fsdecode(next(tokens)))
            found = blob if mode.startswith(_PLAIN) else ""
            yield Blob(path=path, id=found, commit=commit, date=date)

    def _inner(self, path: str) -> str:
        return path if self.inside == "." else path[len(self.inside) + 1 :]

    def files(self, commit: str) -> Iterator[Blob]:
        """The plain files of the directory in a commit; no links, which could lead anywhere."""
        where = [] if self.inside == "." else ["--", self.inside]
        listing = _run(self.top, "ls-tree", "-r", "-z", "--full-tree", commit, *where)
        for entry in filter(None, listing.split(b"\0")):
            facts, _, path = entry.partition(b"\t")
            mode, kind, blob = facts.decode().split()
            if kind == "blob" and mode.startswith(_PLAIN):
                yield Blob(path=self._inner(os.fsdecode(path)), id=blob, commit=commit)

    def read(self, blobs: Sequence[str]) -> Iterator[bytes]:
        """The contents of blobs, in order."""
        pending = iter(blobs)
        while part := list(islice(pending, AT_ONCE)):
            asked = "".join(f"{blob}\n" for blob in part).encode()
            found = _run(self.top, "cat-file", "--batch", given=asked)
            at = 0
            for _ in part:
                end = found.index(b"\n", at)
                size = int(found[at:end].split()[2])
                yield found[end + 1 : end + 1 + size]
                at = end + 2 + size


def _run(directory: Path, *arguments: str, given: bytes = b"") -> bytes:
    command = ["git", "-C", str(directory), "-c", "log.showSignature=false", *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in _ELSEWHERE}
    try:
        done = subprocess.run(
            command, input=given, capture_output=True, check=False, env=environment
        )
    except OSError as exc:
        msg = f"git cannot be run: {exc.strerror}; versions are read from git, so install it"
        raise UsageError(msg) from exc
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        msg = f"git {arguments[0]} failed in {directory}: {said}"
        raise UsageError(msg)
    return done.stdout
