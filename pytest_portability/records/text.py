"""The text of record files: layout, and new values under a reviewer's comments. Knows no files.

tomlkit keeps comments too, but appends new tables, and takes a comment above a header for the tail
of the table before it: a row inserted in order would come between a comment and what it is about.
So statements are told apart here, and what did not change keeps its bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import tomli

from pytest_portability.records.files import Tables, dotted, key_text, plain, string_text

Where = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """Which tables stand on one line, and which arrays get a header for each of their tables."""

    inline: frozenset[str]
    repeated: frozenset[str]

    def sections(self, tables: Tables, where: Where = ()) -> Iterator[tuple[Where, Tables]]:
        """Tables with a header of their own, in order, each with the keys under that header."""
        own = {k: v for k, v in tables.items() if not self._nested(k, v)}
        if own or not where:
            yield where, own
        for key, value in tables.items():
            if self._nested(key, value):
                if isinstance(value, dict):
                    yield from self.sections(value, (*where, key))
                    continue
                for index, row in enumerate(value):
                    yield from self.sections(row, (*where, key, index))

    def _nested(self, key: str, value: object) -> bool:
        if isinstance(value, dict):
            return key not in self.inline
        return isinstance(value, list) and key in self.repeated


def render(tables: Tables, layout: Layout, title: str = "") -> str:
    """A new file."""
    return merge(f"# {title}\n" if title else "", {}, tables, layout)


def _header(where: Where) -> str:
    if where and isinstance(where[-1], int):
        return f"[[{dotted(k for k in where if isinstance(k, str))}]]"
    return f"[{dotted(k for k in where if isinstance(k, str))}]"


def _value(value: Any) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return string_text(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    if isinstance(value, dict):
        inner = ", ".join(f"{key_text(k)} = {_value(v)}" for k, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    return repr(value)


_TOKEN = re.compile(
    r'"""(?:\\.|[^\\])*?"{3,5}|\'\'\'.*?\'{3,5}|"(?:\\.|[^"\\\n])*"|\'[^\'\n]*\'|#[^\n]*|[\[\]{}\n]',
    re.DOTALL,
)
_LEADING = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*")


@dataclass(slots=True)
class _Statement:
    """One header or one key with its value.

    Attributes:
        leading: blank lines and comments above it.
        text: without the comment behind it; may have several lines.
        comment: the comment behind it, with the space before it.
    """

    leading: str
    text: str
    comment: str

    def lines(self, text: str | None = None) -> str:
        return f"{self.leading}{self.text if text is None else text}{self.comment}\n"


@dataclass(slots=True)
class _Section:
    """A header (None: the top of the file) and the keys under it."""

    header: _Statement | None
    keys: dict[str, _Statement]


def _statements(text: str) -> tuple[list[_Statement], str]:
    """Split valid TOML into statements; comments and blank lines at its end come second."""
    text = text if text.endswith("\n") else f"{text}\n"
    found: list[_Statement] = []
    position = 0
    while leading := _LEADING.match(text, position):
        start = leading.end()
        if start >= len(text):
            return found, leading[0]
        depth, end, comment = 0, len(text), len(text)
        for token in _TOKEN.finditer(text, start):
            depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(token[0], 0)
            if depth == 0 and token[0].startswith("#"):
                comment = token.start()
            elif depth == 0 and token[0] == "\n":
                end = token.start()
                break
        body = text[start : min(end, comment)].rstrip()
        found.append(_Statement(leading[0], body, text[start + len(body) : end].rstrip()))
        position = end + 1
    return found, ""


def _existing(text: str) -> tuple[dict[Where, _Section], str]:
    """The sections of a file by path; a key written in parts (dotted) is not among them."""
    statements, tail = _statements(text)
    section = _Section(None, {})
    sections: dict[Where, _Section] = {(): section}
    counts: dict[Where, int] = {}
    for statement in statements:
        inner: Any = tomli.loads(statement.text)
        if statement.text.startswith("["):
            where: Where = ()
            while inner:
                inner = inner[0] if isinstance(inner, list) else inner
                if inner:
                    ((key, inner),) = inner.items()
                    where = (*where, key)
            if statement.text.startswith("[["):
                counts[where] = counts.get(where, -1) + 1
                where = (*where, counts[where])
            section = sections.setdefault(where, _Section(statement, {}))
        else:
            (key,) = inner
            if key in section.keys:
                statement.text = ""  # the second part of a dotted key
            section.keys[key] = statement
    return sections, tail


def merge(text: str, old: Tables, new: Tables, layout: Layout) -> str:
    """The file with new values: what did not change keeps its bytes, and comments stay.

    Args:
        text: the file as it is, with line feeds only.
        old: what it says, after ``plain``; a key that is not in it is written anew.
        new: what it shall say.
        layout: where tables and arrays stand.
    """
    sections, tail = _existing(text)
    before = dict(layout.sections(old))
    lines: list[str] = []
    if not sections[()].keys:
        lines, tail = [tail], ""
    for where, values in layout.sections(new):
        section = sections.get(where, _Section(None, {}))
        if section.header is not None:
            lines.append(section.header.lines())
        elif where:
            lines.append(f"\n{_header(where)}\n")
        lines += _section_lines(section, before.get(where, {}), values)
    return "".join([*lines, tail])


def _section_lines(section: _Section, old: Tables, new: Tables) -> Iterator[str]:
    for key, value in new.items():
        statement = section.keys.get(key)
        rows = isinstance(value, list) and bool(value)
        if statement is None:
            yield f"{key_text(key)} = {_rows(value) if rows else _value(value)}\n"
        elif statement.text and key in old and old[key] == value:
            yield statement.lines()
        elif rows:
            kept = _KeptRows.of(statement.text, old.get(key), value)
            yield statement.lines(f"{key_text(key)} = {_rows(value, kept)}")
        else:
            yield statement.lines(f"{key_text(key)} = {_value(value)}")
    for key, statement in section.keys.items():
        # A key that went leaves the comments above it, which may be about more than that key.
        if key not in new and "#" in statement.leading:
            yield statement.leading


@dataclass(slots=True)
class _KeptRows:
    """What an array with one element a line keeps when it changes.

    Attributes:
        opening: the comment behind the opening bracket.
        rows: lines by index into the new array.
        closing: comments above the closing bracket.
    """

    opening: str = ""
    rows: dict[int, _Statement] = field(default_factory=dict)
    closing: str = ""

    @classmethod
    def of(cls, text: str, old: Any, new: list[Any]) -> _KeptRows:
        """Keep a line whose element stays, or stays but for its numbers.

        Nothing is kept of an array that somebody formatted otherwise.
        """
        first, *middle = text.split("\n")
        lines = _statement_lines(middle[:-1])
        opening = _statement_lines([first])[0].comment
        if not isinstance(old, list) or len(lines) != len(old) + 1:
            return cls()
        found = cls(opening, {}, lines[-1].leading)
        free = dict(enumerate(old))
        for same in (plain, _nominal):
            for index, value in enumerate(new):
                if index in found.rows:
                    continue
                match = next((i for i, v in free.items() if same(v) == same(value)), None)
                if match is not None:
                    line, exact = lines[match], free.pop(match) == value
                    keep = exact and line.text.endswith(",")
                    row = line.text if keep else f"    {_value(value)},"
                    found.rows[index] = _Statement(line.leading, row, line.comment)
        return found


def _statement_lines(lines: list[str]) -> list[_Statement]:
    """Lines with the comments above and behind each; a last one of no text has those at the end."""
    found: list[_Statement] = []
    leading = ""
    for line in lines:
        if not line.strip() or line.lstrip().startswith("#"):
            leading += f"{line}\n"
            continue
        hashes = [t.start() for t in _TOKEN.finditer(line) if t[0].startswith("#")]
        body = line[: hashes[0]].rstrip() if hashes else line.rstrip()
        found.append(_Statement(leading, body, line[len(body) :].rstrip()))
        leading = ""
    return [*found, _Statement(leading, "", "")]


def _rows(values: list[Any], kept: _KeptRows | None = None) -> str:
    """An array with one element a line."""
    kept = kept or _KeptRows()
    new = (_Statement("", f"    {_value(value)},", "") for value in values)
    lines = [kept.rows.get(index, row).lines() for index, row in enumerate(new)]
    return f"[{kept.opening}\n{''.join(lines)}{kept.closing}]"


def _nominal(value: Any) -> Any:
    """A table without its numbers: a kernel whose share of time moved is still that kernel."""
    if not isinstance(value, dict):
        return value
    return {k: v for k, v in value.items() if isinstance(v, (str, list))}
