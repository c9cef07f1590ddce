"""The JSON report: what other tools build on."""

from __future__ import annotations

import json
import math
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from project import Project, flat, output, validated
from scripted import comparison
from synthetic import KEY, measurement, record

from pytest_portability import cli, report
from pytest_portability.errors import UsageError
from pytest_portability.report import Entry, Report
from pytest_portability.verdicts import Verdict

GOLDEN: dict[str, Any] = {
    "top": [
        "schema",
        "session",
        "targets",
        "absent",
        "recorded",
        "unused",
        "across",
        "problems",
        "items",
    ],
    "session": ["pytest_portability", "pytest", "python", "commit", "finished"],
    "target": ["id", "vendor", "arch", "product", "platform", "memory_bytes", "facts"],
    "item": [
        "nodeid",
        "worker",
        "model",
        "target",
        "runtime",
        "precision",
        "batch",
        "batch_effective",
        "profile",
        "verdict",
        "outcome",
        "reason",
        "throughput",
        "unit",
        "baseline_throughput",
        "baseline_toolchain",
        "loss",
        "machine_rel",
        "latency",
        "parity",
        "parity_verdict",
        "moved_rel",
        "memory_bytes",
        "memory_rel",
        "causes",
        "warnings",
        "update",
        "again",
        "writes",
        "windows",
        "sensors",
        "record",
        "baseline",
    ],
    "writes": ["plain", "accepted"],
    "loss": ["value", "low", "high", "relative", "axis", "tolerance", "tolerance_source"],
    "axis": ["value", "low", "high", "relative"],
    "latency": ["p50_s", "p90_s", "p99_s"],
    "cause": ["kind", "summary", "share", "evidence"],
    "window": ["batches", "wall_s", "busy_s", "yardstick_wall_s", "yardstick_busy_s"],
}
"""Keys of schema 1. A key may be added; one that goes or changes its meaning is a new schema."""

CHECK = """
@pytest.mark.parametrize("verdict", ["ok", "regressed", "skipped"])
def test_it(portability, verdict):
    portability.check("m.onnx", inputs, name=verdict, profile={"seq": 128})
"""


def entry(verdict: Verdict = Verdict.OK, **fields: Any) -> Entry:
    """One entry with a measurement."""
    found = comparison(verdict, KEY, **fields)
    return Entry(nodeid="t.py::t", key=KEY, comparison=found, measurement=measurement(windows=1))


def written(made: Report, path: Path) -> dict[str, Any]:
    """The report as a reader gets it."""
    report.write(made, "json", path)
    assert made.problems == []
    return validated(json.loads(path.read_text(encoding="utf-8")))


def test_the_keys_are_those_of_the_schema(project: Project) -> None:
    """All of them, in this order."""
    project.make(CHECK)
    _, items = project.report()
    whole = project.json()
    assert whole["schema"] == 1
    assert list(whole) == GOLDEN["top"]
    assert list(whole["session"]) == GOLDEN["session"]
    assert list(whole["targets"][0]) == GOLDEN["target"]
    assert [list(item) for item in items] == [GOLDEN["item"]] * 3
    regressed = items[1]
    assert list(regressed["loss"]) == [*GOLDEN["loss"], "busy", "wall"]
    assert list(regressed["loss"]["busy"]) == GOLDEN["axis"]
    assert list(regressed["latency"]) == GOLDEN["latency"]
    assert list(regressed["writes"]) == GOLDEN["writes"]
    assert [list(cause) for cause in regressed["causes"]] == [GOLDEN["cause"]]
    window = regressed["windows"][0][0]
    assert list(window)[: len(GOLDEN["window"])] == GOLDEN["window"]


def test_the_values_are_fractions_seconds_and_items_per_second(project: Project) -> None:
    """Never percent."""
    project.make(CHECK)
    _, items = project.report()
    ok, regressed, skipped = items
    assert ok["nodeid"] == f"test_it.py::test_it[{project.item}-ok]"
    assert (ok["model"], ok["target"], ok["runtime"]) == ("ok", project.target, "fake")
    assert (ok["precision"], ok["batch"], ok["batch_effective"]) == ("native", 1, 1)
    assert ok["profile"] == {"seq": 128}
    assert (ok["throughput"], ok["unit"], ok["baseline_throughput"]) == (800.0, "samples", 800.0)
    assert regressed["loss"]["value"] == 0.312
    assert regressed["loss"]["tolerance"] == 0.05
    assert regressed["loss"]["axis"] == "busy"
    assert regressed["loss"]["wall"] is None
    assert regressed["causes"][0]["kind"] == "fusion"
    assert regressed["record"]["figures"]["latency_p50_s"] == 0.01
    assert len(ok["windows"]) == 2
    assert skipped["verdict"] == "skipped"
    assert skipped["reason"] == "skipped on purpose"
    assert skipped["throughput"] is skipped["record"] is skipped["loss"] is None
    assert skipped["windows"] == []


@pytest.mark.parametrize(
    ("test", "reason", "known"),
    [
        (
            "@pytest.mark.portability(targets=['cpu', 'amd-*'])",
            "no target here matches 'amd-*'",
            {"target": "amd-*", "runtime": None, "precision": None, "batch": None},
        ),
        (
            "@pytest.mark.portability(runtimes=['fake', 'openvino'])",
            "no runtime 'openvino'",
            {"runtime": "openvino", "precision": None, "batch": None},
        ),
        (
            "@pytest.mark.skipif(True, reason='not on Mondays')",
            "not on Mondays",
            {"runtime": "fake", "precision": "native", "batch": 1},
        ),
    ],
    ids=["target", "runtime", "mark"],
)
def test_items_that_skip_are_included_with_their_reason(
    project: Project, test: str, reason: str, known: dict[str, Any]
) -> None:
    """Nothing is missing in silence; what is not known of them is null."""
    project.make(
        f"""
{test}
def test_vad(portability):
    portability.check("m.onnx", inputs, name="ok")
"""
    )
    _, items = project.report()
    (skipped,) = [item for item in items if item["verdict"] == "skipped"]
    assert reason in skipped["reason"]
    assert skipped["model"] == "vad"
    assert {name: skipped[name] for name in known} == known


def test_an_item_that_fails_before_it_is_measured_is_included(project: Project) -> None:
    """As an error."""
    project.make(
        """
        @pytest.fixture
        def broken():
            raise OSError("no such weights")

        def test_it(portability, broken):
            pass

        def test_body(portability):
            raise ValueError("typo")
        """
    )
    _, items = project.report()
    assert [item["verdict"] for item in items] == ["error", "error"]
    assert [item["reason"] for item in items] == ["no such weights", "typo"]


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    """Wherever it is: JSON has no NaN."""
    odd = record(figures=replace(record().figures, throughput=math.nan, latency_p99_s=math.inf))
    made = entry(record=odd, machine_rel=math.nan, memory_rel=-math.inf)
    (item,) = written(Report(entries=[made]), tmp_path / "r.json")["items"]
    assert item["throughput"] is item["machine_rel"] is item["memory_rel"] is None
    assert item["latency"]["p99_s"] is None
    assert item["record"]["figures"]["throughput"] is None


def test_figures_of_numpy_are_figures(tmp_path: Path) -> None:
    """A metric often is one."""
    counted = record(threads=np.int64(4), effective=np.str_("fp32"))
    made = entry(memory_rel=np.float64(0.5), machine_rel=np.float32(0.25), record=counted)
    (item,) = written(Report(entries=[made]), tmp_path / "r.json")["items"]
    assert (item["memory_rel"], item["machine_rel"]) == (0.5, 0.25)
    assert (item["record"]["threads"], item["record"]["effective"]) == (4, "fp32")
    whole = Report(entries=[made])
    report.write(whole, "markdown", tmp_path / "r.md")
    assert whole.problems == []


def test_targets_that_have_records_are_counted(project: Project) -> None:
    """Also those that are not here."""
    project.make(CHECK)
    project.report("--update-baselines")
    project.report()
    assert project.json()["recorded"] == {project.target: 1}


def test_the_file_appears_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parent directories are made; what was there stays until the new one is complete."""
    path = tmp_path / "new" / "deep" / "r.json"
    written(Report(entries=[entry()]), path)
    before = path.read_bytes()

    def full(_self: Path, _text: str, **_given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    made = Report(entries=[entry()])
    report.write(made, "json", path)
    assert made.problems == [f"the report json:{path} was not written: No space left on device"]
    assert path.read_bytes() == before
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]


def test_a_path_on_the_command_line_starts_where_pytest_was_called(project: Project) -> None:
    """One in the ini file starts at the root directory."""
    project.make(CHECK, ini="portability_report = json:ini.json")
    (project.path / "sub").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(project.path / "sub")
        project.run("--portability", "..")
        project.run("--portability", "--portability-report=json:typed.json", "..")
    assert (project.path / "ini.json").exists()
    assert (project.path / "sub" / "typed.json").exists()


def test_others_may_read_it(tmp_path: Path) -> None:
    """A temporary file's mode would keep an artefact from being uploaded."""
    path = tmp_path / "r.json"
    written(Report(entries=[entry()]), path)
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask


def test_a_link_stays_a_link_and_a_pipe_a_pipe(tmp_path: Path) -> None:
    """As root, ``json:/dev/full`` replaced the machine's device by a file."""
    made = Report(entries=[entry()])
    link, pipe = tmp_path / "link.json", tmp_path / "pipe"
    link.symlink_to("target.json")
    written(made, link)
    assert link.is_symlink()
    assert json.loads((tmp_path / "target.json").read_text(encoding="utf-8"))["schema"] == 1
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    report.write(made, "json", pipe)
    assert os.read(reader, 1) == b"{"
    os.close(reader)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_path_that_cannot_be_written_is_a_clear_message(project: Project) -> None:
    """The run is not green, the other report is written, the table is printed."""
    project.make("""
        def test_it(portability):
            open("taken", "w").close()
            portability.check('m.onnx', None, name='ok')
    """)
    result = project.run(
        "--portability",
        "--portability-report=json:taken/r.json",
        "--portability-report=json:fine.json",
    )
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "the report json:" in flat(result)
    assert "was not written: Not a directory" in flat(result) or "File exists" in flat(result)
    assert "Traceback" not in output(result)
    assert "INTERNALERROR" not in output(result)
    assert (project.path / "fine.json").exists()


@pytest.mark.parametrize(
    ("path", "why"),
    [("folder", "it is a directory"), ("taken/r.json", "/taken is no directory")],
)
def test_a_path_that_can_be_no_file_is_refused_before_anything_is_measured(
    project: Project, path: str, why: str
) -> None:
    project.make("def test_it(portability): portability.check('m.onnx', None, name='ok')")
    project.write({"taken": "a file", "folder/r.txt": "another"})
    result = project.run("--portability", f"--portability-report=json:{path}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"/{path} cannot be written, " in flat(result)
    assert f"{why}: give another path" in flat(result)
    assert "collected" not in flat(result)


def test_a_pipe_or_a_link_is_written_where_it_leads(tmp_path: Path) -> None:
    """As ``/dev/stdout`` is, whose folder nobody may write in."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("new/r.json")
    (tmp_path / "taken").touch()
    (tmp_path / "broken").symlink_to("taken/r.json")
    report.ready("json", tmp_path / "pipe")
    report.ready("json", tmp_path / "link")
    with pytest.raises(UsageError, match="taken is no directory: give another path"):
        report.ready("json", tmp_path / "broken")


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write anywhere")
def test_a_folder_that_is_not_writable_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(UsageError, match="is not writable: give another path"):
        report.ready("json", tmp_path / "r.json")


def test_what_others_raise_at_the_end_loses_no_report(project: Project) -> None:
    project.make("def test_it(portability): portability.check('m.onnx', inputs, name='ok')")
    with (project.path / "conftest.py").open("a", encoding="utf-8") as file:
        file.write("\ndef pytest_sessionfinish(session): raise RuntimeError('mine')\n")
    result = project.spawn("--portability", "--portability-report=json:report.json")
    assert result.ret != pytest.ExitCode.OK
    assert [item["verdict"] for item in project.json()["items"]] == ["ok"]


def test_a_run_that_stops_at_a_failure_says_that_it_is_a_part(project: Project) -> None:
    """Not if that was the last test."""
    project.make(
        """
        @pytest.mark.parametrize("name", ["ok", "regressed", "ok_2"])
        def test_it(portability, name):
            portability.check("m.onnx", inputs, name=name)
        """
    )
    json = "--portability-report=json:report.json"
    project.spawn("--portability", "-x", json)
    (problem,) = project.json()["problems"]
    assert problem.startswith("the run was stopped before its end (stopping after 1 failures): ")
    project.spawn("--portability", "-x", json, "-k", "not ok_2")
    assert project.json()["problems"] == []


def test_a_run_that_is_interrupted_reports_what_it_has(project: Project) -> None:
    """Ctrl-C in the second item."""
    project.make(
        """
        def test_a(portability):
            portability.check("m.onnx", inputs, name="ok")

        def test_b(portability):
            raise KeyboardInterrupt
        """
    )
    result = project.spawn("--portability", "--portability-report=json:report.json")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert [item["verdict"] for item in project.json()["items"]] == ["ok"]
    stopped = "the run was stopped before its end: this is a part of what was to run"
    assert project.json()["problems"] == [stopped]
    assert f"portability: {stopped}" in flat(result)
    # Whoever reads the file alone sees it, too.
    assert cli.main(["report", str(project.path / "report.json")]) == 1
