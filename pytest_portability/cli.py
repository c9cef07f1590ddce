"""The command line beside pytest: ``pytest-portability targets``, and stored records."""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_portability import report, run
from pytest_portability.compare import Allowed
from pytest_portability.errors import PortabilityError, UsageError, error_text
from pytest_portability.report import document, markdown
from pytest_portability.report import versions as shown
from pytest_portability.report.terminal import harmless
from pytest_portability.servers import Servers
from pytest_portability.versions.delta import delta
from pytest_portability.versions.history import history
from pytest_portability.versions.matrix import matrix
from pytest_portability.versions.merging import merge
from pytest_portability.versions.planning import plan
from pytest_portability.versions.source import Sources


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        Exit code: 0 done, 1 what was asked for is not so, 2 wrong usage.
    """
    options = parser().parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # Windows redirects in a code page without arrows
            stream.reconfigure(errors="replace")
    code = 1  # of a command whose reader left before it was done
    try:
        code = int(options.command(options))
        sys.stdout.flush()
    except PortabilityError as exc:
        print(harmless(f"pytest-portability: {exc}"), file=sys.stderr)
        return 2
    except BrokenPipeError:  # as of ``| head``: who reads has seen enough
        _discard_output()
    except OSError as exc:
        print(harmless(f"pytest-portability: {exc}"), file=sys.stderr)
        _discard_output()
        return 2
    return code


def _discard_output() -> None:
    """Have what is left of it flushed to nowhere at the end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parser() -> argparse.ArgumentParser:
    """The commands and their options."""
    made = argparse.ArgumentParser(
        prog="pytest-portability", description="Performance portability of models, beside pytest."
    )
    commands = made.add_subparsers(required=True, metavar="COMMAND")
    here = commands.add_parser("targets", help="what hardware is here, what is not, and why")
    here.add_argument("--json", action="store_true", help="print JSON")
    here.set_defaults(command=_targets)
    _add_stored(commands)
    return made


def _add_stored(commands: Any) -> None:
    """The commands that read records and measure nothing."""
    diff = commands.add_parser("diff", help="two versions of the records, or two targets")
    diff.add_argument("old", help="commit, directory, target, WHERE:TARGET, or OLD..NEW")
    diff.add_argument("new", nargs="?", default="", help="the same")
    text = "of a loss; 0.05 is 5 %%, the default"
    diff.add_argument("--tolerance", type=float, default=Allowed().loss, help=text)
    as_markdown = diff.add_mutually_exclusive_group()
    as_markdown.add_argument("--markdown", action="store_true", help="print Markdown")
    as_markdown.add_argument("--json", action="store_true", help="print JSON")
    diff.set_defaults(command=_diff)
    matrix_ = commands.add_parser("show", help="model × target × build, and how portable they are")
    matrix_.add_argument("version", nargs="?", default="", help="commit, directory or target")
    matrix_.set_defaults(command=_show)
    past = commands.add_parser("history", help="every row through git")
    past.add_argument("--model", default="*", help="pattern of models")
    past.add_argument("--target", default="*", help="pattern of targets")
    past.set_defaults(command=_history)
    way = commands.add_parser("plan", help="the way to a target that a model never ran on")
    way.add_argument("--model", required=True, help="its name in the records")
    way.add_argument("--target", required=True, help="such as amd-mi300x; it need not be here")
    way.set_defaults(command=_plan)
    runs = commands.add_parser("report", help="JSON reports of several runners as one")
    runs.add_argument("files", nargs="*", type=Path, metavar="FILE", help="a runner's JSON report")
    runs.add_argument("--html", type=Path, metavar="PATH", help="write HTML, print no Markdown")
    runs.add_argument("--schema", action="store_true", help="print the JSON report's own schema")
    runs.set_defaults(command=_report)
    join = commands.add_parser("merge", help="records of several runners into one directory")
    join.add_argument("sources", nargs="+", type=Path, metavar="DIR", help="a runner's records")
    join.add_argument("--newest", action="store_true", help="of rows that differ the later one")
    join.add_argument("--mixed", action="store_true", help="also several commits or weights")
    join.set_defaults(command=_merge)
    for command in (diff, matrix_, past, way, join):
        text = "the directory of the records (default: baselines)"
        command.add_argument("--baselines", type=Path, default=Path("baselines"), help=text)
    for command in (matrix_, past, way):
        command.add_argument("--json", action="store_true", help="print JSON")


def _say(options: argparse.Namespace, value: object, lines: Sequence[str]) -> None:
    print(shown.as_json(value) if options.json else "\n".join(lines))


def _diff(options: argparse.Namespace) -> int:
    if not 0 <= options.tolerance < 1:
        msg = f"--tolerance is {options.tolerance:g}; expected a fraction from 0 to below 1"
        raise UsageError(msg)
    pair = Sources(options.baselines).pair(options.old, options.new)
    found = delta(*pair, Allowed(loss=options.tolerance))
    if not found.rows and not found.problems:
        msg = (
            f"nothing to compare: {found.old} has {len(found.only_old)} records and {found.new} "
            f"{len(found.only_new)}, none of the same build"
        )
        raise UsageError(msg)
    render = shown.delta_markdown if options.markdown else shown.delta_text
    _say(options, found, render(found))
    return int(found.failed)


def _show(options: argparse.Namespace) -> int:
    found = matrix(Sources(options.baselines).version(options.version or str(options.baselines)))
    _say(options, found, shown.matrix_text(found))
    return 0 if found.cells and not found.problems else 1


def _history(options: argparse.Namespace) -> int:
    found = history(options.baselines, options.model, options.target)
    _say(options, found, shown.history_text(found))
    return int(not found.lines or bool(found.problems))


def _plan(options: argparse.Namespace) -> int:
    found = plan(options.baselines, options.model, options.target)
    _say(options, found, shown.plan_text(found))
    return int(bool(found.problems))


def _merge(options: argparse.Namespace) -> int:
    done = merge(options.sources, options.baselines, newest=options.newest, mixed=options.mixed)
    for reason in done.refused:
        print(harmless(f"refused: {reason}"), file=sys.stderr)
    for path in done.written:
        print(f"written: {path}")
    total = f"{len(done.written)} files written, {done.unchanged} unchanged"
    print("nothing was written" if done.refused else total)
    return int(bool(done.refused))


def _report(options: argparse.Namespace) -> int:
    if options.schema:
        print(document.schema(), end="")
        return 0
    if not options.files:
        msg = "report of which FILE? Expected what --portability-report=json:PATH wrote"
        raise UsageError(msg)
    if options.html is not None:
        report.ready("html", options.html)
    found = document.join([document.read(path) for path in options.files])
    if options.html is None:
        print(markdown.render(found), end="")
    else:
        if any(path.resolve() == options.html.resolve() for path in options.files):
            msg = f"--html={options.html} is one of the reports to read: give another path"
            raise UsageError(msg)
        _write_html(found, options.html)
    return int(found.failed)


def _write_html(found: document.Document, path: Path) -> None:
    from pytest_portability.report import html  # noqa: PLC0415 - what draws it is an extra

    try:
        page = html.render(found)
    except Exception as exc:
        msg = f"{path}: the page cannot be drawn ({error_text(exc)})"
        raise UsageError(msg) from exc
    try:
        report.save(page, path)
    except OSError as exc:
        msg = f"{path}: cannot be written ({exc.strerror or exc})"
        raise UsageError(msg) from exc
    print(harmless(f"written: {path} ({found.summary})"))


def _targets(options: argparse.Namespace) -> int:
    with Servers() as servers:
        found = run.discover(servers)
    if options.json:
        print(json.dumps(_plain(found), indent=1))
    else:
        print("\n".join(_listing(found)))
    return 0 if found.targets else 1


def _plain(found: run.Discovery) -> dict[str, object]:
    targets = [
        {
            "id": t.id,
            **{k: v for k, v in asdict(t).items() if k not in {"index", "twins"}},
            "devices": 1 + len(t.twins),
        }
        for t in found.targets
    ]
    return {"targets": targets, "absent": [asdict(a) for a in found.absents]}


def _listing(found: run.Discovery) -> list[str]:
    lines = []
    for target in found.targets:
        memory = f", {target.memory_bytes / 2**30:.0f} GiB" if target.memory_bytes else ""
        several = f"; {1 + len(target.twins)} of them" if target.twins else ""
        what = f"{target.vendor} {target.arch}, {target.platform}{memory}{several}"
        lines.append(f"{target.id}  ({what})")
        lines += [
            f"  {name}" + (f" on {h}" if h else "") for name, h in sorted(target.handles.items())
        ]
        lines += [f"  {name}: {value}" for name, value in sorted(target.facts.items())]
    if not found.targets:
        lines.append("no target: none of the platform libraries found a device")
    if found.absents:
        lines.append("not here:")
        lines += [f"  {absent.name}: {absent.reason}" for absent in found.absents]
    if any(absent.reason.startswith("not installed") for absent in found.absents):
        lines.append(
            "pytest-portability never installs a runtime; install the build for your device"
        )
    return lines
