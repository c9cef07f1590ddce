"""Plain JSON values as types of the package: what fits is taken, what does not is named."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_portability.errors import UsageError
from pytest_portability.report.reading import LARGEST, Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    """A table in a table."""

    name: str
    share: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    """A table with everything that fields may be."""

    inner: Inner
    shape: tuple[int | str | None, ...] = ()
    pairs: tuple[tuple[str, int], ...] = ()


def read(value: Any, hint: Any) -> Any:
    """A value of key ``k``."""
    return Reader({"k": value}, "r.json", "items").typed("k", hint, None)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (3, float, 3.0),
        (10**400, float, math.inf),
        (None, float | None, None),
        ([1, 2], tuple[float, ...], (1.0, 2.0)),
        ({"a": 1}, Mapping[str, int], {"a": 1}),
        (True, bool | None, True),
        (["seq", 128, None], tuple[int | str | None, ...], ("seq", 128, None)),
        ({"name": "x", "new": 1}, Inner, Inner(name="x")),
        (
            {"inner": {"name": "x", "share": 1}, "pairs": [["seq", 128]]},
            Outer,
            Outer(inner=Inner(name="x", share=1.0), pairs=(("seq", 128),)),
        ),
    ],
)
def test_what_fits_is_taken(value: Any, hint: Any, expected: Any) -> None:
    """A key that this release does not know of is left out."""
    found = read(value, hint)
    assert found == expected
    assert type(found) is type(expected)


def test_a_number_that_was_not_finite_is_none_or_not_a_number() -> None:
    assert math.isnan(read(None, float))
    assert read(None, float | None) is None


def test_a_key_of_a_later_release_has_its_default() -> None:
    assert Reader({}, "r.json", "items").typed("k", str, "nothing") == "nothing"


@pytest.mark.parametrize(
    ("value", "hint", "words"),
    [
        ("3", float, "key k of items is '3'"),
        (True, int, "key k of items is True"),
        (LARGEST * 2, int, "key k of items is 18446744073709551616"),
        (1, bool, "key k of items is 1"),
        (None, str, "key k of items is None"),
        ("ab", tuple[str, ...], "key k of items is 'ab'"),
        ({"a": 1}, tuple[int, ...], r"key k of items is \{'a': 1\}"),
        (["a"], tuple[str, int], r"key k of items is \['a'\]"),
        ([1, "a"], tuple[int, ...], "key k of items is 'a'"),
        ([], Mapping[str, int], r"key k of items is \[\]"),
        ([], Inner, r"items\.k is no table"),
        ({}, Inner, r"key name of items\.k is missing"),
        ({"inner": {"name": 3}}, Outer, r"key name of items\.k\.inner is 3"),
        ({"inner": {"name": "x", "share": "all"}}, Outer, r"key share of items\.k\.inner is 'all'"),
    ],
)
def test_what_does_not_is_named_by_file_and_key(value: Any, hint: Any, words: str) -> None:
    with pytest.raises(UsageError, match=rf"^r\.json: {words}.*; expected a report of this plugin"):
        read(value, hint)
