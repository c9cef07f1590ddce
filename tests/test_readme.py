"""The README is held against what the project is: its example runs, its tables are complete."""

from __future__ import annotations

import re
import shlex
from dataclasses import fields
from pathlib import Path

import pytest

from pytest_portability import cli, hookspec, settings
from pytest_portability.kernels import Kernel, KernelUse
from pytest_portability.records import Accepted, Figures, ModelVersion, Parity
from pytest_portability.verdicts import POLICY

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
pytestmark = pytest.mark.skipif(not README.exists(), reason="the README is not in a built package")


def blocks(language: str) -> list[str]:
    """Fenced blocks of that language."""
    text = README.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def table_rows(column: str) -> list[str]:
    """First cells of the table whose first heading is ``column``."""
    text = README.read_text(encoding="utf-8")
    table = re.search(rf"^\| {column} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, flags=re.MULTILINE)
    assert table, f"no table headed {column!r}"
    return [row.split("|")[1].strip().strip("`") for row in table[1].splitlines()]


def test_the_first_lines_are_the_two_commands() -> None:
    first, second = (block.strip() for block in blocks("sh")[:2])
    assert first == "python -m pip install tox && tox run -e demo"
    assert second == "python -m pip install tox && tox run"


def test_the_gate_calls_the_test_command_of_the_readme() -> None:
    gate = (ROOT / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert gate[-1] == blocks("sh")[1].strip()


def test_the_quick_start_runs_as_it_is_printed(pytester: pytest.Pytester) -> None:
    """A model with those inputs is put where it looks for one."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    names = ("input_ids", "attention_mask")
    helper, int64 = onnx.helper, onnx.TensorProto.INT64
    graph = helper.make_graph(
        [
            helper.make_node("Mul", list(names), ["masked"]),
            helper.make_node("Cast", ["masked"], ["floats"], to=onnx.TensorProto.FLOAT),
            helper.make_node("ReduceMean", ["floats"], ["y"], axes=[1], keepdims=0),
        ],
        "pooled",
        [helper.make_tensor_value_info(n, int64, ["batch", "length"]) for n in names],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch"])],
    )
    opset = [helper.make_opsetid("", 17)]
    pytester.mkdir("models")
    onnx.save(
        helper.make_model(graph, opset_imports=opset, ir_version=9),
        str(pytester.path / "models" / "minilm.onnx"),
    )
    pytester.makepyfile(test_minilm=blocks("python")[0])
    fast = ("-o", "portability_repeats=1", "--portability-seconds=0.05", "-m", "onnxruntime")
    recorded = pytester.runpytest_subprocess("--update-baselines", *fast, "-k", "onnxruntime.cpu")
    recorded.assert_outcomes(passed=4, deselected=recorded.parseoutcomes().get("deselected", 0))
    assert len(list(pytester.path.glob("baselines/minilm/*.toml"))) == 1


def test_every_option_is_in_the_table_and_no_other() -> None:
    found = {cell.partition("=")[0] for cell in table_rows("option")}
    declared = {d.option for d in settings.DECLARED.values() if d.option}
    assert found == declared | {"--portability", "--update-baselines", "--portability-accept"}


def test_every_argument_of_the_marker_is_in_the_table_and_no_other() -> None:
    found = {name for cell in table_rows("argument") for name in re.findall(r"\w+", cell)}
    assert found == {d.name for d in settings.DECLARED.values() if d.marker}


def test_every_key_of_the_record_schema_is_named() -> None:
    """Axes are spelt out: ``wall`` as ``wall_s``, ``wall_ratio``, ``wall_spread_rel``."""
    text = README.read_text(encoding="utf-8")
    schema = text[text.index("## Records") : text.index("## Targets, runtimes, precisions")]
    latencies = {"latency_p90_s", "latency_p99_s"}  # listed by their ends
    kinds = (Figures, Parity, KernelUse, Kernel, Accepted, ModelVersion)
    names = (
        {f.name for kind in kinds for f in fields(kind)} - {"wall", "busy", "kernel"} - latencies
    )
    assert [name for name in sorted(names) if f"`{name}`" not in schema.replace(".", "")] == []


def test_the_commands_over_stored_records_are_known() -> None:
    lines = next(block for block in blocks("console") if "diff" in block).strip().splitlines()
    for line in lines:
        name, *arguments = shlex.split(line)
        assert name == "pytest-portability"
        assert cli.parser().parse_args(arguments).command


def test_every_verdict_is_in_the_table_in_order() -> None:
    assert table_rows("verdict") == [verdict.value for verdict in POLICY]


def test_every_hook_is_in_the_table() -> None:
    found = {cell.partition("(")[0] for cell in table_rows("hook")}
    assert found == {name for name in dir(hookspec) if name.startswith("pytest_portability_")}


def test_every_link_into_the_project_leads_somewhere() -> None:
    text = README.read_text(encoding="utf-8")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
