"""``--portability-against``: a run held against another commit, directory or target."""

from __future__ import annotations

import os
import subprocess
from dataclasses import replace

import pytest
from project import Project, flat

from pytest_portability import records

pytest.importorskip("onnxruntime", reason="the reference runs on it")

CHECK = """
def test_it(portability):
    portability.check("mlp.onnx", inputs, name="mlp")
"""


@pytest.fixture
def recorded(project: Project) -> Project:
    """A project with a record, in git."""
    project.make(CHECK, real=True, ini="portability_tolerance = 0.99")
    project.run("--update-baselines").assert_outcomes(passed=1)
    who = ("-c", "user.name=A Tester", "-c", "user.email=tester@example.org")
    for arguments in (("init", "-q"), ("add", "-A"), (*who, "commit", "-qm", "x")):
        subprocess.run(
            ["git", "-C", str(project.path), *arguments],
            env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull},
            check=True,
        )
    return project


def test_a_run_is_held_against_a_commit(recorded: Project) -> None:
    folder = recorded.path / "baselines"
    folder.rename(recorded.path / "elsewhere")
    _, (item,) = recorded.report("--portability-missing=warn")
    assert item["verdict"] == "missing"
    for spec in ("HEAD", "elsewhere"):
        _, (item,) = recorded.report(f"--portability-against={spec}")
        assert item["verdict"] in {"ok", "inconclusive"}
        assert item["baseline_throughput"] > 0
    assert not folder.exists()


def test_another_target_stands_in_by_raw_figures(recorded: Project) -> None:
    folder = recorded.path / "baselines"
    ((key, record),) = records.read_all(folder)[0].items()
    other = replace(key, target="amd-mi300x", runtime="fake.other")
    there = replace(record, key=other, vendor="amd", product="MI300X")
    records.path_of(folder, key.model, key.target).unlink()
    records.write(records.path_of(folder, "mlp", "amd-mi300x"), {other: there})
    _, (item,) = recorded.report("--portability-against=amd-mi300x")
    assert f"held against {other}" in item["warnings"]
    assert item["loss"]["relative"] is False
    assert item["loss"]["busy"] is None


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--portability-against=v9"], "'v9' is no directory of records, no target with records"),
        (["--portability-against= "], "--portability-against = ' ': expected the name of a commit"),
        (
            ["--portability-against=HEAD", "--update-baselines"],
            "--portability-against=HEAD only compares: not with --update-baselines",
        ),
    ],
)
def test_what_cannot_be_held_against_ends_the_run(
    recorded: Project, arguments: list[str], words: str
) -> None:
    result = recorded.run("--portability", *arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert words in flat(result)
