"""``--update-baselines``: whose flag it is, and what is written by the one table."""

from __future__ import annotations

import shlex
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from project import Project, flat, output
from scripted import comparison
from synthetic import RECORD

from pytest_portability import records
from pytest_portability.compare import Comparison
from pytest_portability.ledger import Updates
from pytest_portability.records import Key, path_of, write
from pytest_portability.report import Entry
from pytest_portability.verdicts import POLICY, Verdict

OWN = """
def pytest_addoption(parser):
    parser.addoption("--update-baselines", action="store_true", default=False)
"""

OTHER_DEST = """
def pytest_addoption(parser):
    parser.addoption("--update-baselines", action="store_true", dest="redraw")
"""

NEW = """
def test_new(portability):
    portability.check("m.onnx", inputs, name="missing")
"""

FOREIGN = """
def test_own_flag(request):
    assert request.config.getoption("--update-baselines") is True
"""


def every(*verdicts: Verdict) -> str:
    """A test file with an item for each verdict."""
    names = [v.value for v in verdicts]
    return f"""
@pytest.mark.parametrize("verdict", {names})
def test_it(portability, verdict):
    portability.check("m.onnx", inputs, name=verdict)
"""


def store(project: Project, verdict: Verdict) -> Key:
    """Write the baseline of a scripted comparison."""
    key = Key(
        model=verdict.value, target=project.target, runtime="fake", precision="native", batch=1
    )
    baseline = comparison(verdict, key).baseline
    assert baseline is not None
    write(path_of(project.path / "baselines", key.model, key.target), {key: baseline})
    return key


# --- whose flag it is -------------------------------------------------------------------------


def test_it_implies_portability(project: Project) -> None:
    """One flag measures and writes."""
    project.make(NEW)
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1)
    assert project.record().key.model == "missing"


@pytest.mark.parametrize("own", [OWN, OTHER_DEST], ids=["same dest", "other dest"])
def test_a_root_conftest_keeps_its_own_flag(project: Project, own: str) -> None:
    """Without --portability the project's runs are as if the plugin were not installed."""
    project.make(NEW + FOREIGN, conftest=own)
    result = project.run("--update-baselines", "-rs")
    result.assert_outcomes(passed=1, skipped=1)
    assert "needs --portability" in output(result)
    assert project.files() == {}
    result.stdout.no_fnmatch_line("*== portability ==*")


@pytest.mark.parametrize("own", [OWN, OTHER_DEST], ids=["same dest", "other dest"])
def test_the_projects_own_flag_is_honoured_with_portability(project: Project, own: str) -> None:
    """It then means both."""
    project.make(NEW + FOREIGN, conftest=own)
    project.run("--portability", "--update-baselines").assert_outcomes(passed=2)
    assert project.record().key.model == "missing"


def test_an_own_flag_that_is_not_given_updates_nothing(project: Project) -> None:
    """The project's flag exists, and is off."""
    project.make(NEW, conftest=OWN)
    project.run("--portability").assert_outcomes(failed=1)
    assert project.files() == {}


def test_an_own_flag_that_wants_an_argument_is_left_alone(project: Project) -> None:
    """It is the project's whatever it looks like."""
    own = 'def pytest_addoption(parser): parser.addoption("--update-baselines", default="no")'
    project.make(
        "def test_x(request): assert request.config.getoption('--update-baselines') == 'a'"
    )
    project.write({"conftest.py": own})
    project.run("--update-baselines=a").assert_outcomes(passed=1)
    project.run("--update-baselines", "a").assert_outcomes(passed=1)


@pytest.mark.parametrize("args", [(), ("--portability",)], ids=["alone", "with --portability"])
def test_a_conftest_named_on_the_command_line_keeps_its_flag(
    project: Project, args: tuple[str, ...]
) -> None:
    """Initial conftests are those of the directories that are given."""
    project.make()
    project.write({"visual/conftest.py": OWN, "visual/test_own.py": FOREIGN})
    result = project.run("visual", "--update-baselines", *args)
    result.assert_outcomes(passed=1)


def test_a_late_conftest_with_the_same_flag_is_told(project: Project) -> None:
    """Pytest finds it too late to give it the flag; nothing is guessed and nothing is written."""
    project.make(NEW)
    project.write({"visual/conftest.py": OWN, "visual/test_own.py": "def test_x(): pass"})
    result = project.run("--update-baselines")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "is also defined by a conftest that was found during collection" in flat(result)
    assert "--portability --update-baselines for pytest-portability's" in flat(result)
    assert project.files() == {}


def test_a_late_conftest_does_not_matter_where_ours_is_meant(project: Project) -> None:
    """``--portability --update-baselines`` leaves no doubt."""
    project.make(NEW)
    project.write({"visual/conftest.py": OWN, "visual/test_own.py": "def test_x(): pass"})
    project.run("--portability", "--update-baselines").assert_outcomes(passed=2)
    assert project.record().key.model == "missing"


def test_a_late_conftest_does_not_matter_without_the_flag(project: Project) -> None:
    """The run is as if the plugin were not installed."""
    project.make(NEW)
    project.write({"visual/conftest.py": OWN, "visual/test_own.py": "def test_x(): pass"})
    project.run().assert_outcomes(passed=1, skipped=1)
    project.run("--portability", "--portability-missing=warn").assert_outcomes(passed=2, warnings=1)


@pytest.mark.parametrize("own", ["", OWN], ids=["ours", "the project's"])
def test_help_shows_the_flag_once(project: Project, own: str) -> None:
    """Whoever owns it."""
    project.make(conftest=own)
    for args in (["--help"], ["-h"], ["-h", "--update-baselines"]):
        result = project.run(*args)
        assert result.ret == 0
        shown = [line for line in result.outlines if line.strip().startswith("--update-baselines")]
        assert len(shown) == 1


def test_the_flag_may_be_in_addopts(project: Project) -> None:
    """It is an argument like another."""
    project.make(NEW, ini="addopts = --update-baselines")
    project.run().assert_outcomes(passed=1)


def test_workers_of_xdist_see_the_flag(project: Project) -> None:
    """A worker gets options, not arguments; only the controller writes."""
    project.make(NEW)
    project.spawn("-n1", "--update-baselines").assert_outcomes(passed=1)
    assert project.record().key.model == "missing"


def test_a_reason_needs_the_flag(project: Project) -> None:
    """Nothing would be accepted."""
    project.make(NEW)
    result = project.run("--portability", "--portability-accept=why")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "only with --update-baselines" in flat(result)


# --- the table --------------------------------------------------------------------------------

WRITTEN = [v for v in Verdict if POLICY[v].update in {"yes", "unless worse"}]
WITH_REASON = [v for v in Verdict if POLICY[v].update == "accept"]
NEVER = [v for v in Verdict if POLICY[v].update == "never" and v is not Verdict.SKIPPED]


def test_what_may_be_written_is_written_and_passes(project: Project) -> None:
    """``missing``, ``improved`` and a ``stale`` that is no slower."""
    project.make(every(*WRITTEN))
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=len(WRITTEN))
    assert {key.model for key in project.records} == {v.value for v in WRITTEN}
    assert output(result).count("baseline written") == len(WRITTEN)


def test_a_recorded_row_does_not_shout(project: Project) -> None:
    """``recorded`` and ``baseline written`` say it all."""
    project.make(NEW)
    result = project.run("--update-baselines")
    result.stdout.fnmatch_lines(["missing *  recorded", "        baseline written"])
    result.stdout.no_fnmatch_line("*on purpose*")
    result.stdout.no_fnmatch_line("*MISSING*")


def test_a_worse_record_needs_a_reason(project: Project) -> None:
    """Each fails, is refused, and its file is as it was."""
    project.make(every(*WITH_REASON))
    for verdict in WITH_REASON:
        store(project, verdict)
    before = project.files()
    result = project.run("--update-baselines")
    result.assert_outcomes(failed=len(WITH_REASON))
    for verdict in WITH_REASON:
        assert f'baseline refused: {verdict.value} needs --portability-accept="why"' in output(
            result
        )
    assert project.files() == before


def test_an_accepted_record_is_written_with_its_reason(project: Project) -> None:
    """The step is kept with old and new figures, and the next check is ``ok``."""
    project.make(every(Verdict.REGRESSED))
    key = store(project, Verdict.REGRESSED)
    before = project.records[key].figures.throughput
    result = project.run("--update-baselines", "--portability-accept=the new driver, see #12")
    result.assert_outcomes(passed=1)
    (step,) = project.records[key].accepted
    assert (step.reason, step.verdict) == ("the new driver, see #12", "regressed")
    assert step.before == before
    assert step.after == project.records[key].figures.throughput
    project.run("--portability").assert_outcomes(passed=1)


def test_a_reason_is_not_charged_to_what_needs_none(project: Project) -> None:
    """Only what was refused without it is a step."""
    project.make(every(Verdict.STALE, Verdict.IMPROVED))
    keys = [store(project, Verdict.STALE), store(project, Verdict.IMPROVED)]
    project.run("--update-baselines", "--portability-accept=why").assert_outcomes(passed=2)
    assert [project.records[key].accepted for key in keys] == [(), ()]


def test_what_is_never_recorded_is_not_even_with_a_reason(project: Project) -> None:
    """``placement``, ``inconclusive`` and ``error``."""
    project.make(every(*NEVER))
    for verdict in set(NEVER) - {Verdict.ERROR}:
        store(project, verdict)
    before = project.files()
    result = project.run("--update-baselines", "--portability-accept=why")
    result.assert_outcomes(failed=2, passed=1, warnings=1)
    assert "baseline refused: placement is never recorded" in output(result)
    assert project.files() == before


def test_an_unchanged_record_leaves_its_file_as_it_is(project: Project) -> None:
    """Byte by byte, reviewers' comments too."""
    project.make(NEW)
    project.run("--update-baselines")
    (path,) = (project.path / "baselines").rglob("*.toml")
    path.write_text("# agreed with Ada\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    before = project.files()
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1)
    assert project.files() == before
    result.stdout.no_fnmatch_line("        baseline *")


def test_facts_are_refreshed_and_figures_kept(project: Project) -> None:
    """An ``ok`` after a new driver: the toolchain is news, the speed is not."""
    project.make(NEW)
    project.run("--update-baselines")
    (path,) = (project.path / "baselines").rglob("*.toml")
    key, stored = next(iter(project.records.items()))
    old = replace(
        stored, toolchain={"onnxruntime": "1.0"}, figures=replace(stored.figures, throughput=790.0)
    )
    write(path, {key: old})
    path.write_text("# agreed with Ada\n" + path.read_text(encoding="utf-8"), encoding="utf-8")
    result = project.run("--update-baselines")
    result.assert_outcomes(passed=1)
    assert "baseline refreshed" in output(result)
    assert project.record().toolchain == stored.toolchain
    assert project.record().figures.throughput == 790.0
    assert path.read_text(encoding="utf-8").startswith("# agreed with Ada\n")


def test_a_metric_that_was_added_is_stored_beside_the_ones_that_are_there(tmp_path: Path) -> None:
    """It would be judged never else; one that is there keeps what it was recorded with."""
    then = replace(RECORD, parity=replace(RECORD.parity, metrics={"auc": 0.9}))
    now = replace(RECORD, parity=replace(RECORD.parity, metrics={"auc": 0.91, "f1": 0.5}))
    same = Comparison(verdict=Verdict.OK, reason="", record=now, baseline=then)
    entry = Entry(nodeid="test_m", key=now.key, comparison=same)
    assert Updates(directory=tmp_path).apply(entry).update == "refreshed"
    (stored,) = records.read_all(tmp_path)[0].values()
    assert stored.parity.metrics == {"auc": 0.9, "f1": 0.5}


# --- the file system --------------------------------------------------------------------------


def test_a_directory_that_cannot_be_made_fails_the_item(project: Project) -> None:
    """A record that is not written must not pass for one that is."""
    project.make(NEW)
    project.write({"baselines/missing": "a file in the way"})
    result = project.run("--update-baselines")
    result.assert_outcomes(failed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    assert "the record was not written" in flat(result)
    assert "cannot be written" in flat(result)
    assert (project.path / "baselines/missing").read_text(encoding="utf-8") == "a file in the way"


def test_a_file_that_cannot_be_read_fails_its_item_and_is_kept(project: Project) -> None:
    """The other items are written."""
    project.make(
        """
        @pytest.mark.parametrize("name", ["missing_a", "missing_b"])
        def test_it(portability, name):
            portability.check("m.onnx", inputs, name=name)
        """
    )
    broken = f"baselines/missing_a/{project.target}.toml"
    project.write({broken: "schema = \n"})
    result = project.run("--update-baselines")
    result.assert_outcomes(failed=1, passed=1)
    assert (project.path / broken).read_text(encoding="utf-8") == "schema = \n"
    assert (project.path / "baselines" / "missing_b" / f"{project.target}.toml").exists()


def test_a_run_killed_while_it_writes_leaves_a_readable_tree(project: Project) -> None:
    """The first record is whole, the second is not there, and the next run completes it."""
    project.make(
        """
        @pytest.mark.parametrize("name", ["missing_a", "missing_b"])
        def test_it(portability, name):
            portability.check("m.onnx", inputs, name=name)
        """,
        conftest="""
        import os, signal
        from pytest_portability.records import files as record_files

        through = record_files._write_through

        def dies(path, data, mode):
            through(path, data[: len(data) // 2 if "missing_b" in str(path) else None], mode)
            if "missing_b" in str(path) and os.environ.get("DIES"):
                os.kill(os.getpid(), signal.SIGKILL)

        if os.environ.get("DIES"):
            record_files._write_through = dies
        """,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DIES", "1")
        assert project.spawn("--update-baselines").ret == -signal.SIGKILL
    assert [key.model for key in project.records] == ["missing_a"]
    project.spawn("--update-baselines").assert_outcomes(passed=2)
    assert sorted(key.model for key in project.records) == ["missing_a", "missing_b"]


def test_an_interrupted_run_keeps_what_it_has_and_is_not_green(project: Project) -> None:
    """What was measured is written and reported; no file is half of one."""
    project.make(
        """
        import os, signal

        @pytest.mark.parametrize("n", range(3))
        def test_it(portability, n):
            if n == 1:
                os.kill(os.getpid(), signal.SIGINT)
            portability.check("m.onnx", inputs, name=f"missing_{n}")
        """
    )
    # A job in the background of a shell inherits that it ignores interrupts.
    own = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    conftest = project.path / "conftest.py"
    conftest.write_text(own + conftest.read_text(encoding="utf-8"), encoding="utf-8")
    result = project.spawn("--update-baselines", "--portability-report=json:report.json")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    assert [key.model for key in project.records] == ["missing_0"]
    assert [i["update"] for i in project.json()["items"] if i["model"] == "missing_0"] == [
        "written"
    ]


# --- really measured --------------------------------------------------------------------------


def test_the_whole_life_of_a_record(project: Project) -> None:
    """Missing, recorded, ok, slower, refused, accepted by the command it printed, ok again."""
    sure = "portability_repeats = 4"  # one repeat beside other tests makes nothing certain
    project.make(real=True, ini=sure)
    wide = "--portability-tolerance=0.8"
    assert "MISSING" in output(project.run("--portability", wide))
    project.run("--update-baselines", wide).assert_outcomes(passed=1)
    before = project.files()

    thirty = "FakeRuntime(packages=PACKAGES, repeats=30)"
    project.make(real=True, fakes=thirty, ini=sure)
    failed = project.run("--portability", wide)
    failed.assert_outcomes(failed=1)
    assert "REGRESSED" in output(failed)
    assert project.files() == before

    (command,) = {line.strip() for line in failed.outlines if "accept on purpose" in line}
    args = shlex.split(command.partition("accept on purpose: pytest ")[2])
    accepted = project.run(*args)
    accepted.assert_outcomes(passed=1)
    assert project.record().accepted[0].reason == "why"
    project.run("--portability", wide).assert_outcomes(passed=1)


@pytest.mark.parametrize("where", ["test", "fixture"])
def test_a_test_that_fails_after_its_check_writes_nothing(project: Project, where: str) -> None:
    """Whatever it found, its own assertion says that the model is not right."""
    check = 'portability.check("m.onnx", inputs, name="missing_one")'
    inside, outside = (check, "pass") if where == "test" else ("pass", check)
    project.make(
        f"""
        @pytest.fixture
        def measured(portability):
            {outside}

        def test_it(portability, measured):
            {inside}
            assert False, "my own"
        """
    )
    result, items = project.report("--update-baselines")
    result.assert_outcomes(failed=1)
    assert [item["update"] for item in items] == ["refused: the test failed after its check"]
    assert "baseline refused: the test failed after its check" in flat(result)
    assert not project.records


def test_whatever_writing_raises_fails_its_item_only(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No INTERNALERROR, which would take the other items with it."""

    def broken(*_given: object) -> bool:
        msg = "no such codec"
        raise LookupError(msg)

    monkeypatch.setattr(records, "write", broken)
    project.make(
        NEW + 'def test_other(portability): portability.check("m.onnx", inputs, name="error")'
    )
    result = project.run("--update-baselines")
    result.assert_outcomes(failed=2)
    assert "the record was not written: LookupError: no such codec" in flat(result)
    assert "INTERNALERROR" not in output(result)


# --- records that nothing asks for ------------------------------------------------------------

TWO = """
def test_kept(portability):
    portability.check("m.onnx", inputs, name="ok")

def test_dropped(portability):
    portability.check("m.onnx", inputs, name="missing")
"""
SKIPPING = """
def test_elsewhere(portability):
    pytest.skip("not today")
"""


@pytest.mark.parametrize("workers", ["-n0", "-n2"])
def test_a_record_that_no_test_of_the_whole_suite_asks_for_is_listed(
    project: Project, workers: str
) -> None:
    """By name, on a check and on an update alike; it is not taken away."""
    pytest.importorskip("xdist")
    project.make(TWO)
    project.spawn("--update-baselines")
    dropped = TWO.partition("def test_dropped")
    project.make(dropped[0])
    result = project.spawn("--portability", "--portability-report=json:report.json", workers)
    text = output(result)
    assert "1 record that no test of the whole suite asked for:" in text
    assert f"missing/{project.target}.toml fake-native-b1" in text
    assert "take them out, or bring their tests back" in text
    assert project.json()["unused"] == [
        {"model": "missing", "target": project.target, "row": "fake-native-b1"}
    ]
    assert result.ret == 0


@pytest.mark.parametrize(
    "args",
    [
        ("-k", "kept"),
        ("-m", "cpu"),
        ("test_it.py",),
        ("--deselect", "test_it.py::test_other"),
        ("-p", "cacheprovider", "--lf"),
        ("--ignore=other",),
    ],
    ids=" ".join,
)
def test_a_part_of_the_suite_says_nothing_of_the_other_records(
    project: Project, args: tuple[str, ...]
) -> None:
    project.make(TWO)
    project.spawn("--update-baselines")
    project.make(TWO.partition("def test_dropped")[0])
    text = output(project.spawn("--portability", *args))
    assert "1 measured" in text
    assert "asked for" not in text


def test_nor_does_a_suite_in_which_a_test_skipped_that_may_have_asked(project: Project) -> None:
    project.make(TWO)
    project.spawn("--update-baselines")
    project.make(TWO.partition("def test_dropped")[0] + SKIPPING)
    assert "asked for" not in output(project.spawn("--portability"))


def test_nor_does_one_of_which_a_plugin_left_something_out(project: Project) -> None:
    hook = """
def pytest_collection_modifyitems(config, items):
    left = [item for item in items if "dropped" in item.name]
    items[:] = [item for item in items if item not in left]
    config.hook.pytest_deselected(items=left)
"""
    project.make(TWO)
    project.spawn("--update-baselines")
    project.make(TWO, conftest=hook)
    assert "asked for" not in output(project.spawn("--portability"))
