"""Where records come from: a directory, the working tree, or a commit; and of which targets."""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path

from pytest_portability import records
from pytest_portability.errors import UsageError
from pytest_portability.records import Key, Record
from pytest_portability.versions.git import Checkout


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Records as they are in one place.

    Attributes:
        name: as it was asked for.
        directory: where their files are.
        target: pattern of target ids; empty is every target.
        laid_out: whether the directory is a commit's, made for this process alone.
    """

    name: str
    directory: Path
    target: str = ""
    laid_out: bool = False

    def models(self) -> list[str]:
        """Names of the models' directories."""
        return sorted({path.parent.name for path in self.directory.glob("*/*.toml")})

    def read(self, model: str) -> tuple[dict[Key, Record], tuple[str, ...]]:
        """The records of one model's directory, and what is wrong with files of it."""
        found, unreadable = records.read_files(sorted((self.directory / model).glob("*.toml")))
        if self.laid_out:
            folder = f"{self.directory}{os.sep}"
            unreadable = tuple(text.replace(folder, f"{self.name}:") for text in unreadable)
        if self.target:
            found = {k: r for k, r in found.items() if fnmatchcase(k.target, self.target)}
        return found, unreadable


class Sources:
    """Finds versions by what a user types; commits are laid out until this process ends.

    Args:
        baselines: the directory of the records in the working tree.
    """

    def __init__(self, baselines: Path) -> None:
        self._baselines = baselines

    @cached_property
    def _folder(self) -> Path:
        folder = tempfile.mkdtemp(prefix="portability-versions-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return Path(folder)

    def pair(self, first: str, second: str = "") -> tuple[Version, Version]:
        """Two versions, of two arguments or of one such as ``v1.4..HEAD``.

        Raises:
            UsageError: one of them is nothing that is known.
        """
        if not second:
            parts = re.fullmatch(r"(.*?[^./\\])\.\.([^./\\].*)", first)
            if parts is None:
                msg = f"{first!r} is one version; give two, or both as OLD..NEW"
                raise UsageError(msg)
            first, second = parts.groups()
        return self.version(first), self.version(second)

    def version(self, spec: str) -> Version:
        """A directory, a target of the working tree, a commit, or ``WHERE:TARGET``.

        Raises:
            UsageError: it is none of these.
        """
        whole = self._place(spec) or self._of_target(spec)
        if whole is not None:
            return whole
        where, colon, target = spec.rpartition(":")
        if colon and target:
            place = self._place(where) or self._commit(where)
            return replace(place, name=spec, target=target)
        return self._commit(spec)

    def _place(self, spec: str) -> Version | None:
        path = Path(spec)  # a branch may have the name of a directory of something else
        return Version(name=spec, directory=path) if any(path.glob("*/*.toml")) else None

    def _of_target(self, spec: str) -> Version | None:
        known = {path.stem for path in self._baselines.glob("*/*.toml")}
        if not any(fnmatchcase(stem, spec) for stem in known):
            return None
        return Version(name=spec, directory=self._baselines, target=spec)

    def _commit(self, spec: str) -> Version:
        try:
            checkout = Checkout.of(self._baselines)
            commit = checkout.commit(spec)
        except UsageError as exc:
            if spec == str(self._baselines):
                msg = f"no records in {spec}: pytest --portability --update-baselines writes them"
                raise UsageError(msg) from exc
            msg = (
                f"{spec!r} is no directory of records, no target with records in "
                f"{self._baselines}, and no commit: {exc}"
            )
            raise UsageError(msg) from exc
        folder = self._folder / commit
        if not folder.exists():
            self._lay_out(checkout, commit, folder)
        return Version(name=spec, directory=folder, laid_out=True)

    def _lay_out(self, checkout: Checkout, commit: str, folder: Path) -> None:
        folder.mkdir()
        wanted = [b for b in checkout.files(commit) if re.fullmatch(r"[^/]+/[^/]+\.toml", b.path)]
        for blob, data in zip(wanted, checkout.read([b.id for b in wanted]), strict=True):
            path = folder / blob.path
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
