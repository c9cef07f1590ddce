"""The command line beside pytest: ``pytest-portability targets``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

from pytest_portability import run
from pytest_portability.errors import PortabilityError
from pytest_portability.servers import Servers


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command.

    Args:
        argv: its arguments; those of the process by default.

    Returns:
        Exit code: 0 done, 1 what was asked for is not so, 2 wrong usage.
    """
    options = _parser().parse_args(argv)
    try:
        return int(options.command(options))
    except PortabilityError as exc:
        print(f"pytest-portability: {exc}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="pytest-portability", description="Performance portability of models, beside pytest."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    here = commands.add_parser("targets", help="what hardware is here, what is not, and why")
    here.add_argument("--json", action="store_true", help="print JSON")
    here.set_defaults(command=_targets)
    return parser


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
        {"id": t.id, **{k: v for k, v in asdict(t).items() if k != "index"}} for t in found.targets
    ]
    return {"targets": targets, "absent": [asdict(a) for a in found.absents]}


def _listing(found: run.Discovery) -> list[str]:
    lines = []
    for target in found.targets:
        memory = f", {target.memory_bytes / 2**30:.0f} GiB" if target.memory_bytes else ""
        lines.append(f"{target.id}  ({target.vendor} {target.arch}, {target.platform}{memory})")
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
