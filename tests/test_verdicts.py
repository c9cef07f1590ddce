"""What every verdict does to its item, and what the item then says."""

from __future__ import annotations

import shlex
import xml.etree.ElementTree as ET

import pytest
from project import Project, flat, output

from pytest_portability.verdicts import Verdict

EVERY = f"""
@pytest.mark.parametrize("verdict", {[v.value for v in Verdict]})
def test_it(portability, verdict):
    portability.check("m.onnx", inputs, name=verdict)
"""

OUTCOMES = {
    Verdict.OK: "passed",
    Verdict.IMPROVED: "passed",
    Verdict.REGRESSED: "failed",
    Verdict.PARITY: "failed",
    Verdict.INTERFACE: "failed",
    Verdict.PLACEMENT: "failed",
    Verdict.MEMORY: "failed",
    Verdict.UNFIT: "failed",
    Verdict.STALE: "failed",
    Verdict.MISSING: "failed",
    Verdict.INCONCLUSIVE: "passed",
    Verdict.ERROR: "failed",
    Verdict.SKIPPED: "skipped",
}


def one(name: str, marker: str = "") -> str:
    """A test file with one item of that verdict."""
    return f"""
{marker}
def test_it(portability):
    portability.check("m.onnx", inputs, name={name!r})
"""


def test_each_verdict_has_its_outcome(project: Project) -> None:
    """The one table, as pytest shows it."""
    project.make(EVERY)
    result = project.run("--portability", "-v")
    for verdict, outcome in OUTCOMES.items():
        line = next(x for x in result.outlines if f"-b1-{verdict.value}] " in x)
        assert f"] {outcome.upper()}" in line
    result.assert_outcomes(passed=3, failed=9, skipped=1, warnings=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_run_in_which_all_is_well_is_green(project: Project) -> None:
    """Exit codes are pytest's own."""
    project.make(one("ok"))
    assert project.run("--portability").ret == pytest.ExitCode.OK


def test_a_failure_says_what_why_and_what_to_do(project: Project) -> None:
    """Whole, without a traceback: verdict, reason, figures, cause, commands."""
    project.make(one("regressed"))
    result = project.run("--portability", "-p", "no:terminalprogress")
    start = result.outlines.index(next(x for x in result.outlines if x.startswith("REGRESSED:")))
    assert result.outlines[start : start + 6] == [
        f"REGRESSED: regressed fake-native-b1 on {project.target}",
        "  regressed on purpose",
        "  measured: 615 per second, recorded: 800 (2026-03-01, commit 0123456)",
        "   80 % of the loss: fusion: Gelu ×6 no longer fused (+3.63 ms of +4.53 ms)",
        f'  measure it again: pytest --portability "test_it.py::test_it[{project.item}]"',
        (
            "  accept on purpose: pytest --portability --update-baselines "
            f'--portability-accept="why" "test_it.py::test_it[{project.item}]"'
        ),
    ]
    assert "Traceback" not in output(result)


@pytest.mark.parametrize(
    ("verdict", "word"),
    [
        ("regressed", "accept on purpose: pytest "),
        ("memory", "accept on purpose: pytest "),
        ("missing", "record it: pytest "),
        ("stale", "record it: pytest "),
    ],
)
def test_the_command_it_prints_works(project: Project, verdict: str, word: str) -> None:
    """From where pytest was called, with the options that were given, for any test id."""
    project.make(one("ok"))
    with pytest.MonkeyPatch.context() as patch:
        (project.path / "tests").mkdir()
        patch.chdir(project.path / "tests")
        for text in ("a b", "$HOME", "it's", 'say "x"'):
            test = f"""
            import pytest

            @pytest.mark.parametrize("text", [{text!r}])
            def test_odd(portability, text):
                portability.check("m.onnx", None, name={verdict!r})
            """
            project.write({"tests/unit/test_odd.py": test})
            args = ["--portability", "--portability-baselines", "my records"]
            result = project.run(*args, "unit")
            result.assert_outcomes(failed=1)
            (command,) = {x.partition(word)[2] for x in result.outlines if word in x}
            args = shlex.split(command)
            assert "--portability-baselines=my records" in args
            project.run(*args).assert_outcomes(passed=1)
            (path,) = (project.path / "my records").rglob("*.toml")
            path.unlink()


def test_the_command_it_prints_finds_a_root_that_is_elsewhere(project: Project) -> None:
    """The path in the node id is empty there, and pytest would take another root."""
    project.make(one("missing"))
    elsewhere = project.path / "elsewhere"
    elsewhere.mkdir()
    args = ("--portability", f"--rootdir={elsewhere}", f"{project.path}/test_it.py")
    result = project.run(*args)
    result.assert_outcomes(failed=1)
    word = "record it: pytest "
    (command,) = {x.partition(word)[2] for x in result.outlines if word in x}
    assert "--rootdir=elsewhere" in shlex.split(command)
    project.run(*shlex.split(command)).assert_outcomes(passed=1)
    assert list((elsewhere / "baselines").rglob("*.toml"))


def test_what_cannot_be_recorded_offers_no_command(project: Project) -> None:
    """``placement`` and ``error`` are to be mended."""
    project.make(
        """
        @pytest.mark.parametrize("verdict", ["placement", "error"])
        def test_it(portability, verdict):
            portability.check("m.onnx", inputs, name=verdict)
        """
    )
    assert "--update-baselines" not in output(project.run("--portability"))


# --- policies ---------------------------------------------------------------------------------


def test_a_missing_record_may_be_a_warning(project: Project) -> None:
    """And so may a stale one, which is as good as none."""
    project.make(
        """
        @pytest.mark.parametrize("verdict", ["missing", "stale"])
        def test_it(portability, verdict):
            portability.check("m.onnx", inputs, name=verdict)
        """
    )
    project.run("--portability", "--portability-missing=fail").assert_outcomes(failed=2)
    result = project.run("--portability", "--portability-missing=warn")
    result.assert_outcomes(passed=2, warnings=2)
    assert result.ret == pytest.ExitCode.OK


def test_an_inconclusive_item_may_fail(project: Project) -> None:
    """Where the runner is quiet, noise is news."""
    project.make(one("inconclusive"))
    project.run("--portability").assert_outcomes(passed=1, warnings=1)
    result = project.run("--portability", "--portability-inconclusive=fail")
    result.assert_outcomes(failed=1)
    assert "INCONCLUSIVE: inconclusive" in output(result)


def test_a_warning_is_ours_and_points_at_the_test(project: Project) -> None:
    """So that ``filterwarnings`` can name it."""
    project.make(one("inconclusive"))
    result = project.run("--portability")
    result.stdout.fnmatch_lines(["*test_it.py:*: PortabilityWarning: INCONCLUSIVE: *"])
    strict = "error::pytest_portability.PortabilityWarning"
    project.run("--portability", "-W", strict).assert_outcomes(failed=1)
    quiet = "ignore::pytest_portability.errors.PortabilityWarning"
    project.run("--portability", "-W", quiet).assert_outcomes(passed=1, warnings=0)


# --- known ------------------------------------------------------------------------------------

KNOWN = "@pytest.mark.portability(known={'cpu-*': ('regressed', 'ORT#1234')})"


def test_a_known_verdict_is_an_expected_failure(project: Project) -> None:
    """With its reason."""
    project.make(one("regressed", KNOWN))
    result = project.run("--portability", "-rx")
    result.assert_outcomes(xfailed=1)
    assert result.ret == pytest.ExitCode.OK
    assert "known regressed: ORT#1234" in output(result)


@pytest.mark.parametrize("verdict", ["ok", "improved", "parity", "missing", "inconclusive"])
def test_anything_else_than_the_known_verdict_fails(project: Project, verdict: str) -> None:
    """A pass, too: the entry is out of date."""
    project.make(one(verdict, KNOWN))
    result = project.run("--portability")
    result.assert_outcomes(failed=1)
    assert (
        "known={...} on the marker expects regressed here (ORT#1234), and this is "
        f"{verdict.upper()}: {verdict} fake-native-b1" in output(result)
    )


def test_a_known_verdict_holds_where_its_pattern_matches(project: Project) -> None:
    """Elsewhere the item is judged as ever."""
    project.make(one("ok", "@pytest.mark.portability(known={'amd-*': ('regressed', 'x')})"))
    project.run("--portability").assert_outcomes(passed=1)


def test_a_known_verdict_does_not_fail_the_run_that_records_it(project: Project) -> None:
    """What it will be held against is only being written."""
    project.make(one("missing", KNOWN))
    project.run("--portability", "--update-baselines").assert_outcomes(passed=1)


def test_what_skips_is_not_asked_whether_it_is_known(project: Project) -> None:
    """It was not measured."""
    project.make(one("skipped", KNOWN))
    project.run("--portability").assert_outcomes(skipped=1)


# --- an item like another ---------------------------------------------------------------------


def test_a_regression_is_a_failed_item_in_junit_xml(project: Project) -> None:
    """With the whole text, and without our luggage."""
    project.make(one("regressed"))
    project.run("--portability", "--junitxml=junit.xml")
    text = (project.path / "junit.xml").read_text(encoding="utf-8")
    (failure,) = ET.fromstring(text).iter("failure")
    assert "Gelu ×6 no longer fused" in (failure.text or "")
    assert len(text) < 4000


def test_x_stops_at_the_first_regression(project: Project) -> None:
    """``-x`` knows nothing of us."""
    project.make(EVERY)
    project.run("--portability", "-x").assert_outcomes(passed=2, failed=1)


def test_lf_runs_the_regression_again(project: Project) -> None:
    """And only that."""
    project.make(EVERY)
    run = project.pytester.runpytest_inprocess
    run("--portability", "-k", "ok or regressed").assert_outcomes(passed=1, failed=1, deselected=11)
    run("--portability", "--lf").assert_outcomes(failed=1)


def test_xfail_of_pytest_works(project: Project) -> None:
    """The mark of the project."""
    project.make(one("regressed", "@pytest.mark.xfail(reason='slow', strict=True)"))
    project.run("--portability").assert_outcomes(xfailed=1)
    project.make(one("ok", "@pytest.mark.xfail(reason='slow', strict=True)"))
    project.run("--portability").assert_outcomes(failed=1)
    project.make(one("missing", "@pytest.mark.xfail(reason='slow', strict=True)"))
    result = project.run("--update-baselines")
    result.assert_outcomes(failed=1)
    assert "baseline refused: the test failed after its check" in output(result)
    assert "missing" not in {key.model for key in project.records}


def test_a_test_may_go_on_with_the_result(project: Project) -> None:
    """And its own assertion fails as ever, with what was measured in the report."""
    project.make(
        """
        def test_it(portability):
            result = portability.check("m.onnx", inputs, name="ok")
            assert result.comparison.verdict.value == "ok"
            assert result.record.key.model == "ok"
            assert result.baseline is not None
            assert result.outputs == {}
            assert False, "my own"
        """
    )
    result, items = project.report()
    result.assert_outcomes(failed=1)
    assert "my own" in output(result)
    assert [item["verdict"] for item in items] == ["ok"]


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ("options={'onnxrutime': {}}", "unknown runtime 'onnxrutime'; known: fake"),
        (
            "options={'speed': 2}",
            "options are given by runtime, such as options={'fake': {'speed': 2}}",
        ),
        ("options={'fake': 3}", "options['fake'] is 3; expected a mapping"),
        ("options=[1]", "options= of portability.check is [1]; expected a mapping"),
        ("config='adam'", "config= of portability.check is 'adam'; expected a mapping"),
        ("profile={'seq': '128'}", "profile= of portability.check has 'seq': '128'"),
        ("profile={'a-b': 1}", "has 'a-b': 1; expected the name of a dimension"),
        ("profile={'seq': 0}", "has 'seq': 0; expected the name of a dimension"),
        ("profile={'seq': 2**63}", "its size, a whole number from 1 on"),
        ("profile={'a1': 1}", "without a digit at its end"),
        ("items=0", "items= of portability.check is 0; expected a finite number above 0"),
        ("items=float('inf')", "items= of portability.check is inf; expected a finite number"),
        ("items=10**400", "expected a finite number above 0"),
        ("unit=None", "unit= of portability.check is None; expected a line of text"),
        ("unit='a\\nb'", "expected a line of text"),
    ],
)
def test_a_wrong_argument_is_a_clear_failure(project: Project, given: str, text: str) -> None:
    """Of that item, which is in the report as an error."""
    project.make(
        f"""
        def test_it(portability):
            portability.check("m.onnx", inputs, name="ok", {given})
        """
    )
    result, items = project.report()
    result.assert_outcomes(failed=1)
    assert text in flat(result)
    assert "Traceback" not in output(result)
    assert [item["verdict"] for item in items] == ["error"]
    assert text in items[0]["reason"]


@pytest.mark.parametrize("first", ["regressed", "ok"])
def test_an_item_that_runs_again_is_reported_once(project: Project, first: str) -> None:
    """As pytest-rerunfailures does it: set-up, call and tear-down are logged for each attempt.

    It may want the same record again.
    """
    project.make(
        f"""
        attempts = []

        def test_it(portability):
            attempts.append(1)
            again = len(attempts) > 1
            portability.check("m.onnx", inputs, name="ok" if again else {first!r})
            assert again
        """,
        conftest="""
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_protocol(item, nextitem):
            from _pytest.runner import runtestprotocol
            for attempt in (1, 2):
                reports = runtestprotocol(item, nextitem=nextitem, log=False)
                for report in reports:
                    if attempt == 1 and report.failed:
                        report.outcome = "rerun"
                    item.ihook.pytest_runtest_logreport(report=report)
            return True
        """,
    )
    result, items = project.report()
    assert result.ret == pytest.ExitCode.OK
    assert [item["verdict"] for item in items] == ["ok"]
