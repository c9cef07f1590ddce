"""What CI systems show: GitHub's annotations on a test's line, properties in JUnit's XML."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from project import Project, output
from scripted import comparison
from synthetic import KEY

from pytest_portability.attribute import Cause
from pytest_portability.report import Entry, Report, ci
from pytest_portability.verdicts import Verdict

TESTS = """
def test_fine(portability):
    portability.check("m.onnx", inputs, name="ok")

def test_slow(portability):
    portability.check("m.onnx", inputs, name="regressed")

def test_noisy(portability):
    portability.check("m.onnx", inputs, name="inconclusive")
"""


@pytest.fixture
def github(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.delenv("GITHUB_WORKSPACE", raising=False)


def commands(text: str) -> list[str]:
    return re.findall(r"^::.*$", text, re.MULTILINE)


@pytest.mark.usefixtures("github")
@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["here", "xdist"])
def test_github_shows_failures_and_warnings_on_the_line_of_their_test(
    project: Project, workers: tuple[str, ...]
) -> None:
    project.make(TESTS)
    result = project.run("--portability", *workers)
    failed, warned = commands(output(result))
    lines = (project.path / "test_it.py").read_text("utf-8").splitlines()
    slow, noisy = (lines.index(f"def test_{n}(portability):") + 1 for n in ("slow", "noisy"))
    title = f"regressed fake-native-b1 on {project.target}"
    assert failed.startswith(
        f"::error file=test_it.py,line={slow},title=REGRESSED%3A {title}::regressed on purpose"
    )
    assert warned.startswith(
        f"::warning file=test_it.py,line={noisy},title=INCONCLUSIVE%3A inconclusive"
    )


@pytest.mark.usefixtures("github")
def test_the_file_is_named_from_the_folder_that_github_checked_out(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.make(TESTS)
    monkeypatch.setenv("GITHUB_WORKSPACE", str(project.path.parent))
    failed, _ = commands(output(project.run("--portability")))
    assert f"file={project.path.name}/test_it.py," in failed


def test_elsewhere_nothing_is_annotated(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    project.make(TESTS)
    assert not commands(output(project.run("--portability")))


def test_hostile_text_starts_no_command_of_its_own(tmp_path: Path) -> None:
    made = comparison(Verdict.ERROR, KEY, reason="100 %\n::set-output name=x::y\r\x1b[31m")
    cause = Cause(kind="kernel", summary="a\n::error::b")
    item = Entry(nodeid="t", key=KEY, comparison=made, causes=(cause,), outcome="fail")
    place = {"t": (tmp_path / "a,b:c.py", 3)}
    environment = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path)}
    (command,) = ci.github(Report(entries=[item]), place, environment)
    assert "\n" not in command
    assert "\r" not in command
    assert "\x1b" not in command
    assert command.startswith("::error file=a%2Cb%3Ac.py,line=3,title=ERROR%3A ")
    assert command.endswith(
        "::100 %25%0A::set-output name=x::y%0A\\x1b[31m%0Akernel: a\\x0a::error::b"
    )


@pytest.mark.usefixtures("github")
def test_an_item_whose_worker_crashed_is_shown_on_its_line(project: Project) -> None:
    project.make(
        """
        import os

        def test_fine(portability):
            portability.check("m.onnx", inputs, name="ok")

        def test_dies(portability):
            os._exit(3)
        """
    )
    (failed,) = commands(output(project.run("--portability", "-n", "2")))
    lines = (project.path / "test_it.py").read_text("utf-8").splitlines()
    line = lines.index("def test_dies(portability):") + 1
    assert failed.startswith(f"::error file=test_it.py,line={line},title=ERROR")


def test_junit_has_the_facts_of_an_item_as_properties(project: Project) -> None:
    project.make(TESTS)
    project.run("--portability", "--junitxml=junit.xml")
    cases = ET.parse(project.path / "junit.xml").iter("testcase")
    found = {
        case.get("name", "").partition("[")[0]: {
            str(p.get("name")): p.get("value") for p in case.iter("property")
        }
        for case in cases
    }
    slow = found["test_slow"]
    assert slow["portability.model"] == "regressed"
    assert slow["portability.target"] == project.target
    assert slow["portability.row"] == "fake-native-b1"
    assert slow["portability.verdict"] == "regressed"
    assert slow["portability.loss"] == "0.3120"
    assert float(slow["portability.throughput"] or "nan") > 0
    assert slow["portability.unit"] == "samples"
    assert found["test_fine"]["portability.verdict"] == "ok"
