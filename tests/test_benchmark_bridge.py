"""Measured items appear in pytest-benchmark, through its fixture alone."""

from __future__ import annotations

import json
from typing import Any

import pytest
from project import Project, flat, output
from synthetic import measurement

from pytest_portability import benchmark_bridge

pytest.importorskip("pytest_benchmark")

WITH = [f"-pno:{name}" for name in ("cacheprovider", "hypothesispytest", "anyio", "cov")]

TESTS = """
def test_model(portability):
    portability.check("m.onnx", inputs, name="ok")

def test_slower(portability):
    portability.check("m.onnx", inputs, name="regressed")

def test_plain(benchmark):
    assert benchmark(lambda: 41 + 1) == 42
"""


@pytest.fixture(autouse=True)
def own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest-benchmark takes every process below a worker of xdist for one."""
    for name in ("PYTEST_XDIST_WORKER", "PYTEST_XDIST_WORKER_COUNT"):
        monkeypatch.delenv(name, raising=False)


def run(project: Project, *args: str) -> tuple[pytest.RunResult, list[dict[str, Any]]]:
    """A run with pytest-benchmark, and what it wrote."""
    path = project.path / "b.json"
    path.unlink(missing_ok=True)
    result = project.pytester.runpytest_subprocess(*WITH, "--benchmark-json=b.json", *args)
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return result, json.loads(text)["benchmarks"] if text else []


def test_the_samples_are_those_that_were_measured(project: Project) -> None:
    """Failed items too; plain benchmarks beside them are as ever."""
    project.make(TESTS)
    result, found = run(project, "--portability")
    result.assert_outcomes(passed=2, failed=1)
    by_name = {b["name"].partition("[")[0]: b for b in found}
    assert set(by_name) == {"test_model", "test_slower", "test_plain"}
    seen = benchmark_bridge.times(measurement())
    ours = by_name["test_model"]
    assert ours["stats"]["rounds"] == len(seen)
    assert ours["stats"]["median"] == pytest.approx(0.01)
    assert ours["extra_info"]["target"] == project.target
    assert ours["extra_info"]["verdict"] == "ok"
    assert ours["extra_info"]["throughput"] == 800
    assert by_name["test_slower"]["extra_info"]["verdict"] == "regressed"
    assert by_name["test_plain"]["extra_info"] == {}
    assert "test_model" in output(result).partition("benchmark: 3 tests")[2]


def test_comparing_with_what_was_saved_works(project: Project) -> None:
    project.make(TESTS)
    run(project, "--portability", "--benchmark-save=first")
    result, _ = run(project, "--portability", "--benchmark-compare=0001")
    table = [line for line in result.outlines if line.startswith("test_model")]
    shown = sorted(line.partition(" (")[2].partition(")")[0] for line in table)
    assert shown == ["0001_first", "NOW"]


@pytest.mark.parametrize("flag", ["--benchmark-disable", "--benchmark-skip"])
def test_what_switches_benchmarks_off_is_honoured(project: Project, flag: str) -> None:
    """And takes nothing from our own verdicts."""
    project.make(TESTS)
    result, found = run(project, "--portability", flag)
    assert found == []
    assert "2 measured; 1 ok, 1 regressed" in output(result)


def test_a_test_that_uses_the_fixture_itself_keeps_it(project: Project) -> None:
    project.make(
        """
        def test_both(portability, benchmark):
            portability.check("m.onnx", inputs, name="ok")
            benchmark(lambda: None)

        @pytest.mark.benchmark(group="mine")
        def test_twice(portability):
            portability.check("m.onnx", inputs, name="ok_1")
            portability.check("m.onnx", inputs, name="ok_2")
        """
    )
    result, found = run(project, "--portability")
    result.assert_outcomes(passed=2)
    both, twice = sorted(found, key=lambda b: str(b["name"]))
    assert both["extra_info"] == {}
    assert twice["group"] == "mine"
    assert twice["extra_info"]["model"] == "ok_1"


def test_without_the_flag_nothing_is_different(project: Project) -> None:
    project.make(TESTS)
    result, found = run(project)
    result.assert_outcomes(passed=1, skipped=2)
    assert [b["name"] for b in found] == ["test_plain"]


def test_under_xdist_it_is_said_that_nothing_is_written(project: Project) -> None:
    pytest.importorskip("xdist")
    project.make(TESTS)
    result, found = run(project, "--portability", "-n1")
    assert found == []
    assert benchmark_bridge.UNDER_XDIST in flat(result)
    result, _ = run(project, "--portability", "-n1", "--benchmark-disable")
    assert benchmark_bridge.UNDER_XDIST in flat(result)
