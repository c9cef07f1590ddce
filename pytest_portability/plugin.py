"""The pytest plugin: options, markers, the fixture, and what a verdict does to an item.

Every pytest run imports this module, with or without ``--portability``: what imports NumPy or a
runtime is imported inside functions that only a measuring run calls.
"""

# ruff: noqa: PLC0415 - see above

from __future__ import annotations

import base64
import pickle
import re
import warnings
from collections.abc import Generator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_portability import settings
from pytest_portability.errors import PortabilityError, PortabilityWarning, UsageError

if TYPE_CHECKING:
    from pytest_portability.fixture import Portability
    from pytest_portability.pipeline import Ask, Item, Result
    from pytest_portability.report import Entry
    from pytest_portability.run import Absentee, Discovery
    from pytest_portability.runtimes import Runtime
    from pytest_portability.settings import Setting

UPDATE = "--update-baselines"
VENDORS = ("nvidia", "amd", "intel", "apple", "qualcomm", "microsoft", "cpu")
PLATFORMS = ("cuda", "rocm", "xpu", "mps", "directml", "webgpu", "coreml", "qnn")
FAMILIES = ("torch", "onnxruntime", "openvino")
ARCHITECTURE = re.compile(r"\b(?:sm_\d+[a-z]?|gfx[0-9a-f]{3,}|xe[\w-]*|x86_64|aarch64|arm64)\b")
"""Names in a ``-m`` expression that look like an architecture: pytest 9 with ``--strict-markers``
refuses a name there that nobody registered, and which ones exist depends on the runner."""

owned_key = pytest.StashKey[bool]()
"""Present when ``--update-baselines`` is ours, so that it implies ``--portability``."""

# --- options -----------------------------------------------------------------------------------


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    """Make our hooks known."""
    from pytest_portability import hookspec

    pluginmanager.add_hookspecs(hookspec)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options and their ini twins, all but ``--update-baselines``."""
    group = parser.getgroup("portability", "performance portability of models")
    group.addoption(
        "--portability",
        action="store_true",
        help="build, measure and judge the tests that ask for the portability fixture",
    )
    group.addoption(
        "--portability-accept",
        metavar="REASON",
        default="",
        help="with --update-baselines: also write records that are worse, and why",
    )
    for declared in settings.DECLARED.values():
        if declared.option:
            group.addoption(
                declared.option,
                metavar=declared.metavar,
                action="append" if declared.many else "store",
                default=None,
                help=f"{declared.help} (ini: {declared.ini})",
            )
        if declared.name != "known":
            kind: Any = "linelist" if declared.many else "string"
            parser.addini(declared.ini, declared.help, type=kind, default=None)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(
    early_config: pytest.Config, parser: pytest.Parser, args: list[str]
) -> Generator[None, object, object]:
    """Register ``--update-baselines`` once every initial conftest had the chance to own the name.

    Many projects define that very flag in a conftest; registering it first would break each of
    their runs, even those that never use it.
    """
    result = yield
    if {"-h", "--help", UPDATE}.intersection(args):
        try:
            parser.getgroup("portability").addoption(
                UPDATE,
                action="store_true",
                default=False,
                help="write what was measured as the new records; implies --portability",
            )
        except ValueError:
            return result  # the project's own flag: honoured when --portability is given
        early_config.stash[owned_key] = True
    return result


def _updating(config: pytest.Config) -> bool:
    return bool(config.getoption("update_baselines", default=False))


def _enabled(config: pytest.Config) -> bool:
    return bool(config.getoption("portability")) or (
        owned_key in config.stash and _updating(config)
    )


# --- set-up ------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    """Register markers; set up the run if it measures."""
    config.addinivalue_line(
        "markers",
        "portability(batches, precisions, targets, runtimes, tolerance, parity, seconds, known): "
        "how the portability fixture builds and judges the model of this test",
    )
    expression = str(config.getoption("markexpr", default="") or "")
    for name in sorted({*VENDORS, *PLATFORMS, *FAMILIES, *ARCHITECTURE.findall(expression)}):
        _register(config, name)
    if not _enabled(config):
        return
    try:
        hooks = RunHooks(config)
    except PortabilityError as exc:
        raise pytest.UsageError(str(exc)) from exc
    config.stash[run_key] = hooks
    config.pluginmanager.register(hooks, "portability-run")


def _register(config: pytest.Config, name: str) -> None:
    line = f"{name}: portability items of this vendor, platform, architecture or runtime"
    if line not in config.getini("markers"):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize a test that asks for the fixture over what it is to be built for."""
    hooks = metafunc.config.stash.get(run_key, None)
    if "portability" in metafunc.fixturenames and hooks is not None:
        hooks.parametrize(metafunc)


@pytest.fixture
def portability(request: pytest.FixtureRequest) -> Portability:
    """Build, measure and judge the model of this test: ``portability.check(model, inputs)``.

    Parametrized over the chosen targets × runtimes × precisions × batches under
    ``--portability``; without the flag the test is skipped.
    """
    hooks = request.config.stash.get(run_key, None)
    if hooks is None:
        pytest.skip("needs --portability")
    from pytest_portability.fixture import Portability

    return Portability(hooks, request.node, request.param)


# --- the run -----------------------------------------------------------------------------------


class RunHooks:
    """The hooks of a run that measures; one on every xdist worker, one on the controller."""

    def __init__(self, config: pytest.Config) -> None:
        from pytest_portability import report, run, servers

        self._config = config
        self._worker: str = getattr(config, "workerinput", {}).get("workerid", "")
        root = config.rootpath / self.setting("baselines").value
        updates = run.Updates(directory=root, accept=config.getoption("portability_accept"))
        self._updates = updates if _updating(config) else None
        self._servers = servers.Servers()
        self._baselines = root
        self._claims = run.Claims()
        census = run.census(root)
        self.report = report.Report(recorded=census.targets)
        for arch in sorted(census.architectures):
            _register(config, arch)

    # -- settings and discovery

    def setting(self, name: str, marker: Mapping[str, Any] | None = None) -> Setting[Any]:
        """A setting from default, ini file, command line and marker."""
        declared = settings.DECLARED[name]
        option = None
        if declared.option:
            option = self._config.getoption(declared.option.lstrip("-").replace("-", "_"))
        ini = self._config.getini(declared.ini) if name != "known" else None
        return settings.resolve(name, ini=ini, option=option, marker=marker)

    @cached_property
    def registered(self) -> Sequence[Runtime]:
        """Runtimes that conftests and plugins add."""
        from pytest_portability.runtimes import Runtime

        found = [
            r
            for many in self._config.hook.pytest_portability_runtimes(config=self._config)
            for r in many
        ]
        for runtime in found:
            if not isinstance(runtime, Runtime):
                msg = f"pytest_portability_runtimes gave {runtime!r}, which lacks what Runtime has"
                raise UsageError(msg)
        return found

    @cached_property
    def discovery(self) -> Discovery:
        """What hardware is here; asked once, in child processes."""
        from pytest_portability import run, targets

        found = run.discover(self._servers, self.registered, self._conftests)
        if not self._worker:
            targets.require(found.targets, found.absents, self.setting("require").value)
        self.report.targets, self.report.absents = found.targets, found.absents
        return found

    @property
    def _conftests(self) -> list[ModuleType]:
        plugins = self._config.pluginmanager.get_plugins()
        return [
            plugin
            for plugin in plugins
            if isinstance(plugin, ModuleType)
            and Path(getattr(plugin, "__file__", None) or "").name == "conftest.py"
        ]

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give a test its items."""
        from pytest_portability import run

        where = f" of {metafunc.definition.nodeid}"
        marker = _marker(metafunc.definition, where)
        chosen = run.items(
            self.discovery,
            self.registered,
            patterns=self.setting("targets", marker).value,
            names=self.setting("runtimes", marker).value,
            precisions=self.setting("precisions", marker).value,
            batches=self.setting("batches", marker).value,
        )
        params = [self._param(item) for item in chosen]
        metafunc.parametrize("portability", params, indirect=True)

    def _param(self, item: Item | Absentee) -> Any:
        from pytest_portability.run import Absentee

        if isinstance(item, Absentee):
            return pytest.param(item, id=item.id, marks=pytest.mark.skip(reason=item.reason))
        names = item.markers
        for name in names:
            _register(self._config, name)
        return pytest.param(item, id=item.id, marks=[getattr(pytest.mark, n) for n in names])

    # -- one item

    def ask(self, node: pytest.Item, item: Item, **given: Any) -> Ask:
        """Everything a test asks for, with settings and defaults filled in."""
        from pytest_portability.pipeline import Ask

        marker = _marker(node, f" of {node.nodeid}")
        options = given["options"] or {}
        runtime = item.runtime
        name = given["name"] or node.originalname.removeprefix("test_")  # type: ignore[attr-defined]
        environment: dict[str, str] = {}
        self._config.hook.pytest_portability_environment(
            config=self._config, environment=environment
        )
        return Ask(
            name=name,
            model=self._located(node, given["model"]),
            inputs=given["inputs"],
            metric=given["metric"],
            reference=given["reference"],
            config={str(k): str(v) for k, v in (given["config"] or {}).items()},
            profile=given["profile"] or {},
            options={**options.get(runtime.family, {}), **options.get(runtime.name, {})},
            items=given["items"] or item.batch,
            unit=given["unit"],
            tolerance=self._on_target("tolerance", marker, item),
            parity=self._on_target("parity", marker, item),
            seconds=self.setting("seconds", marker).value,
            repeats=self.setting("repeats").value,
            time_limit_s=self.setting("time_limit").value,
            environment=environment,
            by_value=[node.module, *self._conftests],  # type: ignore[attr-defined]
        )

    def _on_target(self, name: str, marker: Mapping[str, Any], item: Item) -> Setting[Any]:
        return settings.on_target(self.setting(name, marker), item.target.id, self.setting(name))

    def _located(self, node: pytest.Item, model: Any) -> Any:
        if not isinstance(model, (str, Path)):
            return model
        beside = node.path.parent / model
        return beside if beside.exists() else self._config.rootpath / model

    @cached_property
    def _pipeline(self) -> Any:
        from pytest_portability import pipeline, run

        return pipeline.Pipeline(
            self._servers,
            self._baselines,
            recording=self._updates is not None,
            commit=run.commit_of(self._config.rootpath),
            progress=self._progress,
        )

    def check(self, node: pytest.Item, item: Item, ask: Ask) -> Result:
        """Run the flow, keep the entry for the report, and give the item its outcome."""
        from pytest_portability.report import Entry

        __tracebackhide__ = True
        self._claims.claim(ask.key(item), node.nodeid)
        result: Result = self._pipeline.check(item, ask)
        added = self._config.hook.pytest_portability_causes(
            config=self._config, comparison=result.comparison
        )
        entry = Entry(
            nodeid=node.nodeid,
            key=result.key,
            comparison=result.comparison,
            causes=(*(cause for causes in added for cause in causes), *result.causes),
            measurement=result.measurement,
            worker=self._worker,
        )
        node.stash.setdefault(entries_key, []).append(entry)
        self._judge(node, item, entry, result)
        return result

    def _judge(self, node: pytest.Item, item: Item, entry: Entry, result: Result) -> None:
        from pytest_portability import compare
        from pytest_portability.compare import Verdict
        from pytest_portability.report import terminal

        __tracebackhide__ = True
        comparison = entry.comparison
        known = self.setting("known", _marker(node, f" of {node.nodeid}"))
        expected = settings.on_target(
            known, item.target.id, settings.Setting(None, "default")
        ).value
        text = terminal.failure(entry, log=result.log)
        if comparison.verdict is Verdict.SKIPPED:
            pytest.skip(comparison.reason)
        if isinstance(expected, settings.Known):
            if comparison.verdict is expected.verdict:
                pytest.xfail(f"known {expected.verdict.value}: {expected.reason}")
            pytest.fail(
                f"known={{...}} on the marker expects {expected.verdict.value} here "
                f"({expected.reason}), and this is {text}",
                pytrace=False,
            )
        if self._updates is not None and self._updates.allows(comparison):
            return
        outcome = compare.outcome(
            comparison.verdict,
            missing=self.setting("missing").value,
            inconclusive=self.setting("inconclusive").value,
        )
        if outcome == "fail":
            pytest.fail(text, pytrace=False)
        if outcome == "warn":
            warnings.warn(PortabilityWarning(text), stacklevel=2)

    def _progress(self, text: str) -> None:
        """Show what is being measured after the line on a terminal; a log stays quiet."""
        reporter: Any = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or self._worker or not reporter.isatty:
            return
        writer = self._config.get_terminal_writer()
        room = writer.fullwidth - writer.width_of_current_line - 1
        # Save the cursor, clear to the end of the line, write, restore: pytest's own line stays.
        shown = f" {text}"[: max(room, 0)]
        writer._file.write(f"\x1b7\x1b[K{shown}\x1b8")  # noqa: SLF001 - keeps the writer's column
        writer.flush()

    # -- the end of an item, on the worker and on the controller

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach what was measured to the report, as text that xdist can carry."""
        report = yield
        entries = item.stash.get(entries_key, None)
        if call.when == "call" and entries:
            packed = base64.b64encode(pickle.dumps(entries)).decode()
            report.portability_entries = packed  # type: ignore[attr-defined] # xdist carries it
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Collect entries and write records; on the controller only, so that each is written once."""
        packed = getattr(report, "portability_entries", "")
        if self._worker or not packed:
            return
        for entry in pickle.loads(base64.b64decode(packed)):
            try:
                self._claims.claim(entry.key, entry.nodeid)
            except UsageError as exc:
                report.outcome, report.longrepr = "failed", str(exc)
                continue
            self.report.entries.append(self._updates.apply(entry) if self._updates else entry)

    # -- the whole run

    def pytest_report_collectionfinish(self, config: pytest.Config) -> str | None:
        """Say what is here, once it is known."""
        from pytest_portability.report import terminal

        return terminal.header(self.report) if "discovery" in self.__dict__ else None

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write the reports; a run that measured nothing is never green."""
        if self._worker:
            config: Any = self._config
            config.workeroutput["portability"] = self._packed_discovery()
            return
        if self._config.getoption("collectonly"):
            return
        self._config.hook.pytest_portability_report(config=self._config, report=self.report)
        for kind, path in self.setting("report").value:
            self._write(kind, self._config.rootpath / path)
        if session.exitstatus == pytest.ExitCode.OK and not self.report.measured:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _packed_discovery(self) -> str:
        found = (self.report.targets, self.report.absents)
        return base64.b64encode(pickle.dumps(found)).decode()

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn from a finished xdist worker what hardware it has."""
        packed = getattr(node, "workeroutput", {}).get("portability", "")
        if packed:
            self.report.found(*pickle.loads(base64.b64decode(packed)))

    def _write(self, kind: str, path: Path) -> None:
        from pytest_portability.report import json

        {"json": json.write}[kind](self.report, path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        from pytest_portability.report import terminal

        if self._config.getoption("collectonly"):
            return
        terminalreporter.section("portability")
        for line in terminal.lines(self.report):
            terminalreporter.write_line(line)
        if not self.report.measured:
            terminalreporter.write_line(
                "portability: nothing was measured, so this run is not green; "
                "see the reasons of the skips with -rs",
                red=True,
            )

    def pytest_unconfigure(self) -> None:
        """End the processes the run started."""
        self._servers.close()


run_key = pytest.StashKey[RunHooks]()
entries_key = pytest.StashKey["list[Entry]"]()


def _marker(node: Any, where: str) -> Mapping[str, Any]:
    """The portability marker's arguments, the closest marker winning argument by argument."""
    merged: dict[str, Any] = {}
    for marker in node.iter_markers("portability"):
        settings.check_marker(marker.args, marker.kwargs, where)
        merged = {**marker.kwargs, **merged}
    return merged
