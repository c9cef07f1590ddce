"""Reads plain JSON values as the types of this package. Whose file it is, every error says."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, NoReturn, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from pytest_portability.errors import UsageError

T = TypeVar("T")

LARGEST = 2**63
"""Whole number that is believed: no count and no number of bytes is beyond it."""


@dataclass(frozen=True, slots=True)
class Reader:
    """A table of JSON from which keys are taken by kind.

    Attributes:
        table: its plain value, which may be none.
        source: the file.
        where: the table's own name, for messages.
    """

    table: Any
    source: str
    where: str

    def take(self, key: str, kind: type[Any] | tuple[type[Any], ...]) -> Any:
        """The value of a key.

        Raises:
            UsageError: it is missing, or of another kind.
        """
        if not isinstance(self.table, Mapping):
            self._refuse_table()
        value = self.table.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            self._refuse(key)
        return value

    def text(self, key: str) -> str:
        """Text, of a number too; empty for null."""
        value = self.take(key, (str, int, type(None)))
        return "" if value is None else str(value)

    def figure(self, key: str) -> float | None:
        """A number, None for null."""
        value = self.take(key, (int, float, type(None)))
        return None if value is None else _number(value)

    def typed(self, key: str, hint: Any, default: T) -> T:
        """A value as a type of this package says.

        Args:
            key: of a report of this or of an older release, which may not have it.
            hint: the type, a dataclass or what a field of one may be.
            default: where the key is missing.

        Raises:
            UsageError: the value is not of that type.
        """
        if key not in self.table:
            return default
        found: T = self._as(hint, self.table[key], key)
        return found

    def made(self, kind: type[T]) -> T:
        """The whole table as a dataclass; what this release does not know of is left out.

        Raises:
            UsageError: a key is missing, or its value is not of the field's type.
        """
        if not isinstance(self.table, Mapping):
            self._refuse_table()
        hints, given = _hints(cast("Hashable", kind)), {}
        for field in fields(kind):  # type: ignore[arg-type] # a dataclass, as asked for
            optional = field.default is not MISSING or field.default_factory is not MISSING
            if field.name in self.table:
                given[field.name] = self._as(hints[field.name], self.table[field.name], field.name)
            elif not optional:
                self._refuse(field.name)
        return kind(**given)

    def _as(self, hint: Any, value: Any, key: str) -> Any:
        if get_origin(hint) in (Union, UnionType):
            return self._first(get_args(hint), value, key)
        if is_dataclass(hint) and isinstance(hint, type):
            return Reader(value, self.source, f"{self.where}.{key}").made(hint)
        if get_origin(hint) is tuple and isinstance(value, (list, tuple)):
            return self._sequence(get_args(hint), value, key)
        if get_origin(hint) is Mapping and isinstance(value, Mapping):
            of_values = get_args(hint)[-1]
            return {str(name): self._as(of_values, one, key) for name, one in value.items()}
        if not _is(value, hint):
            self._refuse(key, value)
        if hint is float:
            # What is not finite is null, see ``json``.
            return math.nan if value is None else _number(value)
        return hint(value) if _is_enum(hint) else value

    def _first(self, options: Sequence[Any], value: Any, key: str) -> Any:
        """The first of several types that the value is of; null is one of its own."""
        if value is None and type(None) in options:
            return None
        *others, last = (option for option in options if option is not type(None))
        for option in others:
            with contextlib.suppress(UsageError):
                return self._as(option, value, key)
        return self._as(last, value, key)

    def _sequence(self, hints: tuple[Any, ...], value: Sequence[Any], key: str) -> tuple[Any, ...]:
        if hints[-1] is Ellipsis:
            hints = hints[:1] * len(value)
        if len(hints) != len(value):
            self._refuse(key, value)
        return tuple(self._as(hint, one, key) for hint, one in zip(hints, value, strict=True))

    def _refuse_table(self) -> NoReturn:
        msg = f"{self.source}: {self.where} is no table; expected a report of this plugin"
        raise UsageError(msg)

    def _refuse(self, key: str, value: Any = MISSING) -> NoReturn:
        value = self.table.get(key, MISSING) if value is MISSING else value
        what = "is missing" if value is MISSING else f"is {value!r:.60}"
        msg = f"{self.source}: key {key} of {self.where} {what}; expected a report of this plugin"
        raise UsageError(msg)


@cache
def _hints(kind: Hashable) -> Mapping[str, Any]:
    return get_type_hints(kind)


def _is(value: Any, hint: Any) -> bool:
    """Whether a value is of a plain type; a text may be of a library's own kind of text."""
    if isinstance(value, bool):
        return hint is bool
    if _is_enum(hint):
        return value in [member.value for member in hint]
    if value is None:
        return hint is float
    if hint is int and isinstance(value, int):
        return abs(value) <= LARGEST
    return isinstance(value, (int, float) if hint is float else get_origin(hint) or hint)


def _is_enum(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Enum)


def _number(value: float) -> float:
    """A number of JSON, which may be a whole one that no float holds."""
    try:
        return float(value)
    except OverflowError:
        return math.inf
