"""The published schema of the JSON report, to which every report of a test is held."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from project import validated
from varied import varied

from pytest_portability import cli
from pytest_portability.attribute import Cause
from pytest_portability.kernels import Kernel, KernelPath, KernelUse
from pytest_portability.models import TensorSpec
from pytest_portability.parity import Parity, ParityVerdict
from pytest_portability.records import Accepted, Axis, Figures, Key, ModelVersion, Record
from pytest_portability.report import document
from pytest_portability.report import json as as_json
from pytest_portability.samples import Window
from pytest_portability.sensors import Sensors
from pytest_portability.targets import Absent
from pytest_portability.versions.delta import Delta, Pair, Row

SCHEMA = json.loads(document.schema())

TYPES = {
    "absent": Absent,
    "accepted": Accepted,
    "axis": Axis,
    "cause": Cause,
    "delta": Delta,
    "figures": Figures,
    "kernel": Kernel,
    "kernel_path": KernelPath,
    "kernel_use": KernelUse,
    "key": Key,
    "model": ModelVersion,
    "pair": Pair,
    "parity": Parity,
    "parity_verdict": ParityVerdict,
    "record": Record,
    "row": Row,
    "sensors": Sensors,
    "tensor": TensorSpec,
    "window": Window,
}


def owned(table: Any = SCHEMA, name: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Tables of ours with their names."""
    if isinstance(table, dict):
        if "properties" in table:
            yield name, table
        for key, inner in table.items():
            yield from owned(inner, key)


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["schema"]["const"] == document.SCHEMA


@pytest.mark.parametrize("name", TYPES)
def test_it_names_every_key_of_a_type_and_no_other(name: str) -> None:
    keys = [field.name for field in fields(TYPES[name])]
    assert [*SCHEMA["$defs"][name]["properties"]] == keys


def test_tables_of_ours_are_strict_and_every_key_says_what_it_is() -> None:
    tables = dict(owned())
    assert len(tables) >= len(TYPES) + 7
    for name, table in tables.items():
        assert table["additionalProperties"] is False, name
        assert table["required"] == [*table["properties"]], name
        for key, one in table["properties"].items():
            assert one["description"], f"{name}.{key}"


def test_a_report_of_everything_keeps_to_it() -> None:
    validated(json.loads(as_json.render(varied())))


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("items", 0, "verdict"), "green"),
        (("items", 0, "unknown"), 1),
        (("items", 0, "record", "figures", "throughput"), "fast"),
        (("items", 0, "causes", 0, "share"), "89 %"),
        (("schema",), 2),
    ],
)
def test_what_does_not_keep_to_it_is_told(place: tuple[Any, ...], value: Any) -> None:
    made = json.loads(as_json.render(varied()))
    at = made
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = value
    (error,) = Draft202012Validator(SCHEMA).iter_errors(made)
    assert error.validator in {"enum", "additionalProperties", "type", "const", "anyOf"}


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == SCHEMA
