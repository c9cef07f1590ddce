"""A run that measured nothing, or not what was required, is never green, and says why."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from project import Project, flat, output
from scripted import comparison
from synthetic import RECORD

from pytest_portability import ledger
from pytest_portability.report import Entry, Report
from pytest_portability.verdicts import Verdict

CHECK = """
def test_it(portability):
    portability.check("m.onnx", inputs, name="ok")
"""

UNSUPPORTED = """
def test_it(portability):
    portability.check("m.onnx", inputs, name="skipped")
"""


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        (UNSUPPORTED, "1 × skipped on purpose"),
        (f"@pytest.mark.skip(reason='not today'){CHECK}", "1 × not today"),
        ("def test_other(): pass", "no test that ran called portability.check"),
        ("def test_it(portability): pass", "the test asked for portability and never called"),
        (
            f"@pytest.mark.portability(targets=['amd-*', 'nvidia']){CHECK}",
            "no target here matches 'amd-*'; here: cpu-",
        ),
        (
            f"@pytest.mark.portability(runtimes=['openvino']){CHECK}",
            "no runtime 'openvino' for cpu-",
        ),
    ],
    ids=["unsupported", "marked skip", "no such test", "no check", "no target", "no runtime"],
)
def test_nothing_measured_is_not_green(project: Project, test: str, reason: str) -> None:
    """Exit code 1, and the reasons."""
    project.make(test)
    result = project.run("--portability")
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "nothing was measured, so this run is not green: " in flat(result)
    assert reason in flat(result)


def test_an_item_that_never_calls_check_fails_beside_one_that_does(project: Project) -> None:
    """``if portability.batch > 4: return`` is no measurement."""
    project.make(f"{CHECK}\ndef test_other(portability): pass\n")
    result = project.run("--portability")
    result.assert_outcomes(passed=1, failed=1)
    assert "the test asked for portability and never called check: nothing was measured" in flat(
        result
    )


def test_nothing_collected_is_pytests_own_code(project: Project) -> None:
    """It is not green either."""
    project.make(CHECK)
    project.write({"test_absent.py": "import pytest\npytest.importorskip('no_such')\n"})
    result = project.run("--portability", "test_absent.py")
    assert "called portability.check" in flat(result)
    assert "deselected" not in flat(result)
    result = project.run("--portability", "-m", "rocm")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert re.search(
        r"nothing was measured, .* called portability.check, and those that do were deselected "
        r"\(here: cpu-[^)]+\)",
        flat(result),
    )


def test_a_run_that_only_collects_is_left_alone(project: Project) -> None:
    """``--collect-only`` measures nothing on purpose."""
    project.make(CHECK)
    result = project.run("--portability", "--collect-only", "-q")
    assert result.ret == pytest.ExitCode.OK
    assert project.item in output(result)
    assert "nothing was measured" not in flat(result)


def test_many_reasons_are_cut_short(project: Project) -> None:
    """``-rs`` has them all."""
    project.make(
        """
        @pytest.mark.parametrize("n", range(5))
        def test_it(portability, n):
            pytest.skip(f"reason {n}")
        """
    )
    assert "and more, see -rs" in flat(project.run("--portability"))


def test_a_required_target_that_is_not_here_ends_the_run(project: Project) -> None:
    """It names what was found and why the rest was not."""
    project.make(
        CHECK,
        conftest="""
        from pytest_portability import Absent

        class Picky(FakeRuntime):
            def devices(self):
                return [], [Absent(name="picky", reason="no device: the rack is empty")]

        def pytest_portability_runtimes(config):
            return [FakeRuntime(), Picky(name="picky")]
        """,
    )
    for given in (["--portability-require=cpu,nvidia"], ["--portability-require", "nvidia cpu"]):
        result = project.run("--portability", *given)
        assert result.ret == pytest.ExitCode.USAGE_ERROR
        text = flat(result)
        assert "required target(s) 'nvidia' not here" in text
        assert f"found: {project.target} (cpu," in text
        assert "picky: no device: the rack is empty" in text
    project.run("--portability", "--portability-require=cpu").assert_outcomes(passed=1)


def test_a_required_target_is_looked_for_on_all_workers(project: Project) -> None:
    """On the controller, when they are done: they may be different machines."""
    project.make(CHECK)
    project.spawn("-n1", "--portability", "--portability-require=cpu").assert_outcomes(passed=1)
    result = project.spawn("-n1", "--portability", "--portability-require=nvidia")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "required target(s) 'nvidia' not here" in flat(result)


def test_no_target_at_all_is_a_reason(project: Project) -> None:
    """Not pytest's ``got empty parameter set``."""
    project.make(CHECK, fakes="")
    result = project.run("--portability", "-rs")
    result.assert_outcomes(skipped=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "there is no target at all; here: none" in flat(result)
    assert "portability: no target" in output(result)


def test_no_runtime_for_the_target_is_a_reason(project: Project) -> None:
    """A device that only an unasked-for runtime can use."""
    project.make(
        CHECK,
        conftest="""
        from pytest_portability import Device

        class Odd(FakeRuntime):
            def devices(self):
                return [Device(runtimes=("other",), handle="0", vendor="acme", arch="a1",
                               product="One 1", platform="acme")], []

        def pytest_portability_runtimes(config):
            return [Odd()]
        """,
    )
    result = project.run("--portability", "-rs")
    result.assert_outcomes(skipped=1)
    assert "torch.compile or fake' for acme-one-1; here: other" in flat(result)


@pytest.mark.parametrize(
    ("marker", "reason"),
    [
        ("targets=['cpu', 'amd-*']", "no target here matches 'amd-*'"),
        ("runtimes=['fake', 'torch*']", "no runtime 'torch*' for cpu-"),
        ("runtimes=['fake', 'onnxruntime.cuda']", "no runtime 'onnxruntime.cuda' for cpu-"),
    ],
)
def test_what_is_here_runs_beside_what_is_not(project: Project, marker: str, reason: str) -> None:
    """A pattern that nothing matches skips with what is here; the others are measured."""
    project.make(f"@pytest.mark.portability({marker}){CHECK}")
    result = project.run("--portability", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    assert result.ret == pytest.ExitCode.OK
    assert reason in flat(result)


TWICE = """
def test_a(portability):
    portability.check("m.onnx", inputs, name="missing_same")

def test_b(portability):
    portability.check("m.onnx", inputs, name="missing_same")
"""


@pytest.mark.parametrize("update", [(), ("--update-baselines",)], ids=["check", "update"])
def test_two_tests_cannot_claim_one_record(project: Project, update: tuple[str, ...]) -> None:
    """The second fails before it measures, and both are named."""
    project.make(TWICE)
    result = project.run("--portability", "--portability-missing=warn", *update)
    assert result.parseoutcomes()["failed"] == 1
    text = flat(result)
    assert f"the record missing_same/{project.target} fake-native-b1 is claimed twice" in text
    assert f"by test_it.py::test_a[{project.item}] and by test_it.py::test_b[" in text
    assert len(project.records) == len(update)


def test_two_workers_cannot_claim_one_record(project: Project) -> None:
    """What neither worker can know the controller does."""
    project.make(TWICE)
    args = ("-n2", "--dist=each", "-k", "test_a", "--tx=2*popen")
    result = project.spawn("--update-baselines", *args[1:])
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = flat(result)
    assert "is claimed twice, by test_it.py::test_a[" in text
    assert "on gw0" in text
    assert "on gw1" in text
    assert len(project.records) == 1

    result = project.spawn("--update-baselines", "-n2", "--dist=load")
    assert "is claimed twice" in flat(result)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_baseline_nobody_can_read_is_not_passed_over(project: Project) -> None:
    """Though no item of this run needs it: the items are measured, and the run is not green."""
    project.make(CHECK)
    project.write({"baselines/other/amd-mi300x.toml": "schema = 99\n"})
    result = project.run("--portability")
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "amd-mi300x.toml" in flat(result)
    assert "newer release" in flat(result)


@pytest.mark.parametrize("args", [(), ("-n1",)], ids=["alone", "xdist"])
def test_two_checks_of_one_test_cannot_claim_one_record(
    project: Project, args: tuple[str, ...]
) -> None:
    """The second fails before it measures; the first is written."""
    check = 'portability.check("m.onnx", inputs, name="missing_same")'
    project.make(f"def test_a(portability):\n    {check}\n    {check}\n")
    result = project.spawn("--update-baselines", *args)
    result.assert_outcomes(failed=1)
    assert f"the record missing_same/{project.target} fake-native-b1 is claimed twice" in flat(
        result
    )
    assert "two checks of one test want the same record; give one name= or profile=" in flat(result)
    assert len(project.records) == 1


def test_the_controller_refuses_a_second_entry_of_one_item(tmp_path: Path) -> None:
    """And takes it from the item's next attempt."""
    found = comparison(Verdict.OK, RECORD.key)
    entry = Entry(nodeid="test_it.py::test_a", key=RECORD.key, comparison=found, worker="gw0")
    book = ledger.Ledger(Report(), ledger.Updates(directory=tmp_path))
    assert book.take(entry) == ""
    assert "two checks of one test want the same record" in book.take(entry)
    book.forget(entry.nodeid, "gw0")
    assert book.take(entry) == ""


THREAD = """
import threading

def checked(portability, name, *, after=None):
    if after is not None:
        after.wait()
    portability.check("m.onnx", inputs, name=name)

"""


def test_a_check_in_a_thread_that_the_test_waits_for_counts(project: Project) -> None:
    project.make(
        THREAD
        + """
def test_it(portability):
    thread = threading.Thread(target=checked, args=(portability, "regressed"))
    thread.start()
    thread.join()

def test_plain():
    pass
"""
    )
    result = project.spawn("--portability", "-p", "no:threadexception")
    result.assert_outcomes(failed=1, passed=1)
    assert "check failed and the test went on: " in flat(result)


def test_a_check_that_still_goes_on_when_its_test_has_ended_fails_it(project: Project) -> None:
    """Neither this test nor the next one is green for it, or red."""
    project.make(
        THREAD
        + """
THREADS = []

def test_it(portability, monkeypatch):
    checked(portability, "ok_1")
    from pytest_portability.fixture import Portability
    going, measured = threading.Event(), Portability._measured

    def slowly(self, ask):
        going.set()
        threading.Event().wait(1)
        return measured(self, ask)

    monkeypatch.setattr(Portability, "_measured", slowly)
    THREADS.append(threading.Thread(target=checked, args=(portability, "regressed")))
    THREADS[0].start()
    going.wait()

def test_next():
    THREADS[0].join()
"""
    )
    result = project.spawn("--portability", "-p", "no:threadexception")
    result.assert_outcomes(failed=1, passed=1)
    assert "check still went on when the test had ended: it has to wait for its threads" in flat(
        result
    )
    result = project.spawn("--portability", "--update-baselines", "-p", "no:threadexception")
    result.assert_outcomes(failed=1, passed=1)
    assert not project.records  # of a test that failed for a reason of its own


@pytest.mark.parametrize("args", [(), ("-n1",)], ids=["alone", "xdist"])
@pytest.mark.parametrize("given", ["'ok_2'", "3"], ids=["right", "wrong"])
def test_a_check_after_the_end_of_its_test_is_no_green_run(
    project: Project, args: tuple[str, ...], given: str
) -> None:
    project.make(
        THREAD
        + """
ENDED = threading.Event()
THREADS = []

def test_it(portability):
    checked(portability, "ok_1")
    late = {"after": ENDED}
    THREADS.append(threading.Thread(target=checked, args=(portability, GIVEN), kwargs=late))
    THREADS[0].start()

def test_next():
    ENDED.set()
    THREADS[0].join()
""".replace("GIVEN", given)
    )
    result = project.spawn("--portability", "-p", "no:threadexception", *args)
    result.assert_outcomes(passed=2)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "called check after it had ended: it has to wait for its threads" in flat(result)


@pytest.mark.parametrize(
    ("given", "after"),
    [('name="regressed"', "pass"), ('name="regressed"', "pytest.skip()"), ("options=3", "pass")],
)
def test_a_failure_that_the_test_swallowed_fails_it(
    project: Project, given: str, after: str
) -> None:
    """``except BaseException`` makes no verdict better."""
    project.make(
        f"""
        def test_it(portability):
            try:
                portability.check("m.onnx", inputs, {given})
            except BaseException:
                {after}
        """
    )
    result = project.run("--portability")
    result.assert_outcomes(failed=1)
    assert "check failed and the test went on: " in flat(result)
