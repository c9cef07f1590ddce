"""Record files as tables: strict reading, and replacing a file at once.

Knows files and kinds of values; what a record is made of is the business of ``records``.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any

import filelock
import tomli

from pytest_portability.errors import RecordError

Tables = dict[str, Any]
"""A TOML document or table as plain values."""

LOCK_S = 60
"""Most that a write waits for another process; one takes milliseconds."""

LOCK_POLL_S = 0.02

RESTORE = "correct it, or restore the file from version control"

_KINDS: Mapping[str, tuple[tuple[type, ...], str]] = {
    "str": ((str,), "a string"),
    "int": ((int,), "an integer"),
    "float": ((int, float), "a number"),
    "bool": ((bool,), "true or false"),
    "list": ((list,), "an array"),
    "dict": ((dict,), "a table"),
}


def significant(x: float, digits: int = 5) -> float:
    """Round to significant digits; NaN, infinities and zero stay what they are."""
    if math.isnan(x):
        return math.nan  # one object, so that tables that hold it compare equal
    return float(f"{x:.{digits - 1}e}") if math.isfinite(x) else x


def parse(path: Path) -> tuple[str, Tables]:
    """The text of a record file, with line feeds only, and its tables.

    Raises:
        RecordError: it cannot be read or is not TOML.
    """
    if path.exists() and not path.is_file():  # a pipe would never end
        msg = f"{path}: is not a file; {RESTORE}"
        raise RecordError(msg)
    try:
        text = path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n")
    except OSError as exc:
        msg = f"{path}: cannot be read ({exc.strerror or exc}); check the path and its permissions"
        raise RecordError(msg) from exc
    except UnicodeDecodeError as exc:
        msg = f"{path}: is not UTF-8 ({exc.reason} at byte {exc.start}); {RESTORE}"
        raise RecordError(msg) from exc
    return text, parsed(path, text)


def parsed(path: Path, text: str) -> Tables:
    """The tables of a record file's text.

    Raises:
        RecordError: it is not TOML.
    """
    try:
        return tomli.loads(text)
    except (
        ValueError,
        RecursionError,
    ) as exc:  # also of numbers and nesting beyond Python's limits
        hint = RESTORE
        if re.search(r"^(<{7}|>{7}) ", text, re.MULTILINE):
            hint = (
                "it holds the markers of an unresolved merge: resolve it, one row after the other"
            )
        msg = f"{path}: is not valid TOML: {exc}; {hint}"
        raise RecordError(msg) from exc


def dotted(path: Iterable[str | int]) -> str:
    """A key's path as TOML writes it: ``builds."onnxruntime.cpu-native-b8".figures``."""
    return ".".join(str(k) if isinstance(k, int) else key_text(k) for k in path)


def key_text(key: str) -> str:
    """A key as TOML writes it, in quotes where it has to be."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else string_text(key)


def string_text(text: str) -> str:
    """JSON's escapes are TOML's, but for DEL, which TOML wants escaped too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


@dataclass(frozen=True, slots=True)
class Table:
    """A table under strict reading: every key is asked for by name and kind, others are errors."""

    values: Mapping[str, Any]
    file: Path
    path: tuple[str | int, ...] = ()
    known: set[str] = field(default_factory=set)

    def error(self, problem: str, key: str | None = None) -> RecordError:
        """An error about one key; without one about this table."""
        where = dotted(self.path if key is None else (*self.path, key))
        return RecordError(f"{self.file}: key {where} {problem}")

    def take(self, key: str, kind: str, default: object = MISSING) -> Any:
        """The value of a key.

        Args:
            key: its name in this table.
            kind: one of ``_KINDS``.
            default: what an absent key means; without it the key must be there.

        Raises:
            RecordError: absent, or of another kind.
        """
        self.known.add(key)
        if key not in self.values:
            if default is MISSING:
                msg = f"is missing; {RESTORE}"
                raise self.error(msg, key)
            return default
        value, (types, expected) = self.values[key], _KINDS[kind]
        # bool is a subclass of int, and true is no number of samples per second
        if not isinstance(value, types) or (isinstance(value, bool) and kind != "bool"):
            shown = json.dumps(value, default=str, ensure_ascii=False)
            msg = f"must be {expected}, found {shown[:60]}; {RESTORE}"
            raise self.error(msg, key)
        if kind == "float":
            return self._number(key, value)
        return value

    def _number(self, key: str, value: Any) -> float:
        try:
            # one object for every NaN, so that records that hold it compare equal
            return math.nan if math.isnan(value) else float(value)
        except OverflowError as exc:
            msg = f"is too large for a number; {RESTORE}"
            raise self.error(msg, key) from exc

    def table(self, key: str, default: object = MISSING) -> Table:
        """A table inside this one; an absent one is empty if there is a default."""
        return Table(self.take(key, "dict", default), self.file, (*self.path, key))

    def tables(self, key: str) -> list[Table]:
        """An array of tables; an absent one is empty."""
        rows = Table(dict(enumerate_keys(self.take(key, "list", []))), self.file, (*self.path, key))
        return [rows.table(index) for index in rows.values]

    def mapping(self, key: str, kind: str) -> dict[str, Any]:
        """A table of values of one kind; an absent one is empty."""
        inner = self.table(key, {})
        return {name: inner.take(name, kind) for name in inner.values}

    def sequence(self, key: str, kind: str) -> tuple[Any, ...]:
        """An array of values of one kind; an absent one is empty."""
        rows = Table(dict(enumerate_keys(self.take(key, "list", []))), self.file, (*self.path, key))
        return tuple(rows.take(index, kind) for index in rows.values)

    def finish(self) -> None:
        """Refuse what nobody asked for.

        Raises:
            RecordError: an unknown key; the known ones are listed.
        """
        for key in self.values:
            if key not in self.known:
                known = ", ".join(sorted(self.known))
                msg = f"is unknown; known here: {known}; correct or remove it"
                raise self.error(msg, key)


def enumerate_keys(values: list[Any]) -> Iterator[tuple[str, Any]]:
    """Array elements by their index as text, so that errors can name them like keys."""
    return ((str(index), value) for index, value in enumerate(values))


def take_fields(cls: Any, table: Table, skip: Iterable[str] = ()) -> dict[str, Any]:
    """Values for a dataclass whose fields are scalars, or mappings or tuples of scalars.

    The field's own annotation says what is allowed; an optional scalar, a mapping, a tuple and a
    field with a default may be absent.
    """
    return {name: take(table, name) for name, take in _takers(cls).items() if name not in skip}


@functools.cache
def _takers(cls: Any) -> Mapping[str, Callable[[Table, str], Any]]:
    """How each field of a dataclass is read, worked out once: a file asks a thousand times."""
    found: dict[str, Callable[[Table, str], Any]] = {}
    for f in fields(cls):
        kind, _, rest = str(f.type).partition("[")
        if kind == "Mapping":
            value = rest.rstrip("]").split(", ")[1]
            found[f.name] = functools.partial(Table.mapping, kind=value)
        elif kind == "tuple":
            found[f.name] = functools.partial(Table.sequence, kind=rest.split(",")[0])
        else:
            kind, _, none = kind.partition(" | ")
            if kind in _KINDS:  # others are dataclasses themselves, which the caller reads
                found[f.name] = _taker(kind, None if none else f.default)
    return found


def _taker(kind: str, default: object) -> Callable[[Table, str], Any]:
    """Like ``Table.take``, at once where the value is of the very type: nearly always."""
    exact = _KINDS[kind][0][-1]

    def take(table: Table, name: str) -> Any:
        value = table.values.get(name)
        if type(value) is exact and value == value:  # noqa: PLR0124 - no NaN
            table.known.add(name)
            return value
        return table.take(name, kind, default)

    return take


def field_values(value: Any, skip: Iterable[str] = ()) -> Tables:
    """The fields of such a dataclass as plain values, without what reading fills in by itself."""
    found: Tables = {}
    for f in fields(value):
        item = getattr(value, f.name)
        left_out = item is None or item in ((), {}) or (isinstance(item, str) and item == f.default)
        if f.name not in skip and not left_out:
            found[f.name] = plain(item)
    return found


def plain(value: Any) -> Any:
    """The same in types TOML has: floats rounded, mappings sorted, tuples as lists."""
    if isinstance(value, float):
        return significant(value)
    if isinstance(value, Mapping):
        return {str(k): plain(value[k]) for k in sorted(value)}
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a record file against other processes of this machine, from reading to replacing it.

    Its directory itself is locked, so that no lock file is left to end up in a commit, or to belong
    to another user; where a directory cannot be (Windows, NFS), a file among the temporary ones is.
    """
    directory = Path(os.path.realpath(path)).parent
    name = hashlib.sha256(os.fsencode(directory)).hexdigest()[:24]
    lock = Path(tempfile.gettempdir()) / f"pytest-portability-{name}.lock"
    with contextlib.ExitStack() as held:
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not held.enter_context(_locked_directory(directory)):
                held.enter_context(filelock.FileLock(lock, timeout=LOCK_S))
        except (TimeoutError, filelock.Timeout) as exc:
            msg = f"{path}: another process has been writing it for {LOCK_S} s; try again"
            raise RecordError(msg) from exc
        except OSError as exc:
            raise _unwritable(path, exc) from exc
        yield


def _unwritable(path: Path, exc: OSError) -> RecordError:
    return RecordError(
        f"{path}: cannot be written ({exc.strerror or exc}); check space and permissions, "
        "or choose another directory with --portability-baselines"
    )


@contextlib.contextmanager
def _locked_directory(directory: Path) -> Iterator[bool]:
    """Hold a directory; gives False where this system cannot lock one.

    Raises:
        TimeoutError: another process holds it.
    """
    try:
        import fcntl  # noqa: PLC0415 - not on Windows
    except ImportError:
        yield False
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        yield _waited(lambda: fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB))
    finally:
        os.close(descriptor)


def _waited(lock: Callable[[], None]) -> bool:
    end = time.monotonic() + LOCK_S
    while True:
        try:
            lock()
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError from None
            time.sleep(LOCK_POLL_S)
        except OSError:
            return False  # as on NFS
        else:
            return True


def replace(path: Path, text: str) -> None:
    """Replace a file at once: whoever reads, or kills us, finds the old or the new one, whole.

    Raises:
        RecordError: it cannot be written; the file is as it was.
    """
    path = Path(os.path.realpath(path))  # a link stays a link
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        old = path.read_bytes() if path.exists() else b""
        data = text.replace("\n", "\r\n" if b"\r\n" in old else "\n").encode("utf-8")
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = stat.S_IMODE(path.stat().st_mode) if path.exists() else None
        if mode is not None and not mode & 0o222:
            msg = f"{path}: is read-only; make it writable to update it: chmod u+w {path}"
            raise RecordError(msg)
        _sweep(path)
        _write_through(temporary, data, mode)
        temporary.replace(path)
        _sync_directory(path.parent)
    except UnicodeEncodeError as exc:
        msg = f"{path}: cannot be written: {exc.object[exc.start : exc.end]!r} has no UTF-8 form"
        raise RecordError(msg) from exc
    except OSError as exc:
        raise _unwritable(path, exc) from exc
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)


def _write_through(path: Path, data: bytes, mode: int | None) -> None:
    """Write and flush a new file; the umask decides on its mode unless one is given."""
    with path.open("xb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    if mode is not None:
        path.chmod(mode)


def _sweep(path: Path, older_s: float = 600.0) -> None:
    """Remove temporary files of writers that were killed; a living one is done long before."""
    for stray in path.parent.glob(".*.toml.????????.tmp"):
        with contextlib.suppress(OSError):
            if time.time() - stray.stat().st_mtime > older_s:
                stray.unlink()


def _sync_directory(directory: Path) -> None:
    """Make the rename itself last; Windows cannot open a directory, and needs not to."""
    with contextlib.suppress(OSError):
        descriptor = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
