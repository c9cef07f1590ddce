"""A fleet in one session: workers on several machines, over real ssh to this machine's loopback.

The far end has a checkout and an environment of its own, in which another version of a library is
installed.
"""

from __future__ import annotations

import os
import shutil
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sshd
from project import TESTS, Project, flat, output

import pytest_portability
from pytest_portability.plugin.fleet import Fleet as Workers
from pytest_portability.plugin.fleet import keep_going

execnet = pytest.importorskip("execnet")
pytest.importorskip("xdist")
pytestmark = pytest.mark.skipif(os.name != "posix", reason="the far end is started by a shell")

FLEET = """
import os
import signal
import time
from importlib import metadata

from pytest_portability import Device

class Fake(FakeRuntime):
    def devices(self):
        vendor, product = os.environ["FLEET_DEVICE"].split("_")
        device = Device(runtimes=("fake",), handle="0", vendor=vendor, arch="a1", product=product,
                        platform="fake")
        return [device], []

    def observed(self, request):
        from dataclasses import replace
        found = super().observed(request)
        return replace(found, toolchain={"fleetlib": metadata.version("fleetlib")})

def pytest_portability_runtimes(config):
    return [Fake(packages=PACKAGES)]

def pytest_runtest_logreport(report):
    controller = hasattr(report, "node")
    if controller and report.when == "setup" and "amd-mi300x-fake-native-b1-1" in report.nodeid:
        open("seen", "w").close()
"""

CHECK = """
@pytest.mark.parametrize("n", range(4))
def test_it(portability, n):
    portability.check("m.onnx", inputs, name=f"missing_{n}")
"""

NEAR, FAR = "nvidia-h200", "amd-mi300x"


class Node:
    """What xdist's hooks tell of a worker."""

    def __init__(self, worker: str, spec: str) -> None:
        self.gateway = SimpleNamespace(id=worker, spec=execnet.XSpec(spec))
        self.workerinput: dict[str, str] = {}


def test_a_worker_that_is_started_once_more_goes_on_where_the_dead_one_was() -> None:
    """Where ``--max-worker-restart`` asks for it; xdist may have it run everything again."""
    found = Workers("1.0", "each")
    for node in (Node("gw0", "popen"), Node("gw1", "ssh=far")):
        found.pytest_configure_node(node)
        found.pytest_xdist_node_collection_finished(node, ["a", "b", "c"])
        assert node.workerinput == {"portability": "1.0"}
        assert found.begins("a", node.gateway.id) == []
    assert [found.is_elsewhere(worker) for worker in ("gw0", "gw1")] == [False, True]
    found.pytest_testnodedown(Node("gw1", "ssh=far"), "it said\nConnection lost")
    assert found.problems == ["worker gw1 (ssh=far) went away (Connection lost): never run: b, c"]
    again = Node("gw2", "ssh=far")
    found.pytest_configure_node(again)
    assert found.is_elsewhere("gw2")
    assert found.begins("b", "gw2") == []
    assert found.begins("a", "gw2") == ["gw1"]
    found.pytest_xdist_node_collection_finished(again, ["a", "b", "c"])
    found.pytest_testnodedown(again, "Connection lost")
    third = Node("gw3", "ssh=far")
    found.pytest_configure_node(third)
    assert all(text.endswith("never run: c") for text in found.problems)
    found.begins("c", "gw3")
    assert found.problems == []


@pytest.mark.parametrize(
    ("dist", "tx", "restarts"),
    [
        ("each", ["popen", "ssh=far"], "0"),
        ("each", ["popen", "2*ssh=far//chdir=x"], "0"),
        ("each", ["2*popen"], None),
        ("load", ["popen", "ssh=far"], None),
    ],
)
def test_a_machine_that_goes_away_is_not_started_again_where_each_has_work_of_its_own(
    dist: str, tx: list[str], restarts: str | None
) -> None:
    """Where they share it, xdist would end the others, too, with nothing started again."""
    given = {"dist": dist, "tx": tx, "maxworkerrestart": None}
    config: Any = SimpleNamespace(
        getoption=lambda name, default=None: given.get(name, default),
        option=SimpleNamespace(maxworkerrestart=None),
    )
    keep_going(config)
    assert config.option.maxworkerrestart == restarts


def test_only_a_worker_s_own_start_is_blamed_on_the_worker() -> None:
    """Another plugin's or a conftest's hook may fail, too, in the same call."""

    def started(found: Workers) -> Exception:
        hook = found.pytest_sessionstart()
        next(hook)
        with pytest.raises((pytest.UsageError, OSError)) as raised:
            hook.throw(OSError("no such port"))
        return raised.value

    found = Workers("1.0", "each")
    assert isinstance(started(found), OSError)
    found.pytest_xdist_setupnodes([execnet.XSpec("popen"), execnet.XSpec("ssh=far")])
    found.pytest_configure_node(Node("gw0", "popen"))
    assert "could not start the worker --tx ssh=far (OSError: no such port)" in str(started(found))
    found.pytest_configure_node(Node("gw1", "ssh=far"))
    assert isinstance(started(found), OSError)


def distribution(folder: Path, name: str, version: str) -> None:
    """Have ``importlib.metadata`` find a version of a distribution."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    (info / "METADATA").write_text(text, encoding="utf-8")


class Fleet:
    """A project here, and its checkout at the far end of an ssh connection."""

    def __init__(self, project: Project, config: Path) -> None:
        self.project = project
        self.far = project.path / "far" / "checkout"
        self.environment = project.path / "far" / "env"
        self._config = config
        venv.create(self.environment, with_pip=False)
        (site,) = self.environment.glob("lib/python*/site-packages")
        self.site = site
        own, outer = Path(pytest_portability.__file__).parents[1], sysconfig.get_path("purelib")
        # The outer environment's own .pth files count, too: it may be an editable install.
        text = f"{own}\n{TESTS}\nimport site; site.addsitedir({outer!r})\n"
        (site / "outer.pth").write_text(text, encoding="utf-8")
        distribution(site, "fleetlib", "2.0")
        distribution(project.path, "fleetlib", "1.0")

    def make(self, test: str = CHECK, *, real: bool = False) -> None:
        """Write the project; the far end gets a copy."""
        self.project.make(test, conftest=FLEET, real=real, ini="norecursedirs = far\n")
        self.check_out()

    def check_out(self) -> None:
        """Bring the far end's checkout up to date."""
        shutil.rmtree(self.far, ignore_errors=True)
        skip = shutil.ignore_patterns("far", "*.dist-info", "runpytest-*", "__pycache__")
        shutil.copytree(self.project.path, self.far, ignore=skip)

    def tx(self, device: str = "amd_MI300X", host: str = "far") -> str:
        """The far worker."""
        python = self.environment / "bin" / "python"
        return (
            f"--tx=ssh={host}//ssh_config={self._config}//python={python}//chdir={self.far}"
            f"//env:FLEET_DEVICE={device}"
        )

    def run(self, *args: str, far: str = "") -> pytest.RunResult:
        """Run a worker here and one at the far end."""
        here = "--tx=popen//env:FLEET_DEVICE=nvidia_H200"
        report = "--portability-report=json:report.json"
        workers = ("--dist=each", here, far or self.tx())
        return self.project.spawn("--portability", report, *workers, *args)

    def items(self, target: str) -> list[dict[str, Any]]:
        """What the report of the controller has on a target."""
        return [i for i in self.project.json()["items"] if i["target"] == target]


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A client's configuration for a server that runs as long as these tests."""
    with sshd.serving(tmp_path_factory.mktemp("sshd")) as found:
        yield found


@pytest.fixture
def fleet(project: Project, config: Path) -> Fleet:
    """A fleet of two."""
    return Fleet(project, config)


def test_one_session_measures_records_and_compares_two_machines(fleet: Fleet) -> None:
    """Each with what is installed there; all of it is in the controller's report and records."""
    pytest.importorskip("onnxruntime", reason="the reference runs on it")
    fleet.make(real=True, test='def test_it(portability): portability.check("mlp.onnx", inputs)')
    result = fleet.run("--update-baselines")
    result.assert_outcomes(passed=2)
    found = {k.target: r.toolchain["fleetlib"] for k, r in fleet.project.records.items()}
    assert found == {NEAR: "1.0", FAR: "2.0"}
    report = fleet.project.json()
    assert {t["id"] for t in report["targets"]} == {NEAR, FAR}
    assert {i["target"]: i["worker"] for i in report["items"]} == {NEAR: "gw0", FAR: "gw1"}
    (across,) = report["across"]
    assert (across["old"], across["new"]) == (NEAR, FAR)
    assert [row["key"]["target"] for row in across["rows"]] == [FAR]
    assert f"{FAR} beside {NEAR}, by raw figures:" in output(result)
    assert "%; same outputs" in output(result)
    assert not (fleet.far / "baselines").exists()


def test_each_machine_is_held_against_the_records_that_are_here(fleet: Fleet) -> None:
    """A checkout that lacks them, or has others, is no judge; nor is anything written for it."""
    fleet.make()
    fleet.run("--update-baselines").assert_outcomes(passed=8)
    fleet.check_out()
    old = fleet.far / "baselines" / "missing_0" / f"{FAR}.toml"
    old.write_text(old.read_text().replace("throughput = 800.0", "throughput = 900.0"))
    (fleet.far / "baselines" / "missing_1" / f"{FAR}.toml").unlink()
    before = fleet.project.files()
    result = fleet.run("--update-baselines")
    result.assert_outcomes(passed=6, failed=2)
    reasons = [i["reason"] for i in fleet.items(FAR) if i["verdict"] == "error"]
    assert len(reasons) == 2
    assert (
        "on gw1 was held against another record than the one here (there: 900 samples/s of "
        in (reasons[0])
    )
    assert "(there: none; here: 800 samples/s of " in reasons[1]
    assert "bring the checkout there up to date, records included" in reasons[1]
    assert fleet.project.files() == before


def test_two_machines_of_one_kind_cannot_both_deliver_a_record(fleet: Fleet) -> None:
    """Which one would it be of?"""
    fleet.make()
    result = fleet.run("--update-baselines", "-k", "b1-0", far=fleet.tx("nvidia_H200"))
    result.assert_outcomes(passed=1, failed=1)
    assert "is claimed twice, by test_it.py::test_it[" in flat(result)
    assert "let one of two workers on equal machines measure it" in flat(result)
    assert len(fleet.project.records) == 1


DIES = """
import os, signal, time

@pytest.mark.parametrize("n", range(5))
def test_it(portability, n):
    if n == 1 and portability.target == "amd-mi300x":
        while not os.path.exists("SEEN"):  # else what it has sent is lost with the connection
            time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGKILL)  # sshd, or the shell between
        time.sleep(600)
    portability.check("m.onnx", inputs, name=f"missing_{n}")
"""


def test_a_machine_that_goes_away_is_said_and_the_others_finish(fleet: Fleet) -> None:
    """Its item fails, and those that it never began are named: nothing is silently green."""
    fleet.make(DIES.replace("SEEN", str(fleet.project.path / "seen")))
    result = fleet.run("--portability-missing=warn")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert [i["verdict"] for i in fleet.items(NEAR)] == ["missing"] * 5
    assert [i["verdict"] for i in fleet.items(FAR)][:1] == ["missing"]
    (died,) = (i for i in fleet.project.json()["items"] if i["verdict"] == "error")
    assert died["nodeid"] == f"test_it.py::test_it[{FAR}-fake-native-b1-1]"
    assert {t["id"] for t in fleet.project.json()["targets"]} == {NEAR, FAR}
    (problem,) = fleet.project.json()["problems"]
    assert problem.startswith("worker gw1 (ssh=far) went away (")
    lost = [f"test_it.py::test_it[{FAR}-fake-native-b1-{n}]" for n in (2, 3, 4)]
    assert problem.endswith(f"never run: {', '.join(lost)}")
    assert f"portability: {problem}" in output(result)


DIES_BETWEEN = """
import os, signal, time

def test_first(portability):
    portability.check("m.onnx", inputs, name="missing_first")

@pytest.mark.parametrize("known", ["amd-mi300x-fake-native-b1-1"])  # the controller waits for it
def test_it(known):
    if "amd" in os.environ["FLEET_DEVICE"] and os.path.exists("MORTAL"):
        while not os.path.exists("SEEN"):
            time.sleep(0.01)
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)

def test_last(portability):
    portability.check("m.onnx", inputs, name="missing_last")
"""


def test_records_of_a_machine_that_went_away_are_not_said_to_be_of_no_use(fleet: Fleet) -> None:
    """What it never began may still be asked for; it died in a test that is none of ours."""
    seen, mortal = (fleet.project.path / name for name in ("seen", "mortal"))
    fleet.make(DIES_BETWEEN.replace("SEEN", str(seen)).replace("MORTAL", str(mortal)))
    assert fleet.run("--update-baselines").ret == pytest.ExitCode.OK
    fleet.check_out()
    seen.unlink()
    mortal.touch()
    result = fleet.run()
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    (problem,) = fleet.project.json()["problems"]
    assert problem.startswith("worker gw1 (ssh=far) went away (")
    assert "of the whole suite asked for" not in output(result)


def test_a_machine_that_cannot_be_reached_ends_the_run(fleet: Fleet) -> None:
    """With what it needs."""
    fleet.make()
    result = fleet.run(far=fleet.tx(host="gone"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "xdist could not start the worker --tx ssh=gone//" in flat(result)
    assert "HostNotFound: gone" in flat(result)
    assert "INTERNALERROR" not in output(result)


def test_a_path_is_refused_and_a_machine_without_tests_is_said(fleet: Fleet) -> None:
    """What one checkout calls a file means nothing in another one."""
    fleet.make()
    result = fleet.run("test_it.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "arg test_it.py not relative to an rsync root: a path on the command line" in flat(
        result
    )
    (fleet.far / "test_it.py").unlink()
    result = fleet.run("--portability-missing=warn")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.assert_outcomes(passed=4, warnings=4)
    assert "worker gw1 (ssh=far) found no test: is its chdir= the checkout" in flat(result)


def test_another_version_of_this_plugin_at_the_far_end_ends_the_run(fleet: Fleet) -> None:
    """The controller could not read what it says."""
    fleet.make()
    distribution(fleet.site, "pytest_portability", "99.0")
    result = fleet.run()
    assert result.ret not in {pytest.ExitCode.OK, pytest.ExitCode.INTERNAL_ERROR}
    here = pytest_portability.__version__
    said = flat(result)
    assert f"pytest-portability 99.0 is installed for this worker ({fleet.environment}" in said
    assert f"install {here} here, too" in said
