"""The cases of a module, recorded and checked as a user would.

Every case is one item of one project: the good builds are recorded in a first run of pytest, the
bad ones checked in a second.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from example_runs import Run, run
from owed import OWED, Owed

from pytest_portability.kernels import Kernel

HERE = Path(__file__).parent

PROJECT = """
import os
import sys

sys.path[:0] = {paths!r}

import pytest
from {module} import CASES

WHICH = os.environ["CASE_BUILD"]


def made(case):
    build = getattr(case, WHICH)

    @pytest.mark.portability(
        runtimes=[build.runtime or case.runtime],
        precisions=[case.precision],
        batches=[case.batch],
        targets=["cpu"],
    )
    def test(portability):
        portability.check(
            build.model,
            build.inputs,
            name=case.name,
            options=build.all_options,
            metric=build.metric,
        )

    return test


globals().update({{f"test_{{case.name}}": made(case) for case in CASES}})
"""

CONFTEST = """
import sys

sys.path[:0] = {paths!r}

import {module} as cases

pytest_portability_runtimes = getattr(cases, "pytest_portability_runtimes", lambda config: [])
"""

INI = """
[pytest]
portability_seconds = {seconds}
portability_repeats = {repeats}
"""

NO_MORE: Mapping[str, str] = MappingProxyType({})

UNTIMED = ("accuracy", "memory", "precision", "signature")
"""Modules whose verdicts no speed decides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """The two runs of a module's cases."""

    recorded: Run
    checked: Run

    def item(self, name: str) -> Mapping[str, Any]:
        """What the report says of the bad build of a case."""
        (found,) = [item for item in self.checked.items if item["model"] == name]
        return found

    def verdict(self, name: str) -> str:
        """Its verdict."""
        return str(self.item(name)["verdict"])

    def cause(self, name: str) -> Mapping[str, Any]:
        """Its first cause."""
        causes = self.item(name)["causes"]
        assert causes, self.checked.output
        first: Mapping[str, Any] = causes[0]
        return first

    def hold(self, name: str, owed: Owed) -> None:
        """Hold a case against what it is owed; skip it where its fault does not show here.

        There nothing may be flagged, which is asserted first: but no case passes without a word
        whose fault was not looked for.
        """
        assert not (wrong := self.wrong(name, owed)), f"{'; '.join(wrong)}\n{self.said(name)}"
        if not owed.shows:
            pytest.skip("the fault does not show on this machine")

    def kernels(self, name: str) -> tuple[Counter[Kernel], Counter[Kernel]]:
        """Kernel → launches per inference: of the record in its file, and of the bad build.

        Without what each absorbed, which is how the model's file was written.
        """
        item = self.item(name)
        then: Counter[Kernel] = Counter()
        for use in self.recorded.record(name, item["runtime"]).path.uses:
            then[replace(use.kernel, absorbs=())] += use.launches
        now: Counter[Kernel] = Counter()
        for ran in item["record"]["path"]["uses"]:
            now[Kernel(**{**ran["kernel"], "absorbs": ()})] += ran["launches"]
        return then, now

    def wrong(self, name: str, owed: Owed) -> list[str]:
        """What is not as the case is owed, one sentence each; empty where all is right."""
        right = owed.here
        kinds = [cause["kind"] for cause in self.item(name)["causes"]]
        found = []
        if self.verdict(name) not in right.verdicts.split():
            found.append(f"verdict {self.verdict(name)}, owed {right.verdicts}")
        if not right.causes and set(kinds) - {"machine"}:
            found.append(f"blames {', '.join(kinds)}")
        if right.causes and (not kinds or kinds[0] not in right.causes.split()):
            found.append(f"first cause {' '.join(kinds[:1]) or 'none'}, owed {right.causes}")
        elif right.share and (self.cause(name)["share"] or 0.0) < right.share:
            found.append(f"share {self.cause(name)['share']}, owed {right.share}")
        # Where a cause is owed, it is the first one that has to say it.
        words = self.cause_text(name) if right.causes and kinds else self.said(name)
        if not re.search(right.said, words):
            found.append(f"does not say {right.said!r}")
        if not re.search(right.anywhere, self.said(name)):
            found.append(f"nowhere says {right.anywhere!r}")
        return found

    def cause_text(self, name: str) -> str:
        """Reason, and the first cause with its evidence."""
        cause = self.cause(name)
        return "\n".join([self.item(name)["reason"], cause["summary"], *cause["evidence"]])

    def said(self, name: str) -> str:
        """All that its report entry says in words: reason, causes with their evidence, notes."""
        item = self.item(name)
        causes = [(c["kind"], c["summary"], *c["evidence"]) for c in item["causes"]]
        return "\n".join([item["reason"], *(": ".join(words) for words in causes)])


def judge(
    root: Path, module: str, *args: str, again: int = 0, environment: Mapping[str, str] = NO_MORE
) -> Judged:
    """Record the good builds of a module's ``CASES`` and check the bad ones.

    Args:
        root: an empty directory for the project.
        module: beside this one, with ``CASES``.
        *args: of pytest in the second run.
        again: how many times at most what was too noisy to tell is checked once more, as a user
            would; nothing else is.
        environment: variables of the second run only.
    """
    lay_out(root, module)
    recorded = run(root, "--update-baselines", environment={"CASE_BUILD": "good"})
    assert recorded.code == 0, recorded.output
    bad = {"CASE_BUILD": "bad", **environment}
    checked = run(root, "--portability", *args, environment=bad)
    for _ in range(again):
        if nodes := [item["nodeid"] for item in checked.items if _untold(module, item)]:
            more = run(root, "--portability", *args, *nodes, environment=bad)
            new = {item["nodeid"]: item for item in more.items}
            items = [new.get(item["nodeid"], item) for item in checked.items]
            checked = replace(checked, report={**checked.report, "items": items})
    return Judged(recorded=recorded, checked=checked)


def _untold(module: str, item: Mapping[str, Any]) -> bool:
    owed = OWED[module].get(item["model"])
    right = owed.here.verdicts.split() if owed else []
    return item["verdict"] == "inconclusive" and item["verdict"] not in right


def lay_out(root: Path, module: str, seconds: float = 0.3) -> None:
    """Write the project of a module's ``CASES``."""
    repeats = 2 if module in UNTIMED else 6
    paths = [str(HERE), str(HERE.parent)]
    (root / "conftest.py").write_text(CONFTEST.format(paths=paths, module=module))
    (root / "test_cases.py").write_text(PROJECT.format(paths=paths, module=module))
    (root / "pytest.ini").write_text(INI.format(seconds=seconds, repeats=repeats))
