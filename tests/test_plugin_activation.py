"""When the plugin does something, to which items, and how ``-m`` chooses among them."""

from __future__ import annotations

import pytest
from project import Project, flat, output
from synthetic import RECORD, record

from pytest_portability import fixture
from pytest_portability.records import Key, path_of, write

CHECK = """
def test_it(portability):
    portability.check("m.onnx", inputs, name="ok")

def test_other():
    pass
"""

HEAVY = ("numpy", "torch", "onnx", "onnxruntime", "openvino", "cloudpickle")

CONFTEST = f"""
import sys

def pytest_sessionfinish():
    print("\\nheavy:", [name for name in {HEAVY} if name in sys.modules], "end")
"""


def test_without_the_flag_tests_skip_and_nothing_heavy_is_imported(project: Project) -> None:
    """Neither NumPy nor a runtime, and no child process looks for hardware."""
    project.write({"conftest.py": CONFTEST, "test_it.py": CHECK})
    result = project.spawn("-rs", "-v", "-s")
    result.assert_outcomes(passed=1, skipped=1)
    assert "needs --portability" in output(result)
    assert "heavy: [] end" in output(result)
    assert "test_it.py::test_it SKIPPED" in output(result)  # not parametrized
    result.stdout.no_fnmatch_line("*portability:*")
    result.stdout.no_fnmatch_line("*== portability ==*")


@pytest.mark.parametrize(("expression", "name"), [("cpu", "cpu"), ("not slow and rocm", "rocm")])
def test_selecting_a_target_without_the_flag_says_what_is_missing(
    project: Project, expression: str, name: str
) -> None:
    project.write({"test_it.py": CHECK})
    result = project.run("-m", expression)
    result.stdout.fnmatch_lines(
        [f"portability: with -m, '{name}' is only there under --portability"]
    )


def test_a_projects_own_marker_without_the_flag_is_its_own_business(project: Project) -> None:
    project.write({"test_it.py": CHECK, "test_own.py": "def test_other(): pass"})
    for arguments in (("-m", "not cpu"), ("-m", "cpu", "test_own.py"), ("-k", "other")):
        project.run(*arguments).stdout.no_fnmatch_line("portability:*")


def test_the_hardware_is_not_looked_for_where_no_test_asks(project: Project) -> None:
    """A flag in addopts costs other directories nothing."""
    project.make("def test_other(): pass")
    result = project.run("--portability")
    result.stdout.no_fnmatch_line("portability: cpu-*")


def test_items_have_readable_ids_and_know_what_they_are(project: Project) -> None:
    """Target, runtime, precision and batch, in the order of the request, each once."""
    project.make(
        """
        @pytest.mark.portability(batches=[1, 8, 1], precisions=["native", "fp32"])
        def test_it(portability):
            p = portability
            print(f"<{p.target}|{p.runtime}|{p.precision}|{p.batch}>")
            p.check("m.onnx", inputs, name="ok")
        """
    )
    result = project.run("--portability", "-s", "-v")
    result.assert_outcomes(passed=4)
    target = project.target
    for precision in ("native", "fp32"):
        for batch in (1, 8):
            assert f"test_it[{target}-fake-{precision}-b{batch}]" in output(result)
            assert f"<{target}|fake|{precision}|{batch}>" in output(result)


def test_a_runtime_that_two_patterns_name_is_built_once(project: Project) -> None:
    """Otherwise both items would claim the same record."""
    project.make(f"@pytest.mark.portability(runtimes=['fake', 'fa*', 'fake']){CHECK}")
    project.run("--portability").assert_outcomes(passed=2)


def test_other_parameters_are_combined_with_the_items(project: Project) -> None:
    """The fixture's parameter is one among others."""
    project.make(
        """
        @pytest.mark.parametrize("size", [1, 2])
        def test_it(portability, size):
            portability.check("m.onnx", inputs, name="ok", profile={"size": size})
        """
    )
    project.run("--portability").assert_outcomes(passed=2)


def test_the_fixture_may_be_asked_for_by_another_fixture(project: Project) -> None:
    """What it measures there is reported as well, and fails the set-up."""
    project.make(
        """
        @pytest.fixture(params=["ok", "regressed"])
        def checked(request, portability):
            return portability.check("m.onnx", inputs, name=request.param)

        def test_it(checked):
            assert checked.record is not None
        """
    )
    result, items = project.report()
    result.assert_outcomes(passed=1, errors=1)
    assert [item["verdict"] for item in items] == ["ok", "regressed"]


def test_getfixturevalue_is_answered_with_a_reason(project: Project) -> None:
    """It comes too late for a parametrized fixture."""
    project.make("def test_it(request): request.getfixturevalue('portability')")
    result = project.run("--portability")
    assert "portability is an argument of a test or fixture" in flat(result)


def test_a_unittest_test_case_is_answered_with_a_reason(project: Project) -> None:
    """And is in the report, as is every item that asked."""
    project.make(
        """
        import unittest

        class TestIt(unittest.TestCase):
            @pytest.fixture(autouse=True)
            def take(self, portability):
                self.portability = portability

            def test_mlp(self):
                self.portability.check("m.onnx", inputs, name="ok")

        def test_late(request):
            with pytest.raises(BaseException):
                request.getfixturevalue("portability")
        """
    )
    result, items = project.report()
    result.assert_outcomes(errors=1, failed=1)
    assert "or in a unittest.TestCase; take it as an argument" in flat(result)
    assert [(item["model"], item["verdict"]) for item in items] == [
        ("mlp", "error"),
        ("late", "error"),
    ]


@pytest.mark.parametrize(
    ("argument", "value", "outcome"),
    [("", "7", "7"), ("portability", "portability.batch", "1")],
    ids=["hides ours", "asks for ours"],
)
def test_a_projects_own_fixture_of_that_name_is_its_own(
    project: Project, argument: str, value: str, outcome: str
) -> None:
    """It is parametrized only where it asks for ours."""
    project.make(
        f"""
        @pytest.fixture
        def portability({argument}):
            return {value}

        def test_it(portability, request):
            assert portability == {outcome}
            assert hasattr(request.node, "callspec") is {bool(argument)}
        """
    )
    result = project.run("--portability")
    assert result.parseoutcomes() == ({"failed": 1} if argument else {"passed": 1})
    assert ("never called check" in flat(result)) is bool(argument)


def test_strict_markers_and_strict_config_hold(project: Project) -> None:
    """Everything the plugin uses is registered."""
    project.make(f"@pytest.mark.portability(batches=[1]){CHECK}", ini="portability_batches = 2")
    result = project.run("--portability", "--strict-markers", "--strict-config")
    result.assert_outcomes(passed=2)
    project.run("--strict-markers", "--strict-config").assert_outcomes(passed=1, skipped=1)


@pytest.mark.parametrize(
    ("expression", "chosen"),
    [
        ("cpu", 1),
        ("x86_64 or aarch64 or arm64", 1),
        ("not cpu", 1),
        ("nvidia or amd or intel or apple", 0),
        ("cuda or rocm or xpu or mps or directml or webgpu", 0),
        ("rocm and not gfx90a", 0),
        ("sm_90 or sm_90a or gfx942 or xe_hpc or m2", 0),
        ("torch or onnxruntime or openvino", 0),
        ("fake", 1),
        ("wse3", 0),
    ],
)
def test_markers_choose_items(project: Project, expression: str, chosen: int) -> None:
    """Vendor, platform, architecture, runtime family; those of no runner of this kind, too.

    ``wse3`` looks like nothing: only the records have it.
    """
    key = Key(model="m", target="other", runtime="r", precision="native", batch=1)
    path = path_of(project.path / "baselines", "m", "other")
    write(path, {key: record(key=key, arch="wse3")})
    assert RECORD.arch != "wse3"
    project.make(CHECK)
    result = project.run("--portability", "--strict-markers", "-m", expression, "-v")
    assert sum(result.parseoutcomes().get(k, 0) for k in ("passed", "failed")) == chosen
    assert result.ret == (pytest.ExitCode.NO_TESTS_COLLECTED if not chosen else result.ret), output(
        result
    )
    assert result.ret != pytest.ExitCode.USAGE_ERROR


def test_an_unknown_name_in_m_is_still_an_error(project: Project) -> None:
    """Only what looks like an architecture is taken on trust."""
    if pytest.version_tuple < (9,):
        pytest.skip("pytest 8 takes any name in -m")
    project.make(CHECK)
    result = project.run("--portability", "--strict-markers", "-m", "tpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR


def test_markers_are_set_on_portability_items_only(project: Project) -> None:
    """A project's own ``cuda`` tests keep their meaning."""
    project.make(
        """
        def test_it(portability):
            portability.check("m.onnx", inputs, name="ok")

        @pytest.mark.cuda
        def test_own():
            pass
        """
    )
    result = project.run("--portability", "-m", "cuda", "-v")
    result.assert_outcomes(passed=1, deselected=1)
    assert "test_own PASSED" in output(result)


def test_a_model_is_looked_for_beside_the_test_and_then_in_the_root(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the current directory is."""
    monkeypatch.setattr(fixture.Portability, "_measured", fixture.Portability._measured)
    project.make(
        conftest="""
        from pytest_portability import fixture
        check = fixture.Portability._measured

        def seen(self, ask):
            print(f"<{ask.model}>")
            return check(self, ask)

        fixture.Portability._measured = seen
        """
    )
    test = """
    def test_it(portability):
        portability.check("beside.onnx", None, name="ok_a")
        portability.check("root.onnx", None, name="ok_b")
        portability.check("nowhere.onnx", None, name="ok_c")
    """
    project.write(
        {"sub/test_sub.py": test, "sub/beside.onnx": "", "root.onnx": "", "beside.onnx": ""}
    )
    text = output(project.run("--portability", "-s", "sub"))
    sub = project.path / "sub"
    for path in (sub / "beside.onnx", project.path / "root.onnx", sub / "nowhere.onnx"):
        assert f"<{path}>" in text


@pytest.mark.parametrize(
    "ending", ["raise OSError('broken')", "raise KeyboardInterrupt"], ids=["error", "Ctrl-C"]
)
def test_child_processes_end_with_a_run_that_breaks_off(project: Project, ending: str) -> None:
    """During collection, after the hardware was looked for: no server and no directory is left."""
    project.make(
        CHECK,
        conftest="""
        from pytest_portability import servers

        class Looking(FakeRuntime):
            def devices(self):
                return [], []

        made = []
        start = servers.Servers.__init__

        def noted(self, **given):
            start(self, **given)
            made.append(self)

        servers.Servers.__init__ = noted

        def pytest_portability_runtimes(config):
            return [Looking()]

        def pytest_unconfigure(config):
            for one in made:
                print("left:", [p.alive for p in one._servers.values()], one.directory)

        @pytest.hookimpl(wrapper=True, tryfirst=True)
        def pytest_cmdline_main(config):
            try:
                return (yield)
            finally:
                for one in made:
                    print("after:", len(one._servers), one.directory.exists())
        """,
    )
    project.write({"test_zz.py": ending})
    text = output(project.spawn("--portability", "-s"))
    assert "after: 0 False" in text
