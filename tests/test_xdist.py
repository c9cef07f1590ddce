"""Under pytest-xdist: the same verdicts and records, and one report on the controller."""

from __future__ import annotations

import pytest
from project import Project, flat, output

pytest.importorskip("xdist")

MANY = """
@pytest.mark.parametrize("n", range(2))
@pytest.mark.parametrize("verdict", ["ok", "regressed", "missing", "skipped", "error"])
def test_it(portability, verdict, n):
    portability.check("m.onnx", inputs, name=f"{verdict}_{n}")

@pytest.mark.portability(targets=["amd-*"])
def test_elsewhere(portability):
    portability.check("m.onnx", inputs, name="ok")
"""


def items(project: Project, *args: str) -> list[tuple[str, str, str]]:
    """Node id, verdict and update of every item of a run."""
    project.spawn("--portability", "--portability-report=json:report.json", *args)
    return sorted((i["nodeid"], i["verdict"], i["update"]) for i in project.json()["items"])


def test_workers_give_the_same_report(project: Project) -> None:
    """With every item in it, the skipped ones too, and who measured it."""
    project.make(MANY)
    alone = items(project, "-n0")
    assert len(alone) == 11
    assert items(project, "-n2") == alone
    workers = {item["worker"] for item in project.json()["items"]}
    assert workers <= {"gw0", "gw1"}
    assert workers
    assert project.json()["targets"][0]["id"] == project.target


def test_records_are_written_once_by_the_controller(project: Project) -> None:
    """Byte for byte what one process writes."""
    project.make(MANY)
    updated = items(project, "-n2", "--update-baselines")
    files = project.files()
    assert len(files) == 4
    for path in (project.path / "baselines").rglob("*.toml"):
        path.unlink()
    assert items(project, "--update-baselines") == updated
    assert project.files() == files


def test_targets_of_the_workers_are_in_the_summary(project: Project) -> None:
    """The controller itself looks for no hardware."""
    project.make(MANY)
    result = project.spawn("-n1", "--portability")
    assert f"portability: {project.target}" in output(result)
    assert "no target here matches 'amd-*'" not in flat(result)  # -rs was not asked for
    assert output(result).count(f"portability: {project.target}") == 1


def test_a_really_measured_item_is_the_same_on_a_worker(project: Project) -> None:
    """Measured on a worker, recorded on the controller, held against it on another worker."""
    project.make(real=True)
    project.spawn("-n1", "--update-baselines").assert_outcomes(passed=1)
    (key,) = project.records
    assert (key.model, key.target, key.runtime) == ("mlp", project.target, "fake")
    result = project.spawn("-n1", "--portability", "--portability-tolerance=0.8")
    result.assert_outcomes(passed=1)
    assert "1 missing" not in output(result)


def test_a_worker_that_dies_fails_its_item_only(project: Project) -> None:
    """The others are in the report."""
    project.make(
        """
        import os

        @pytest.mark.parametrize("n", range(3))
        def test_it(portability, n):
            if n == 1:
                os._exit(3)
            portability.check("m.onnx", inputs, name=f"ok_{n}")
        """
    )
    result = project.spawn("-n1", "--portability", "--portability-report=json:report.json")
    result.assert_outcomes(passed=2, failed=1)
    assert [item["verdict"] for item in project.json()["items"]] == ["ok", "ok"]
