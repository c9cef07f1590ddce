"""The hooks of a run that measures: what is collected, measured, judged, reported and written."""

# ruff: noqa: PLC0415 - every pytest run imports this module, and only a measuring one NumPy

from __future__ import annotations

import os
import warnings
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from pytest_portability import selection, settings
from pytest_portability.errors import PortabilityWarning, UsageError, error_text, message
from pytest_portability.plugin import checks, flag
from pytest_portability.plugin.checks import Checks
from pytest_portability.plugin.fleet import Fleet, refuse_other_version

if TYPE_CHECKING:
    from pytest_portability.compare import Comparison
    from pytest_portability.pipeline import Item, Pipeline
    from pytest_portability.report import Entry
    from pytest_portability.run import Absentee, Discovery
    from pytest_portability.runtimes import Runtime
    from pytest_portability.servers import Servers
    from pytest_portability.settings import Setting

deselected_key = pytest.StashKey[bool]()
"""Present when a test of ours was left out: True if deselected, False if not even collected."""


class RunHooks:
    """The hooks of a run that measures; one on every xdist worker, one on the controller."""

    def __init__(self, config: pytest.Config) -> None:
        from pytest_portability import __version__, ledger, report, run
        from pytest_portability.report import terminal

        self._config = config
        refuse_other_version(config, __version__)
        self._worker: str = getattr(config, "workerinput", {}).get("workerid", "")
        self.fleet = Fleet(__version__, config.getoption("dist", "no"))
        for name in settings.DECLARED:
            self.setting(name)  # a value that is not valid ends the run before it begins
        for kind, path in self._reports if not self._worker else ():
            report.ready(kind, path)  # not after an hour of measuring
        self._baselines = config.rootpath / self.setting("baselines").value
        accept = config.getoption("portability_accept") or ""
        updates = ledger.Updates(directory=self._baselines, accept=accept)
        self.updates = updates if config.getoption("portability_update", default=False) else None
        self._against = run.against(self._baselines, self.setting("against"), self.updates)
        self.claims = ledger.Claims()
        self._late: list[str] = []  # checks of items that had ended, one message each
        self._over = 0  # items that ended
        self._running: dict[
            tuple[str, str], Entry
        ] = {}  # what is said of an item whose worker crashes
        self._paths: dict[str, Path] = {}
        self._places: dict[str, tuple[Path, int]] = {}  # of items: file, and line from 1
        self._headed = self._several = self._told = False
        census = run.census(self._baselines)
        self.report = report.Report(recorded=census.keys, problems=[*census.unreadable])
        self._ledger = ledger.Ledger(self.report, self.updates)
        shown = config.pluginmanager.hasplugin("terminalreporter")
        self._progress = terminal.Progress(config.get_terminal_writer() if shown else None)
        for arch in sorted(census.architectures):
            selection.register(config, arch)

    # -- settings and discovery

    def setting(
        self, name: str, marker: Mapping[str, Any] | None = None, where: str = ""
    ) -> Setting[Any]:
        """A setting from default, ini file, command line and marker."""
        declared = settings.DECLARED[name]
        ini = self._config.getini(declared.ini) if name != "known" else None
        given = self._given(declared)
        return settings.resolve(name, ini=ini, option=given, marker=marker, where=where)

    @property
    def _reports(self) -> Sequence[tuple[str, Path]]:
        """Kind and path of each wanted report."""
        wanted = self.setting("report")
        typed = wanted.source == "command line"  # as pytest takes paths: an ini file's from its own
        here = self._config.invocation_params.dir if typed else self.root
        return [(kind, here / path) for kind, path in wanted.value]

    def _given(self, declared: settings.Declared) -> Any:
        name = declared.option.lstrip("-").replace("-", "_")
        return self._config.getoption(name) if name else None

    @cached_property
    def _servers(self) -> Servers:
        from pytest_portability import servers

        return servers.Servers()

    @cached_property
    def registered(self) -> Sequence[Runtime]:
        """Runtimes that conftests and plugins add."""
        from pytest_portability import run

        hook = self._config.hook.pytest_portability_runtimes
        return run.registered_runtimes(hook(config=self._config))

    @cached_property
    def discovery(self) -> Discovery:
        """What hardware is here; asked once, in child processes."""
        from pytest_portability import run

        found = run.discover(self._servers, self.registered, self.modules)
        self.report.found(found.targets, found.absents)
        return found

    @property
    def modules(self) -> list[ModuleType]:
        """The conftests, which children cannot import."""
        return selection.conftests(self._config.pluginmanager.get_plugins())

    def parametrize(self, metafunc: pytest.Metafunc) -> None:
        """Give a test its items."""
        from pytest_portability import run

        where = f" of {metafunc.definition.nodeid}"
        marker = selection.marker(metafunc.definition)
        chosen = {
            declared.name: self.setting(declared.name, marker, where).value
            for declared in settings.DECLARED.values()
            if declared.marker
        }
        found = run.items(
            self.discovery,
            self.registered,
            patterns=chosen["targets"],
            names=chosen["runtimes"],
            precisions=chosen["precisions"],
            batches=chosen["batches"],
        )
        params = [self._param(item) for item in found]
        metafunc.parametrize("portability", params, indirect=True)

    def _param(self, item: Item | Absentee) -> Any:
        from pytest_portability.run import Absentee

        if isinstance(item, Absentee):
            return pytest.param(item, id=item.id, marks=pytest.mark.skip(reason=item.reason))
        for name in item.markers:
            selection.register(self._config, name)
        marks = [getattr(pytest.mark, name) for name in item.markers]
        return pytest.param(item, id=item.id, marks=marks)

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Refuse to go on without a required target, or with a flag that two of us want."""
        result = yield
        parser = self._config.stash.get(flag.update_key, None)
        if parser is not None and flag.takes(parser, flag.UPDATE):
            raise pytest.UsageError(flag.TOO_LATE)
        # Several workers may be several machines: what they have together is known at the end.
        here = "discovery" in self.__dict__ and not self._worker
        if here and (lacks := self.report.lacks(self.setting("require").value)):
            raise pytest.UsageError(lacks)
        return result

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that was left out, or could not be read, may hold tests of ours."""
        if not report.passed:
            self._config.stash.setdefault(deselected_key, False)

    # -- one item

    def begin(self, request: pytest.FixtureRequest) -> None:
        """Start an item, or start it again."""
        node = request.node
        checks.begin(request)
        self._paths[node.nodeid] = node.path
        self.claims.forget(node.nodeid)
        self._progress.begin()

    @property
    def root(self) -> Path:
        """Where paths of models start that are not beside the test."""
        return self._config.rootpath

    @cached_property
    def pipeline(self) -> Pipeline:
        """The flow, made when the first item is measured."""
        from pytest_portability import pipeline, run

        return pipeline.Pipeline(
            self._servers,
            self._baselines,
            against=self._against,
            recording=self.updates is not None,
            commit=run.commit_of(self.root),
            progress=self.progress,
        )

    def progress(self, text: str) -> None:
        """Show what is going on, on a terminal."""
        self._progress.show(text)

    def environment(self, node: pytest.Item) -> dict[str, str]:
        """Variables that hooks want; a conftest speaks for the tests below it only."""
        found: dict[str, str] = {}
        node.ihook.pytest_portability_environment(config=self._config, environment=found)
        return found

    def causes(self, node: pytest.Item, comparison: Comparison) -> list[Any]:
        """What hooks say about a comparison."""
        hook: Any = node.ihook.pytest_portability_causes
        return list(hook(config=self._config, comparison=comparison))

    def again(self, nodeid: str) -> tuple[str, ...] | None:
        """Arguments that measure this item again, from where pytest was called."""
        if self._against is not None:
            return None
        given = [(d, self._given(d)) for d in settings.DECLARED.values()]
        return selection.again(self._config, given, nodeid, self._paths[nodeid])

    def keep(self, node: pytest.Item, entry: Entry) -> None:
        """Have an entry travel with the item's next report."""
        from pytest_portability.report import ci

        if (found := checks.of(node)) is not None:
            found.begun = True
            found.entries.append(replace(entry, worker=self._worker))
            node.user_properties += ci.properties(entry)

    def benchmarked(self, node: pytest.Item, entry: Entry) -> None:
        """Have pytest-benchmark show the item's first check, unless the test itself uses it."""
        from pytest_portability import benchmark_bridge

        found = checks.of(node) or Checks()
        request, found.request = found.request, None
        off = self._config.getoption("benchmark_skip", True)  # also where it is not installed
        if request is None or off or entry.measurement is None:
            return
        if "benchmark" in request.fixturenames:
            return
        own = node.get_closest_marker("benchmark")
        timer = benchmark_bridge.replayed(benchmark_bridge.times(entry.measurement))
        asked = {**(own.kwargs if own else {}), "timer": timer}
        node.add_marker(pytest.mark.benchmark(**asked), append=False)
        benchmark_bridge.show(request.getfixturevalue("benchmark"), entry)

    def checking(self, node: pytest.Item) -> AbstractContextManager[None]:
        """Know that a check of an item goes on.

        Raises:
            UsageError: the item has ended, so that nothing could be said of it.
        """
        if (found := checks.of(node)) is None:
            msg = f"{node.nodeid} called check after it had ended: it has to wait for its threads"
            self._late.append(msg)
            raise UsageError(msg)
        return found.going_on()

    def end(self, node: pytest.Item, outcome: str, text: str) -> None:
        """Give the test its outcome: ``pass``, ``warn``, ``fail``, ``skip`` or ``xfail``."""
        __tracebackhide__ = True
        if outcome == "warn":
            warnings.warn(PortabilityWarning(text), stacklevel=4)  # the line of the test
        elif outcome == "fail":
            failure = pytest.fail.Exception(text, pytrace=False)
            if (found := checks.of(node)) is not None:
                found.failure = found.failure or failure
            raise failure
        elif outcome == "skip":
            pytest.skip(text)
        elif outcome == "xfail":
            pytest.xfail(text)

    # -- the end of an item, on the worker and on the controller

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Attach what was measured to the report, as text that xdist can carry."""
        from pytest_portability import ledger

        report = yield
        asked = ledger.asked(item)
        found = checks.of(item) or Checks()
        entries, left = list(found.entries), call.when != "setup" and found.unfinished()
        if left and report.passed:
            report.outcome, report.longrepr = "failed", ledger.UNFINISHED
        why, ours = call.excinfo, found.failure
        skipped = report.skipped and not hasattr(report, "wasxfail")
        if ours is not None and (report.passed or skipped):
            vars(report).pop("wasxfail", None)
            report.outcome, report.longrepr = "failed", f"check failed and the test went on: {ours}"
        found.failure = None  # said once
        if self._worker and not self._told:
            # Now, as a machine may go away before it ends.
            report.portability_here = ledger.packed(self._here)  # type: ignore[attr-defined] # as below
            self._told = True
        if self._worker and asked is not None and call.when == "setup" and report.passed:
            lost = ledger.unmeasured(
                item.nodeid, selection.name(item), asked, ledger.CRASHED, skipped=False
            )
            report.portability_lost = ledger.packed(lost)  # type: ignore[attr-defined] # as below
        if not found.begun and asked is not None and (why or call.when == "call"):
            nothing = ledger.UNFINISHED if left else ledger.UNCHECKED
            reason = message(why.value) if why else str(ours or nothing)
            if why is None and ours is None:
                report.outcome, report.longrepr = "failed", reason
            name = selection.name(item)
            entry = ledger.unmeasured(item.nodeid, name, asked, reason, skipped=skipped)
            entries = [replace(entry, worker=self._worker)]
        elif self.updates and (left or (why and checks.broke(why.value, ours))):
            entries = [self.updates.refuse(entry) for entry in entries]
        elif entries and report.skipped and isinstance(report.longrepr, tuple):
            # pytest would name the line in this file, and fold items of different tests into one.
            path, line, _ = item.reportinfo()
            report.longrepr = (str(path), (line or 0) + 1, report.longrepr[2])
        # What a fixture measured waits for the test, whose failure may forbid to write it.
        if entries and not (call.when == "setup" and report.passed):
            report.portability_entries = ledger.packed(entries)  # type: ignore[attr-defined] # xdist's way
            found.entries.clear()
        if call.when == "teardown":
            checks.end(item)
        return report

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_logreport(
        self, report: pytest.TestReport
    ) -> Generator[None, object, object]:
        """Collect entries and write records, on the controller: each is written once.

        Before anybody counts the report, because what cannot be written fails its item.
        """
        if not self._worker:
            self._over += report.when == "teardown"
            self._take(report)
        return (yield)

    def _take(self, report: pytest.TestReport) -> None:
        from pytest_portability import ledger

        who = nodeid, worker = (report.nodeid, getattr(report, "worker_id", ""))
        path, line, _ = report.location
        # The first says it: of a worker that crashed xdist reports no line.
        self._places.setdefault(nodeid, (self.root / path, (line or 0) + 1))
        if report.when == "setup":
            for before in self.fleet.begins(nodeid, worker):
                self._ledger.forget(nodeid, before)  # pytest-rerunfailures runs it once more
        if here := ledger.unpacked(getattr(report, "portability_here", "")):
            self._learn(here, worker)
        if lost := ledger.unpacked(getattr(report, "portability_lost", "")):
            self._running[who] = replace(lost, worker=who[1])
        elif report.when == "call":
            self._running.pop(who, None)
        # Taken off: pytest keeps every report to the end.
        entries = ledger.unpacked(vars(report).pop("portability_entries", "")) or []
        if self.updates and report.failed and "[XPASS(strict)]" in str(report.longrepr):
            entries = [self.updates.refuse(entry) for entry in entries]
        entries = ledger.with_outcome(entries, report)
        elsewhere = self.fleet.is_elsewhere(worker) and self._against is None
        held = self._baselines if elsewhere else None
        if problems := [text for entry in entries if (text := self._ledger.take(entry, held))]:
            if report.failed:
                report.sections.append(("portability", "\n".join(problems)))
            else:
                vars(report).pop("wasxfail", None)
                report.outcome, report.longrepr = "failed", "\n".join(problems)

    @property
    def _here(self) -> tuple[Any, ...]:
        """What a worker found, whether it left tests of ours out, and what came too late."""
        left_out = self._config.stash.get(deselected_key, None)
        return self.report.targets, self.report.absents, left_out, tuple(self._late)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Count what there is to measure."""
        from pytest_portability import ledger
        from pytest_portability.run import Absentee

        asked = [ledger.asked(item) for item in session.items]
        here = [item for item in asked if item is not None and not isinstance(item, Absentee)]
        self._progress.expect(len(here))

    def pytest_report_collectionfinish(self) -> str | None:
        """Say what is here, once it is known."""
        from pytest_portability.report import terminal

        self._headed = "discovery" in self.__dict__
        return terminal.header(self.report) if self._headed else None

    @pytest.hookimpl(optionalhook=True)
    def pytest_handlecrashitem(self, crashitem: str, report: Any) -> None:
        """Put the item of a worker that crashed into the report: none is missing there."""
        from pytest_portability import ledger

        worker = report.node.gateway.id
        self.fleet.begins(crashitem, worker)
        lost = self._running.pop((crashitem, worker), None) or ledger.crashed(crashitem)
        # xdist may name the item before the one that ran: what came of that is here.
        if all((e.nodeid, e.worker) != (crashitem, worker) for e in self.report.entries):
            self._ledger.take(replace(lost, worker=worker))

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Learn from a finished xdist worker what hardware it has."""
        from pytest_portability import ledger

        if found := ledger.unpacked(getattr(node, "workeroutput", {}).get("portability", "")):
            self._learn(found, node.gateway.id)

    def _learn(self, found: tuple[Any, ...], worker: str) -> None:
        """Take what ``_here`` of a worker says."""
        self._several = True
        *here, deselected, late = found
        self.report.found(*here)
        self._late += [text for text in late if text not in self._late]
        if deselected is not None:
            before = self._config.stash.get(deselected_key, False)
            self._config.stash[deselected_key] = before or deselected
            self.fleet.narrowed.add(worker)

    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> Generator[None, object, object]:
        """Write the reports, whatever others raise; a run that measured nothing is never green."""
        try:
            return (yield)
        finally:
            self._finish(session)

    def _finish(self, session: pytest.Session) -> None:
        from pytest_portability import ledger

        config: Any = self._config
        if self._worker:
            config.workeroutput["portability"] = ledger.packed(self._here)
            return
        if config.getoption("collectonly"):
            return
        if self._several and (lacks := self.report.lacks(self.setting("require").value)):
            self.report.problems.append(lacks)
        lost = self.fleet.problems
        self.report.problems += lost
        if stopped := selection.stopped(session, self._over):
            self.report.problems.append(stopped)
        self.report.problems += self._late
        self.report.deselected = config.stash.get(deselected_key, False)
        ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        short = session.shouldstop or session.shouldfail or not ended
        partial = bool(short or lost) or deselected_key in config.stash
        self.report.whole = not partial and selection.whole(config)
        self._write_reports()
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self.report.entries:
            session.exitstatus = pytest.ExitCode.OK  # xdist says it of its last worker alone
        if session.exitstatus == pytest.ExitCode.OK and self.report.complaints:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def _write_reports(self) -> None:
        from pytest_portability import report, run

        facts = run.session(run.commit_of(self.root), pytest.__version__)
        self.report.session = {**facts, **self.report.session}
        try:
            self._config.hook.pytest_portability_report(config=self._config, report=self.report)
        except Exception as exc:  # noqa: BLE001 - a conftest's mistake must not lose the report
            self.report.problems.append(f"hook pytest_portability_report raised {error_text(exc)}")
        for kind, path in self._reports:
            report.write(self.report, kind, path)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        from pytest_portability import benchmark_bridge
        from pytest_portability.report import ci, terminal

        if self._config.getoption("collectonly"):
            return
        terminalreporter.section("portability")
        if self._several and benchmark_bridge.writes(self._config.getoption):
            terminalreporter.write_line(benchmark_bridge.UNDER_XDIST)
        if not self._headed:
            terminalreporter.write_line(terminal.header(self.report))
        columns = self._config.get_terminal_writer().fullwidth
        shown = columns if terminalreporter.isatty else None  # a log has no width
        for line in terminal.lines(self.report, shown):
            terminalreporter.write_line(line)
        for complaint in self.report.complaints:
            terminalreporter.write_line(terminal.harmless(f"portability: {complaint}"), red=True)
        for line in ci.github(self.report, self._places, os.environ):
            terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        """End the processes the run started."""
        self._progress.close()
        if "_servers" in self.__dict__:
            self._servers.close()
