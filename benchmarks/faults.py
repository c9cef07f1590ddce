"""Real faults at random moments, counted: what was lost, and which verdict was wrong.

A small suite is measured for real while processes are killed, interrupted, starved or made to
misbehave. Afterwards every item has to be in the report with the verdict that is true of it, every
record has to be the old or the new one, and no process may be left. Run it with

    python benchmarks/faults.py [--times N] [--only NAME] [--seed S]

Needs onnxruntime, pytest-xdist and a POSIX system.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil

from pytest_portability import records

BATCHES = (1, 2, 3)
RUN_LIMIT_S = 300.0
FINE = {"ok", "inconclusive", "improved"}
"""What an item that nothing happened to may be on a machine that other work keeps busy."""

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
    weights = numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
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
    """One run of the suite: exit code, items by batch, what it printed, what it left running."""

    code: int
    items: dict[str, dict[str, Any]]
    output: str
    left: list[str]


class Suite:
    """The suite in a folder of its own.

    Args:
        folder: where it is.
        more: tests beside ``test_it``.
    """

    def __init__(self, folder: Path, more: str = "") -> None:
        self.folder = folder
        self.tests(more)
        (folder / "pytest.ini").write_text(INI.strip(), encoding="utf-8")

    def tests(self, more: str) -> None:
        """Write the test file."""
        text = TESTS.strip().replace("BATCHES", repr(list(BATCHES))) + "\n" + textwrap.dedent(more)
        (self.folder / "test_it.py").write_text(text, encoding="utf-8")

    def run(
        self, *args: str, meanwhile: Callable[[psutil.Popen], None] | None = None, limit: int = 0
    ) -> Ended:
        """Run pytest.

        Args:
            args: beside ``--portability``.
            meanwhile: called with the process while it runs.
            limit: address space of the process and its children in bytes, 0 for none.
        """
        report = self.folder / "r.json"
        report.unlink(missing_ok=True)
        mark = uuid.uuid4().hex
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--portability"]
        with tempfile.TemporaryFile("w+") as said:
            process = psutil.Popen(
                [*command, f"--portability-report=json:{report}", *args],
                cwd=self.folder,
                env={**os.environ, "FAULTS_RUN": mark},
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_limiter(limit) if limit else None,
            )
            if meanwhile is not None:
                meanwhile(process)
            code = process.wait(timeout=RUN_LIMIT_S)
            said.seek(0)
            output = said.read()
        found = json.loads(report.read_text(encoding="utf-8"))["items"] if report.exists() else []
        items = {f"{i['model']}-b{i['batch']}": i for i in found}
        return Ended(code=code, items=items, output=output, left=_left(mark))

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


def true_of(items: set[str], verdicts: set[str]) -> dict[str, set[str]]:
    """The same verdicts for each of some items."""
    return dict.fromkeys(items, verdicts)


def judge(tally: Tally, ended: Ended, hurt: dict[str, set[str]], whole: set[str]) -> None:
    """Count what a run lost or judged wrongly.

    Args:
        tally: takes the findings.
        ended: the run.
        hurt: items the fault may have struck → verdicts that are true of them then.
        whole: every item of the suite.
    """
    tally.lost += [f"{item} is not in the report" for item in whole - ended.items.keys()]
    tally.lost += [f"a process was left: {command}" for command in ended.left]
    if "INTERNALERROR" in ended.output:
        tally.wrong.append(f"internal error: {ended.output[-300:]}")
    for name, item in ended.items.items():
        if item["verdict"] not in hurt.get(name, set()) | FINE:
            tally.wrong.append(f"{name} is {item['verdict']}: {item['reason'][:120]}")
    failed = any(item["outcome"] == "fail" for item in ended.items.values())
    if failed and ended.code == 0:
        tally.wrong.append("green although an item failed")


# --- processes that are killed -----------------------------------------------------------------


def descendants(process: psutil.Process) -> Iterator[psutil.Process]:
    """Processes below one, those that die meanwhile left out."""
    try:
        yield from process.children(recursive=True)
    except psutil.Error:
        return


def strike(process: psutil.Process, choose: random.Random, wanted: str, latest_s: float) -> bool:
    """Kill one descendant whose command line holds a word, at a random moment.

    Returns:
        Whether one was found.
    """
    time.sleep(choose.uniform(0.2, latest_s))
    found = [p for p in descendants(process) if wanted in " ".join(_command(p))]
    if not found:
        return False
    try:
        choose.choice(found).kill()
    except psutil.Error:
        return False
    return True


def _command(process: psutil.Process) -> list[str]:
    try:
        return list(process.cmdline())
    except psutil.Error:
        return []


def killed_child(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """SIGKILL of the process that measures, or of the server that forks it."""
    struck: list[bool] = []

    def act(process: psutil.Popen) -> None:
        struck.append(strike(process, choose, "serve", 6.0))

    ended = suite.run(meanwhile=act)
    tally.struck += sum(struck)
    judge(tally, ended, true_of(everyone(), {"error"}), everyone())
    bad = sum(item["verdict"] == "error" for item in ended.items.values())
    if bad > 1:
        tally.wrong.append(f"one process was killed and {bad} items are errors")


def killed_worker(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """SIGKILL of an xdist worker."""
    struck: list[bool] = []

    def act(process: psutil.Popen) -> None:
        struck.append(strike(process, choose, "sys.stdin.readline", 6.0))

    ended = suite.run("-n2", meanwhile=act)
    tally.struck += sum(struck)
    judge(tally, ended, true_of(everyone(), {"error"}), everyone())


def killed_update(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """SIGKILL of the controller while it updates: each row is the old or the new one."""
    before = suite.rows
    begun = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def act(process: psutil.Popen) -> None:
        time.sleep(choose.uniform(1.0, 12.0))
        if process.poll() is None:
            tally.struck += 1
            process.kill()

    ended = suite.run("--update-baselines", "--portability-accept=fault", meanwhile=act)
    tally.lost += [f"a process was left: {command}" for command in ended.left]
    try:
        after = suite.rows
    except Exception as exc:  # noqa: BLE001 - whatever it is, the record is torn
        tally.lost.append(f"torn: {exc}")
        return
    tally.lost += [f"{row} is no longer recorded" for row in before.keys() - after.keys()]
    neither = [r for r, when in after.items() if when != before.get(r) and when < begun]
    tally.lost += [f"{row} is neither the old nor the new one" for row in neither]
    again = suite.run()
    judge(tally, again, {}, everyone())


def interrupted(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """SIGINT by the user: prompt, nothing is left running, and the run is not green."""
    when: list[float] = []

    def act(process: psutil.Popen) -> None:
        time.sleep(choose.uniform(1.0, 8.0))
        if process.poll() is None:
            tally.struck += 1
            when.append(time.monotonic())
            process.send_signal(signal.SIGINT)

    ended = suite.run(meanwhile=act)
    if when and time.monotonic() - when[0] > 15:
        tally.wrong.append(f"took {time.monotonic() - when[0]:.0f} s to end")
    judge(tally, ended, {}, set(ended.items))
    if when and ended.code == 0 and len(ended.items) < len(BATCHES):
        tally.wrong.append("green although it was interrupted")


def two_updates(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """Two sessions that update the same directory at once."""
    suite.tests(
        """
        @MARK
        def test_other(portability):
            portability.check(model(), inputs, name="other")
        """
    )
    tally.struck += 1

    def second() -> None:
        time.sleep(choose.uniform(0.0, 1.0))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        done = subprocess.run(
            [
                *command,
                "--update-baselines",
                "--portability-accept=fault",
                "test_it.py::test_other",
            ],
            cwd=suite.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            tally.wrong.append(f"the second session failed: {done.stdout[-200:]}")

    thread = threading.Thread(target=second)
    thread.start()
    args = ("--update-baselines", "--portability-accept=fault", "test_it.py::test_it")
    ended = suite.run(*args)
    thread.join()
    judge(tally, ended, true_of(everyone(), {"missing"}), everyone())
    rows = suite.rows
    expected = everyone() | everyone("other")
    tally.lost += [f"{row} was not recorded" for row in expected - rows.keys()]


def left_lock(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """A session that held the device was killed: nobody waits for it."""

    def act(process: psutil.Popen) -> None:
        time.sleep(choose.uniform(2.0, 5.0))
        tally.struck += process.poll() is None
        process.kill()

    suite.run(meanwhile=act)
    judge(tally, suite.run(), {}, everyone())


# --- builds that misbehave ---------------------------------------------------------------------

MISBEHAVE: dict[str, tuple[str, str]] = {
    "hangs": ("error", "time.sleep(1e6)"),
    "floods its output": ("", "os.write(1, b'x' * 10**8)"),
    "leaves a thread": ("", "threading.Thread(target=time.sleep, args=(1e6,)).start()"),
    "leaves a grandchild": ("", "subprocess.Popen(['sleep', '1000'])"),
    "exits without a result": ("error", "os._exit(0)"),
    "kills itself": ("error", "os.kill(os.getpid(), signal.SIGKILL)"),
    "corrupts its result": (
        "error",
        """
        import pickle, cloudpickle
        pickle.dump = pickle.dumps = cloudpickle.dump = lambda *a, **k: b'no pickle'
        cloudpickle.dumps = pickle.dumps
        """,
    ),
    "allocates without end": ("unfit", "[bytearray(2**26) for _ in iter(int, 1)]"),
    "changes global state": (
        "",
        "np.random.seed(0); os.environ['OMP_NUM_THREADS'] = '7'; os.chdir('/')",
    ),
}
"""What a build does in its task metric → the verdict of its item, empty for none; and how."""


BAD = """
@MARK
def test_bad(portability):
    portability.check(model(), inputs, name="bad", metric=metric)

@MARK
def test_last(portability):
    portability.check(model(), inputs, name="last")
"""


def misbehaves(name: str) -> Callable[[Suite, random.Random, Tally], None]:
    """The fault of a build that does one of ``MISBEHAVE``, beside items that do nothing."""
    verdict, code = MISBEHAVE[name]

    def fault(suite: Suite, choose: random.Random, tally: Tally) -> None:
        del choose
        body = textwrap.indent(textwrap.dedent(code).strip(), "    ")
        suite.tests(f"def metric(predict):\n{body}\n    return 1.0\n" + BAD)
        tally.struck += 1
        true = {verdict, "error"} if verdict else {"missing"}
        limit = 6 * 2**30 if name == "allocates without end" else 0
        ended = suite.run("--portability-missing=warn", limit=limit)
        hurt = true_of(everyone("bad"), true) | true_of(everyone("last"), {"missing"})
        judge(tally, ended, hurt, everyone() | everyone("bad") | everyone("last"))
        if verdict:
            bad = {n: i["verdict"] for n, i in ended.items.items() if n in everyone("bad")}
            green = [n for n, found in bad.items() if found in {*FINE, "missing"}]
            tally.wrong += [f"{n} passes although it {name}" for n in green]

    return fault


FAULTS: dict[str, Callable[[Suite, random.Random, Tally], None]] = {
    "kill -9 of the measuring child": killed_child,
    "kill -9 of an xdist worker": killed_worker,
    "kill -9 of the controller in an update": killed_update,
    "SIGINT": interrupted,
    "two sessions update one directory": two_updates,
    "a device lock left behind": left_lock,
    **{f"a build {name}": misbehaves(name) for name in MISBEHAVE},
}


def record(folder: Path) -> None:
    """Write the suite, and record it once."""
    suite = Suite(folder)
    ended = suite.run("--update-baselines")
    if ended.code or suite.rows.keys() != everyone():
        raise RuntimeError(ended.output)


def main(argv: Sequence[str] | None = None) -> int:
    """Inject, count, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--times", type=int, default=10, help="each fault, default 10")
    parser.add_argument("--only", default="", help="faults with this in their name")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as folder:
        recorded = Path(folder) / "recorded"
        recorded.mkdir()
        record(recorded)
        return _campaign(recorded, given.times, given.only, random.Random(given.seed))


def _campaign(recorded: Path, times: int, only: str, choose: random.Random) -> int:
    bad = 0
    print("| fault | tried | struck | lost | wrong verdicts |\n|---|---|---|---|---|")
    for name, fault in FAULTS.items():
        if only not in name:
            continue
        tally = Tally()
        for number in range(times):
            folder = recorded.with_name(f"{number}")
            shutil.copytree(recorded, folder)
            tally.tried += 1
            fault(Suite(folder), choose, tally)
            shutil.rmtree(folder)
        bad += len(tally.lost) + len(tally.wrong)
        print(
            f"| {name} | {tally.tried} | {tally.struck} | {len(tally.lost)} | {len(tally.wrong)} |",
            flush=True,
        )
        for text in (*tally.lost, *tally.wrong):
            print(f"    {text}", file=sys.stderr, flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
