"""The suite that ``faults.py`` measures while something goes wrong, and how a run is judged."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil

from pytest_portability import records

BATCHES = (1, 2, 3)
RUN_LIMIT_S = 300.0
PYTEST = [
    sys.executable,
    "-m",
    "pytest",
    "-q",
    "-p",
    "no:cacheprovider",
    "-p",
    "no:hypothesispytest",
]
"""Hypothesis loads itself when a run ends: seconds of a worker that is to end at once."""

OTHER = {"FAULTS_SCALE": "2"}
"""Makes the models of a run others."""

NOTHING_MORE: Mapping[str, str] = MappingProxyType({})
FINE = {"ok", "inconclusive", "improved"}
"""What an item that nothing happened to may be on a machine that other work keeps busy."""

STALE = {"stale"}
"""What an item of another model than the recorded one is."""

TESTS = """
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper


def model():
    scale = np.float32(os.environ.get("FAULTS_SCALE", "1"))
    weights = numpy_helper.from_array(scale * np.eye(64, dtype=np.float32), "w")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", 64]) for n in "xy")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", [x], [y], [weights])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def inputs(batch, rng):
    return {"x": rng.standard_normal((batch, 64), dtype=np.float32)}


def metric(predict):
    return 1.0


MARK = pytest.mark.portability(
    batches=BATCHES, runtimes=["onnxruntime.cpu"], seconds=0.05, tolerance=0.9
)


@MARK
def test_it(portability):
    portability.check(model(), inputs, name="it")
"""

INI = """
[pytest]
portability_time_limit = 20
filterwarnings = default
"""


@dataclass(slots=True)
class Tally:
    """What became of a fault that was tried several times."""

    tried: int = 0
    struck: int = 0
    lost: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """One run of the suite: exit code, items by batch, what it printed, what it left running.

    Attributes:
        problems: as its report says, None where it wrote none.
    """

    code: int
    items: dict[str, dict[str, Any]]
    problems: list[str] | None
    output: str
    left: list[str]


class Suite:
    """The suite in a folder of its own.

    Args:
        folder: where it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tests("")
        (folder / "pytest.ini").write_text(INI.strip(), encoding="utf-8")

    def tests(self, more: str) -> None:
        """Write the test file."""
        text = TESTS.strip().replace("BATCHES", repr(list(BATCHES))) + "\n" + textwrap.dedent(more)
        (self.folder / "test_it.py").write_text(text, encoding="utf-8")

    def run(
        self,
        *args: str,
        meanwhile: Callable[[psutil.Popen], None] | None = None,
        limit: int = 0,
        environment: Mapping[str, str] = NOTHING_MORE,
    ) -> Ended:
        """Run pytest.

        Args:
            args: beside ``--portability``.
            meanwhile: called with the process while it runs.
            limit: address space of the process and its children in bytes, 0 for none.
            environment: variables to add.
        """
        report = self.folder / "r.json"
        report.unlink(missing_ok=True)
        mark = uuid.uuid4().hex
        command = [*PYTEST, "--portability"]
        with tempfile.TemporaryFile("w+") as said:
            process = psutil.Popen(
                [*command, f"--portability-report=json:{report}", *args],
                cwd=self.folder,
                env={**os.environ, "FAULTS_RUN": mark, **environment},
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_limiter(limit) if limit else None,
            )
            hung: list[str] = []
            try:
                if meanwhile is not None:
                    meanwhile(process)
                process.wait(timeout=RUN_LIMIT_S)
            except psutil.TimeoutExpired:
                hung = ["pytest itself, which hung"]
            finally:
                if process.poll() is None:
                    process.kill()
            code = process.wait()
            said.seek(0)
            output = said.read()
        found = json.loads(report.read_text(encoding="utf-8")) if report.exists() else {}
        items = {f"{i['model']}-b{i['batch']}": i for i in found.get("items", ())}
        problems = found.get("problems")
        return Ended(
            code=code, items=items, problems=problems, output=output, left=[*hung, *_left(mark)]
        )

    def update(
        self,
        *args: str,
        meanwhile: Callable[[psutil.Popen], None] | None = None,
        environment: Mapping[str, str] = NOTHING_MORE,
    ) -> Ended:
        """Record other weights than were recorded, so that every row has to be written anew."""
        update = ("--update-baselines", "--portability-accept=fault", *args)
        return self.run(*update, meanwhile=meanwhile, environment={**OTHER, **environment})

    @property
    def rows(self) -> dict[str, str]:
        """What is recorded: row → when it was measured.

        Raises:
            RecordError: a file is torn.
        """
        found: dict[str, str] = {}
        for path in (self.folder / "baselines").glob("*/*.toml"):
            for key, record in records.read(path).items():
                found[f"{key.model}-b{key.batch}"] = record.measured
        return found


def _limiter(limit: int) -> Callable[[], None]:
    return lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _left(mark: str) -> list[str]:
    """Processes of a run that still live, a moment after it ended; they are ended here."""
    time.sleep(1.0)
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("FAULTS_RUN") == mark
            if ours and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:80])
                process.kill()
        except (psutil.Error, OSError):
            continue
    return found


def everyone(name: str = "it") -> set[str]:
    """The items of a test."""
    return {f"{name}-b{batch}" for batch in BATCHES}


def true_of(items: Collection[str], verdicts: set[str]) -> dict[str, set[str]]:
    """The same verdicts for each of some items."""
    return dict.fromkeys(items, verdicts)


def judge(tally: Tally, ended: Ended, true: Mapping[str, set[str]], whole: set[str]) -> None:
    """Count what a run lost or judged wrongly.

    Args:
        tally: takes the findings.
        ended: the run.
        true: items that the fault struck or may have struck → verdicts that are true of them.
        whole: every item of the suite.
    """
    tally.lost += [f"{item} is not in the report" for item in whole - ended.items.keys()]
    tally.lost += [f"a process was left: {command}" for command in ended.left]
    if "INTERNALERROR" in ended.output:
        tally.wrong.append(f"internal error: {ended.output[-300:]}")
    for name, item in ended.items.items():
        if item["verdict"] not in true.get(name, FINE):
            tally.wrong.append(f"{name} is {item['verdict']}: {item['reason'][:120]}")
    failed = any(item["outcome"] == "fail" for item in ended.items.values())
    if failed and ended.code == 0:
        tally.wrong.append("green although an item failed")
