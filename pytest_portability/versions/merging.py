"""Records of several runners into one tree: what agrees is written, what does not is named."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from pytest_portability import records
from pytest_portability.errors import RecordError, UsageError
from pytest_portability.records import Key, Record
from pytest_portability.versions.sharing import each


@dataclass(slots=True, kw_only=True)
class Merged:
    """What a merge did.

    Attributes:
        written: files that changed.
        unchanged: number of files that hold everything already.
        refused: why nothing was written, one message each.
    """

    written: list[Path] = field(default_factory=list)
    unchanged: int = 0
    refused: list[str] = field(default_factory=list)


def merge(
    sources: Sequence[Path], into: Path, *, newest: bool = False, mixed: bool = False
) -> Merged:
    """Put the records of directories into one; nothing is written where they contradict each other.

    Args:
        sources: directories of records, in any order: the result does not depend on it.
        into: the directory to write to; the records it holds take part like any other.
        newest: of rows that differ take the one measured last, instead of refusing.
        mixed: take a model's rows of several commits or with several weights, instead of refusing.

    Raises:
        UsageError: a source is no directory of records.
        RecordError: a file cannot be written.
    """
    for source in sources:
        if not any(source.glob("*/*.toml")):
            msg = f"{source} holds no records: expected files <model>/<target>.toml in it"
            raise UsageError(msg)
    done = Merged()
    places = list(dict.fromkeys([into, *sources]))
    names = sorted({path.parent.name for place in places for path in place.glob("*/*.toml")})
    # Twice, one model at a time: all of them may be more than memory holds.
    for refused in each(partial(_refused, places, sources, newest, mixed), names):
        done.refused += refused
    for part in each(partial(_write, places, into, newest), [] if done.refused else names):
        done.written += part.written
        done.unchanged += part.unchanged
    return done


def _refused(
    places: Sequence[Path], sources: Collection[Path], newest: bool, mixed: bool, name: str
) -> list[str]:
    rows = _rows(places, name, newest=newest)
    return rows.refused if mixed else [*rows.refused, *rows.mixed(sources)]


def _write(places: Sequence[Path], into: Path, newest: bool, name: str) -> Merged:
    done = Merged()
    for file in sorted({path.name for place in places for path in (place / name).glob("*.toml")}):
        path = into / name / file
        having = [place for place in places if (place / name / file).exists()]
        if having == [into]:
            wrote = False
        elif len(having) == 1:
            wrote = records.copy(having[0] / name / file, path)
        else:
            wrote = records.write(path, _rows(having, name, newest=newest, file=file).chosen)
        done.written += [path] if wrote else []
        done.unchanged += not wrote
    return done


@dataclass(slots=True, kw_only=True)
class _Rows:
    """The rows of one model, each with where it is from."""

    newest: bool
    chosen: dict[Key, Record] = field(default_factory=dict)
    origin: dict[Key, Path] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def add(self, key: Key, record: Record, place: Path) -> None:
        """Take a row, unless another one of this key is better or contradicts it."""
        known = self.chosen.get(key)
        # By their text: a figure that is not known is NaN, which equals nothing.
        if known is None or (
            repr(known) != repr(record) and self._later(known, record, key, place)
        ):
            self.chosen[key], self.origin[key] = record, place

    def _later(self, known: Record, record: Record, key: Key, place: Path) -> bool:
        if self.newest and known.measured != record.measured:
            return record.measured > known.measured
        self.refused.append(
            f"{key} is not the same: measured {known.measured} in {self.origin[key]}, "
            f"{record.measured} in {place}; "
            + ("delete one of them" if self.newest else "--newest takes the later one")
        )
        return False

    def mixed(self, sources: Collection[Path]) -> list[str]:
        """What rows do not agree about though they are of one model.

        Args:
            sources: whose rows have to be of one commit; what is there already may be older.
        """
        new = {key: record for key, record in self.chosen.items() if self.origin[key] in sources}
        weights = {key: record.model.weights[:12] for key, record in self.chosen.items()}
        commits = {key: record.commit for key, record in new.items()}
        found = [
            ("has several weights", self._several(weights)),
            ("was measured at several commits", self._several(commits)),
        ]
        name = next(iter(self.chosen)).model if self.chosen else ""
        return [f"{name} {what}: {text}; --mixed allows it" for what, text in found if text]

    def _several(self, facts: Mapping[Key, str]) -> str:
        """Each value with where it is from, if there is more than one; else empty."""
        seen: dict[str, set[str]] = {}
        for key, value in facts.items():
            if value:
                seen.setdefault(value, set()).add(f"{key.target} in {self.origin[key]}")
        parts = (f"{value} ({', '.join(sorted(where)[:3])})" for value, where in seen.items())
        return "; ".join(sorted(parts)) if len(seen) > 1 else ""


def _rows(places: Sequence[Path], name: str, *, newest: bool, file: str = "") -> _Rows:
    rows = _Rows(newest=newest)
    for place in places:
        for path in [place / name / file] if file else sorted((place / name).glob("*.toml")):
            try:
                found = records.read(path)
            except RecordError as exc:
                rows.refused.append(str(exc))
                continue
            for key, record in found.items():
                rows.add(key, record, place)
    return rows
