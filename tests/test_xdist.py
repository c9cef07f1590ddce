"""Under pytest-xdist: the same verdicts and records, and one report on the controller."""

from __future__ import annotations

import os
import sys
import venv

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
    for dist in ("worksteal", "loadscope", "loadfile", "loadgroup"):
        assert items(project, "-n2", f"--dist={dist}") == alone, dist
    assert items(project, "-n4") == alone
    workers = {item["worker"] for item in project.json()["items"]}
    assert workers <= {"gw0", "gw1", "gw2", "gw3"}
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
    items = {item["nodeid"]: item for item in project.json()["items"]}
    assert sorted(item["verdict"] for item in items.values()) == ["error", "ok", "ok"]
    (lost,) = (item for item in items.values() if item["verdict"] == "error")
    assert lost["nodeid"].endswith("-b1-1]")
    assert lost["reason"] == "the xdist worker that ran the test crashed: nothing was measured"
    assert (lost["model"], lost["target"], lost["worker"]) == ("it", project.target, "gw0")


TIMED = """
import time
import scripted

class Timed(scripted.Scripted):
    def check(self, item, ask):
        with open("times.txt", "a", encoding="utf-8") as file:
            file.write(f"begin {os.getpid()}\\n")
        time.sleep(0.1)
        with open("times.txt", "a", encoding="utf-8") as file:
            file.write(f"end {os.getpid()}\\n")
        return super().check(item, ask)

import os
pipeline.Pipeline = Timed
"""


@pytest.mark.parametrize("dist", ["load", "worksteal", "each"])
def test_one_device_measures_one_item_at_a_time(project: Project, dist: str) -> None:
    """Wherever they land."""
    project.make(MANY, conftest=TIMED)
    project.spawn("-n2", f"--dist={dist}", "--portability")
    lines = (project.path / "times.txt").read_text(encoding="utf-8").splitlines()
    assert len(lines) >= 20
    assert len({line.split()[1] for line in lines}) == 2
    for begin, end in zip(lines[::2], lines[1::2], strict=True):
        assert begin.split() == ["begin", end.split()[1]]


TWINS = """
import pathlib
import time
import scripted
from pytest_portability import Device

class Cards(FakeRuntime):
    def devices(self):
        cards = [Device(runtimes=("fake",), handle=f"card:{n}", vendor="acme", arch="a1",
                        product="One 1", platform="acme", index=n) for n in range(2)]
        return cards, []

class Timed(scripted.Scripted):
    def check(self, item, ask):
        card = item.target.handles["fake"].replace(":", "-")
        with open(f"{card}.txt", "a", encoding="utf-8") as file:
            file.write(f"begin {os.getpid()}\\n")
        end = time.monotonic() + 30  # until both cards are busy for once
        while len(list(pathlib.Path().glob("card-*.txt"))) < 2 and time.monotonic() < end:
            time.sleep(0.01)
        with open(f"{card}.txt", "a", encoding="utf-8") as file:
            file.write(f"end {os.getpid()}\\n")
        return super().check(item, ask)

def pytest_portability_runtimes(config):
    return [Cards()]

import os
pipeline.Pipeline = Timed
"""


def test_two_identical_cards_share_the_work_of_one_target(project: Project) -> None:
    """One at a time on each; the records do not tell which."""
    project.make(MANY, conftest=TWINS)
    project.spawn("-n2", "--update-baselines")
    for card in ("card-0.txt", "card-1.txt"):
        lines = (project.path / card).read_text(encoding="utf-8").splitlines()
        for begin, end in zip(lines[::2], lines[1::2], strict=True):
            assert begin.split() == ["begin", end.split()[1]]
    assert {key.target for key in project.records} == {"acme-one-1"}


def test_a_worker_of_another_environment_is_refused(project: Project) -> None:
    """It would run on the paths of this one, and hold this one against itself."""
    project.make(MANY)
    other = project.path / "env"
    venv.create(other, with_pip=False)
    python = other / ("Scripts" if os.name == "nt" else "bin") / "python"
    result = project.spawn("--portability", "--dist=load", f"--tx=popen//python={python}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    said = flat(result)
    assert f"--tx popen//python={python} is of another environment ({other})" in said
    assert "run pytest there with --portability-against=DIR" in said
    own = project.spawn("--portability", "--dist=load", f"--tx=popen//python={sys.executable}")
    assert own.ret == pytest.ExitCode.TESTS_FAILED
    assert "is of another environment" not in flat(own)
