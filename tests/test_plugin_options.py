"""Every option: its place in the help, its ini twin, who wins, and what a bad value gets."""

from __future__ import annotations

import pytest
from project import Project, flat, output

from pytest_portability import fixture, settings

HELP = """
performance portability of models:
  --portability         build, measure and judge the tests that ask for the
                        portability fixture
  --portability-accept=REASON
                        with --update-baselines: also write records that are
                        worse, and why
"""

DEFAULTS = {
    "--portability": "",
    "--portability-accept": "",
    "--portability-baselines": "baselines",
    "--portability-inconclusive": "warn",
    "--portability-missing": "fail",
    "--portability-report": (),
    "--portability-require": (),
    "--portability-seconds": 1.5,
    "--portability-tolerance": 0.05,
    "--update-baselines": "",
}

CHECK = """
def test_it(portability):
    portability.check("m.onnx", inputs, name="ok")
"""

SEEN = """
from pytest_portability import fixture

check = fixture.Portability._measured

def seen(self, ask):
    print(f"<{ask.tolerance.value} {ask.tolerance.source} {ask.seconds}>")
    return check(self, ask)

fixture.Portability._measured = seen
"""


@pytest.fixture
def seeing(project: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project that prints the settings that reach an item."""
    monkeypatch.setattr(fixture.Portability, "_measured", fixture.Portability._measured)
    return project


def test_help_lists_every_option(project: Project) -> None:
    """A new option has to be added here, and there are twelve at most."""
    result = project.run("--help")
    shown = {
        word.partition("=")[0]
        for line in result.outlines
        for word in line.split()[:1]
        if word.startswith(("--portability", "--update-baselines"))
    }
    known = {d.option for d in settings.DECLARED.values() if d.option}
    assert shown == known | {"--portability", "--portability-accept", "--update-baselines"}
    assert set(DEFAULTS) <= shown
    assert len(shown) <= 12
    assert HELP.strip() in output(result)


def test_help_says_ini_key_and_default(project: Project) -> None:
    """Nobody has to look anywhere else."""
    text = flat(project.run("--help"))
    for option, default in DEFAULTS.items():
        for declared in settings.DECLARED.values():
            if declared.option == option:
                assert declared.default == default
                assert f"(ini: {declared.ini})" in text
                assert f"{option}={declared.metavar}" in text


def test_every_setting_but_known_has_an_ini_key(project: Project) -> None:
    """``known`` belongs to a test."""
    project.make()
    text = flat(project.run("--help"))
    for declared in settings.DECLARED.values():
        assert (f"{declared.ini} (" in text) is (declared.name != "known")


@pytest.mark.parametrize(
    ("ini", "option", "marker", "seen"),
    [
        ("", [], "", "0.05 default"),
        ("portability_tolerance = 0.06", [], "", "0.06 ini"),
        ("portability_tolerance = 0.06", ["0.07"], "", "0.07 command line"),
        ("portability_tolerance = 0.06", ["0.07"], "tolerance=0.08", "0.08 marker"),
        ("", [], "tolerance={'cpu-*': 0.09}", "0.09 marker"),
        ("", [], "tolerance={'cpu': 0.09}", "0.09 marker"),
        ("", ["0.07"], "tolerance={'amd-*': 0.09}", "0.07 command line"),
    ],
    ids=["default", "ini", "command line", "marker", "target", "vendor", "another target"],
)
def test_the_nearest_setting_wins_and_says_so(
    seeing: Project, ini: str, option: list[str], marker: str, seen: str
) -> None:
    """Default < ini < command line < marker."""
    mark = f"@pytest.mark.portability({marker})" if marker else ""
    seeing.make(f"{mark}{CHECK}", conftest=SEEN, ini=ini)
    args = [f"--portability-tolerance={value}" for value in option]
    result = seeing.run("--portability", "-s", *args)
    assert f"<{seen} 1.5>" in output(result)


def test_a_marker_on_the_class_is_completed_by_that_of_the_test(seeing: Project) -> None:
    """Argument by argument, the closest wins."""
    seeing.make(
        """
        @pytest.mark.portability(tolerance=0.2, seconds=3)
        class TestModel:
            @pytest.mark.portability(tolerance=0.3)
            def test_it(self, portability):
                portability.check("m.onnx", inputs, name="ok")
        """,
        conftest=SEEN,
    )
    assert "<0.3 marker 3.0>" in output(seeing.run("--portability", "-s"))


def test_each_option_has_an_ini_twin_that_works(project: Project) -> None:
    """Baselines, policies, report and lists."""
    project.make(
        """
        @pytest.mark.parametrize("verdict", ["missing", "inconclusive"])
        def test_it(portability, verdict):
            portability.check("m.onnx", inputs, name=verdict)
        """,
        ini="""
        portability_baselines = records
        portability_missing = warn
        portability_inconclusive = fail
        portability_require = cpu
        portability_batches = 1 2
        portability_precisions = native, fp32
        portability_report =
            json:a.json
            json:b.json
        """,
    )
    project.run("--portability").assert_outcomes(passed=4, failed=4, warnings=4)
    assert (project.path / "a.json").exists()
    assert (project.path / "b.json").exists()
    project.run("--update-baselines")
    assert (project.path / "records" / "missing").is_dir()


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("--portability-require=", "--portability-require = '': expected names"),
        ("--portability-baselines=", "--portability-baselines = '': expected a directory"),
        ("--portability-accept= ", "--portability-accept: is empty: say why worse figures"),
    ],
)
def test_an_empty_argument_is_an_error(project: Project, argument: str, text: str) -> None:
    """It comes from a variable that is not set; what it was to ask for must not go unasked."""
    project.make(CHECK)
    result = project.run("--update-baselines", argument)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in flat(result)


def test_a_file_instead_of_the_directory_of_the_records_ends_the_run(project: Project) -> None:
    project.make("def test_it(portability): portability.check('m.onnx', inputs, name='ok')")
    (project.path / "notes").write_text("not records")
    result = project.run("--portability", "--portability-baselines=notes")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: the baselines, *notes, are a file; expected the directory of the records"]
    )


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("tolerance", "five", "expected a fraction (0.05 is 5 %) above 0"),
        ("tolerance", "-0.1", "expected a fraction"),
        ("seconds", "0", "expected seconds above 0"),
        ("seconds", "nan", "expected seconds above 0"),
        ("missing", "ignore", "valid: fail, warn"),
        ("inconclusive", "skip", "valid: fail, warn"),
        ("report", "pdf:x", "expected KIND:PATH with KIND one of json"),
        ("report", "json", "expected KIND:PATH"),
    ],
)
def test_a_bad_value_ends_the_run_before_it_begins(
    project: Project, option: str, value: str, text: str
) -> None:
    """On the command line and in the ini file: exit code 4, the place, the value, what is valid."""
    project.make(CHECK)
    result = project.run("--portability", f"--portability-{option}={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"--portability-{option} = " in flat(result)
    assert value in flat(result)
    assert text in flat(result)

    project.make(CHECK, ini=f"portability_{option} = {value}")
    result = project.run("--portability")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ini key portability_{option} = " in flat(result)
    assert text in flat(result)
    project.run().assert_outcomes(skipped=1)  # nobody else pays for it


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("batches", "one", "portability_batches = 'one'"),
        ("batches", "0", "a batch size is a whole number from 1 on"),
        ("precisions", "fp8", "unknown precision 'fp8'; known: native, fp32"),
        ("repeats", "0", "expected a number of repeats from 1 to 20"),
        ("time_limit", "never", "portability_time_limit = 'never'"),
        ("parity", "0", "expected a fraction"),
    ],
)
def test_a_bad_ini_value_ends_the_run_before_it_begins(
    project: Project, key: str, value: str, text: str
) -> None:
    """Those that have no option, too."""
    project.make(CHECK, ini=f"portability_{key} = {value}")
    result = project.run("--portability")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert text in flat(result)


@pytest.mark.parametrize(
    ("marker", "text"),
    [
        ("batches=[0]", "batches = [0]: a batch size is a whole number from 1 on"),
        ("batches=2", "batches = 2: expected batch sizes, as a list"),
        ("precisions=['fp8']", "unknown precision 'fp8'; known: native, fp32"),
        ("runtimes=['tensorflow']", "unknown runtime 'tensorflow'; known: "),
        ("runtimes=[1]", "expected names, found [1]"),
        ("tolerance=True", "expected a fraction"),
        ("tolerance={'cpu-*': 'x'}", "expected a fraction"),
        ("known={'cpu-*': ('slow', 'x')}", "unknown verdict 'slow'; known: ok, improved"),
        ("known='regressed'", "known = 'regressed'"),
        ("tolerence=0.1", "unknown argument 'tolerence'; valid: batches, known"),
        ("0.1", "takes keyword arguments only: batches, known"),
    ],
)
def test_a_bad_marker_is_a_collection_error_that_names_the_test(
    project: Project, marker: str, text: str
) -> None:
    """Text, not a traceback."""
    project.make(f"@pytest.mark.portability({marker}){CHECK}")
    result = project.run("--portability")
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.assert_outcomes(errors=1)
    assert text in flat(result)
    if not marker.startswith("runtimes=['"):
        assert "test_it.py::test_it" in flat(result)
    assert "Traceback" not in output(result)
    assert "pytest_generate_tests" not in output(result)
