"""The four hooks, from a conftest."""

from __future__ import annotations

import pytest
from project import Project, flat, output

CHECK = """
def test_it(portability):
    portability.check("m.onnx", inputs, name="regressed")
"""


# --- runtimes ---------------------------------------------------------------------------------


def test_a_runtime_with_devices_brings_its_own_target(project: Project) -> None:
    """Its items carry that hardware's markers, and the header names it."""
    project.make(
        """
        def test_it(portability):
            print(f"<{portability.target}|{portability.runtime}>")
            portability.check("m.onnx", inputs, name="ok")
        """,
        conftest="""
        from pytest_portability import Absent, Device

        class Wafer(FakeRuntime):
            def devices(self):
                device = Device(runtimes=(self.name,), handle="wse:0", vendor="acme", arch="wse-3",
                                product="Acme Wafer 3", platform="wse")
                return [device], [Absent(name="acme-fabric", reason="no device")]

        def pytest_portability_runtimes(config):
            return [Wafer(name="wafer", family="wafer")]
        """,
    )
    chosen = "wafer and acme and wse and wse_3"
    result = project.run("--portability", "-s", "-v", "--strict-markers", "-m", chosen)
    result.assert_outcomes(passed=1)
    assert "<acme-wafer-3|wafer>" in output(result)
    assert "portability: acme-wafer-3 (wse-3)" in output(result)
    assert "test_it[acme-wafer-3-wafer-native-b1]" in output(result)


def test_a_runtime_that_cannot_look_for_devices_is_present_but_unusable(project: Project) -> None:
    """Never silently absent."""
    project.make(
        CHECK,
        conftest="""
        class Broken(FakeRuntime):
            def devices(self):
                raise OSError("libfabric.so.3: cannot open shared object file")

        def pytest_portability_runtimes(config):
            return [Broken(name="broken")]
        """,
    )
    result, _ = project.report()
    (absent,) = project.json()["absent"]
    assert absent["name"] == "broken"
    assert absent["reason"].startswith("present but unusable: ")
    assert "libfabric.so.3" in absent["reason"]
    assert "libfabric.so.3" in flat(result)


def test_a_library_whose_child_was_killed_is_asked_again(project: Project) -> None:
    """By the kernel for want of memory, say: its items must not all skip for that."""
    project.make(
        CHECK,
        conftest="""
        import os
        import signal
        from pathlib import Path
        from pytest_portability.targets import cpu_device

        class Killed(FakeRuntime):
            def devices(self):
                if not Path("asked").exists():
                    Path("asked").touch()
                    os.kill(os.getpid(), signal.SIGKILL)
                return [cpu_device(runtimes=(self.name,), handle="cpu")], []

        def pytest_portability_runtimes(config):
            return [Killed(name="killed")]
        """,
    )
    result, _ = project.report()
    assert project.json()["absent"] == []
    assert (project.path / "asked").exists()
    assert "killed-native" in flat(result)


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        ("FakeRuntime()", "gave FakeRuntime(name='fake'"),
        ("FakeRuntime()", "expected a list"),
        ("['fake']", "gave 'fake', which lacks name, family, packages"),
        ("'fake'", "gave 'fake'; expected a list"),
        ("[FakeRuntime]", "is a class; give an object of it"),
        ("[FakeRuntime(), FakeRuntime()]", "gave two runtimes named 'fake'"),
    ],
)
def test_what_is_no_runtime_is_a_clear_collection_error(
    project: Project, answer: str, text: str
) -> None:
    """It names the hook and what it gave."""
    project.make(CHECK, conftest=f"def pytest_portability_runtimes(config):\n    return {answer}")
    result = project.run("--portability")
    result.assert_outcomes(errors=1)
    assert "hook pytest_portability_runtimes gave" in flat(result)
    assert text in flat(result)
    assert "Traceback" not in output(result)


# --- environment ------------------------------------------------------------------------------


def test_the_environment_reaches_the_child_and_is_recorded(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among the options, because it can change speed; the user's own variables win."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("KMP_BLOCKTIME", raising=False)
    project.make(
        """
        def metric(predict):
            import os
            return {"seen": float(os.environ["KMP_BLOCKTIME"])}

        def test_it(portability):
            portability.check("mlp.onnx", inputs, metric=metric)
        """,
        conftest="""
        def pytest_portability_environment(config, environment):
            environment["KMP_BLOCKTIME"] = "17"
            environment["OMP_NUM_THREADS"] = "1"
        """,
        real=True,
    )
    project.run("--update-baselines").assert_outcomes(passed=1)
    record = project.record()
    assert record.parity.metrics == {"seen": 17.0}
    assert record.options["env.KMP_BLOCKTIME"] == "17"
    assert record.options["env.OMP_NUM_THREADS"] == "3"


def test_a_conftest_speaks_for_the_tests_below_it_only(project: Project) -> None:
    """A variable or a cause of one directory is none of another's."""
    quiet = "def test_it(portability): portability.check('m.onnx', None, name='regressed')"
    project.make(quiet)
    loud = """
    from pytest_portability import Cause

    def pytest_portability_causes(config, comparison):
        return [Cause(kind="graph", summary="the loud one")]

    def pytest_portability_environment(config, environment):
        environment["not=a variable"] = 1
    """
    project.write({"loud/conftest.py": loud, "loud/test_loud.py": quiet})
    _, items = project.report("--import-mode=importlib")
    said, other = ((i["reason"], i["causes"]) for i in sorted(items, key=lambda i: i["nodeid"]))
    assert "not=a variable" in said[0]
    assert other[0] == "regressed on purpose"
    assert "the loud one" not in str(other)


@pytest.mark.parametrize("bad", ["environment['A'] = 1", "environment[1] = 'a'"])
def test_what_is_no_variable_fails_the_item(project: Project, bad: str) -> None:
    """It names the hook and what it set."""
    project.make(
        CHECK,
        conftest=f"def pytest_portability_environment(config, environment):\n    {bad}",
    )
    result, items = project.report()
    result.assert_outcomes(failed=1)
    assert "hook pytest_portability_environment set" in flat(result)
    assert items[0]["verdict"] == "error"


# --- causes -----------------------------------------------------------------------------------

CAUSES = """
from pytest_portability import Cause

def pytest_portability_causes(config, comparison):
    print("<asked about", comparison.verdict.value + ">")
    return [Cause(kind="graph", summary="resampling changed", share={share}),
            Cause(kind="host", summary="the loader is slow")]
"""


@pytest.mark.parametrize(
    ("share", "order"),
    [
        (0.9, ["resampling changed", "Gelu ×6 no longer fused", "the loader is slow"]),
        (0.1, ["Gelu ×6 no longer fused", "resampling changed", "the loader is slow"]),
    ],
)
def test_causes_are_ranked_with_our_own(project: Project, share: float, order: list[str]) -> None:
    """By share; the test's own result has them too."""
    project.make(
        """
        def test_it(portability):
            with pytest.raises(pytest.fail.Exception, match="resampling changed"):
                portability.check("m.onnx", inputs, name="regressed")
        """,
        conftest=CAUSES.format(share=share),
    )
    _, items = project.report()
    assert [cause["summary"] for cause in items[0]["causes"]] == order


def test_causes_are_asked_for_only_where_an_item_does_not_pass(project: Project) -> None:
    """``ok``, ``improved`` and a skip need no explanation."""
    project.make(
        """
        @pytest.mark.parametrize("verdict", ["ok", "improved", "skipped", "error", "memory"])
        def test_it(portability, verdict):
            portability.check("m.onnx", inputs, name=verdict)
        """,
        conftest=CAUSES.format(share=None),
    )
    text = output(project.run("--portability", "-s"))
    assert [word in text for word in ("<asked about memory>", "<asked about error>")] == [True] * 2
    assert not any(f"<asked about {v}>" in text for v in ("ok", "improved", "skipped"))


@pytest.mark.parametrize(
    "answer", ["['slow']", "'slow'", "7", "[Cause(kind='weather', summary='hot')]", "{}['sun']"]
)
def test_what_is_no_cause_takes_nothing_from_what_was_found(project: Project, answer: str) -> None:
    """It names the hook and what it gave; verdict and causes stay."""
    project.make(
        """
        def test_it(portability): portability.check("m.onnx", inputs, name="regressed")
        def test_next(portability): portability.check("m.onnx", inputs, name="ok")
        """,
        conftest=f"""
        from pytest_portability import Cause

        def pytest_portability_causes(config, comparison):
            return {answer}
        """,
    )
    result, items = project.report()
    result.assert_outcomes(failed=1, passed=1)
    assert "note: hook pytest_portability_causes could not be used: " in flat(result)
    assert [item["verdict"] for item in items] == ["regressed", "ok"]
    assert items[0]["causes"]


# --- report -----------------------------------------------------------------------------------


def test_the_report_hook_sees_everything_and_adds_facts(project: Project) -> None:
    """Once, before it is written; a fact need not be text."""
    project.make(
        CHECK,
        conftest="""
        import pathlib

        def pytest_portability_report(config, report):
            (entry,) = report.entries
            report.session["verdict"] = entry.comparison.verdict.value
            report.session["where"] = pathlib.PurePosixPath("/rack/3")
        """,
    )
    project.report()
    session = project.json()["session"]
    assert session["verdict"] == "regressed"
    assert session["where"] == "/rack/3"


def test_a_report_hook_that_raises_loses_nothing(project: Project) -> None:
    """The JSON is written, the table printed, and the run is not green."""
    project.make(
        "def test_it(portability): portability.check('m.onnx', None, name='ok')",
        conftest="""
        def pytest_portability_report(config, report):
            raise KeyError("TICKET")
        """,
    )
    result, items = project.report()
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "hook pytest_portability_report raised KeyError: 'TICKET'" in flat(result)
    assert [item["verdict"] for item in items] == ["ok"]
