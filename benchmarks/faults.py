"""Real faults at random moments, counted: what was lost, and which verdict was wrong.

A small suite is measured for real while processes are killed, interrupted, starved or made to
misbehave. Afterwards every item has to be in the report with the verdict that is true of it, every
record has to be the old or the new one, and no process may be left. Run it with

    python benchmarks/faults.py [--times N] [--only NAME] [--seed S]

Needs onnxruntime, pytest-xdist and a POSIX system. What fills a disk or makes it read-only is left
out where this user may mount none, what moves the clock where libfaketime is not installed.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

import psutil
from faults_suite import BATCHES, FINE, OTHER, PYTEST, STALE, Suite, Tally, everyone, judge, true_of

INTERRUPTED = 2
"""Of pytest's exit codes."""

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
        struck.append(strike(process, choose, "serve", 12.0))

    ended = suite.run(meanwhile=act)
    tally.struck += sum(struck)
    judge(tally, ended, true_of(everyone(), {"error", *FINE}), everyone())
    bad = sum(item["verdict"] == "error" for item in ended.items.values())
    if bad > 1:
        tally.wrong.append(f"one process was killed and {bad} items are errors")


def killed_worker(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """SIGKILL of an xdist worker."""
    struck: list[bool] = []

    def act(process: psutil.Popen) -> None:
        struck.append(strike(process, choose, "sys.stdin.readline", 12.0))

    ended = suite.run("-n2", meanwhile=act)
    tally.struck += sum(struck)
    judge(tally, ended, true_of(everyone(), {"error", *FINE}), everyone())


def killed_update(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """SIGKILL of the controller while it updates: each row is the old or the new one."""
    before = suite.rows
    begun = datetime.now(timezone.utc).isoformat(timespec="seconds")

    def act(process: psutil.Popen) -> None:
        time.sleep(choose.uniform(1.0, 12.0))
        if process.poll() is None:
            tally.struck += 1
            process.kill()

    ended = suite.update(meanwhile=act)
    tally.lost += [f"a process was left: {command}" for command in ended.left]
    try:
        after = suite.rows
    except Exception as exc:  # noqa: BLE001 - whatever it is, the record is torn
        tally.lost.append(f"torn: {exc}")
        return
    tally.lost += [f"{row} is no longer recorded" for row in before.keys() - after.keys()]
    neither = [r for r, when in after.items() if when != before.get(r) and when < begun]
    tally.lost += [f"{row} is neither the old nor the new one" for row in neither]
    again = suite.run(environment=OTHER)
    old = [row for row in after if after[row] == before.get(row)]
    judge(tally, again, true_of(old, STALE), everyone())


def interrupted(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """SIGINT by the user: prompt, nothing is left running, and the run is not green."""
    when: list[float] = []

    def act(process: psutil.Popen) -> None:
        time.sleep(choose.uniform(1.0, 8.0))
        if process.poll() is None:
            tally.struck += 1
            when.append(time.monotonic())
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does

    ended = suite.run(*choose.choice([(), ("-n2",)]), meanwhile=act)
    if when and time.monotonic() - when[0] > 15:
        tally.wrong.append(f"took {time.monotonic() - when[0]:.0f} s to end")
    judge(tally, ended, {}, set(ended.items))
    if not when or len(ended.items) == len(BATCHES):
        return
    if ended.problems is None:
        tally.lost.append("an interrupted run wrote no report")
    elif not any("stopped before its end" in problem for problem in ended.problems):
        tally.wrong.append(f"a part is reported as the whole: {ended.problems}")
    if ended.code != INTERRUPTED:
        tally.wrong.append(f"exit code {ended.code} although it was interrupted")


def two_updates(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """Two sessions that update the same file at once, with other rows each."""
    suite.tests(
        """
        @pytest.mark.portability(
            batches=[11, 12, 13], runtimes=["onnxruntime.cpu"], seconds=0.05, tolerance=0.9
        )
        def test_other(portability):
            portability.check(model(), inputs, name="it")
        """
    )
    tally.struck += 1
    before = suite.rows

    def second() -> None:
        time.sleep(choose.uniform(0.0, 1.0))
        done = subprocess.run(
            [*PYTEST, "--update-baselines", "test_it.py::test_other"],
            cwd=suite.folder,
            env={**os.environ, **OTHER},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            tally.wrong.append(f"the second session failed: {done.stdout[-200:]}")

    thread = threading.Thread(target=second)
    thread.start()
    ended = suite.update("test_it.py::test_it")
    thread.join()
    judge(tally, ended, true_of(everyone(), STALE), everyone())
    new = {row for row, when in suite.rows.items() if when != before.get(row)}
    expected = everyone() | {f"it-b{batch}" for batch in (11, 12, 13)}
    tally.lost += [f"{row} was not recorded" for row in expected - new]


def left_lock(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """A session that held the device was killed: nobody waits for it."""

    def act(process: psutil.Popen) -> None:
        time.sleep(choose.uniform(2.0, 5.0))
        if process.poll() is None:
            tally.struck += 1
            process.kill()

    ended = suite.run(meanwhile=act)
    tally.lost += [f"a process was left: {command}" for command in ended.left]
    judge(tally, suite.run(), {}, everyone())


# --- a disk and a clock -------------------------------------------------------------------------


def spoiled(suite: Suite, choose: random.Random, tally: Tally, *, full: bool) -> None:
    """The disk of the records fills up, or becomes read-only, during an update."""
    folder = suite.folder / "baselines"
    shutil.copytree(folder, suite.folder / "kept")
    before = suite.rows
    with _disk(folder):
        shutil.copytree(suite.folder / "kept", folder, dirs_exist_ok=True)
        filler = folder / "filler"

        def act(process: psutil.Popen) -> None:
            time.sleep(choose.uniform(1.0, 12.0))
            tally.struck += process.poll() is None
            if full:
                with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
                    stream.write(bytes(DISK_BYTES))
                    stream.write(bytes(DISK_BYTES))
            else:
                _read_only(folder)

        ended = suite.update(meanwhile=act)
        judge(tally, ended, true_of(everyone(), STALE), everyone())
        try:
            after = suite.rows
        except Exception as exc:  # noqa: BLE001 - whatever it is, the record is torn
            tally.lost.append(f"torn: {exc}")
            return
        tally.lost += [f"{row} is no longer recorded" for row in before.keys() - after.keys()]
        old = [row for row in after if after[row] == before.get(row)]
        if old and ended.code == 0:
            tally.wrong.append(f"green although {', '.join(old)} could not be written")
        if full:
            filler.unlink(missing_ok=True)
        else:
            _mount("-o", "remount,rw", str(folder))
        judge(tally, suite.update(), true_of(old, STALE), everyone())
        stale = [row for row, when in suite.rows.items() if when == before.get(row)]
        tally.lost += [f"{row} was not recorded afterwards" for row in stale]


DISK_BYTES = 256 * 2**10


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    _mount("-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder))
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def _read_only(folder: Path) -> None:
    """Where a file is being written, the kernel says busy."""
    for _ in range(100):
        with contextlib.suppress(subprocess.CalledProcessError):
            return _mount("-o", "remount,ro", str(folder))
        time.sleep(0.01)
    raise TimeoutError


def _mount(*args: str) -> None:
    subprocess.run(["mount", *args], check=True, capture_output=True)


def may_mount() -> bool:
    """Whether this user may mount a disk of its own."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with _disk(Path(folder)):
                return True
        except (OSError, subprocess.CalledProcessError):
            return False


FAKETIME = next(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"), None)
"""Moves the clock of processes that load it."""


def moved_clock(suite: Suite, choose: random.Random, tally: Tally) -> None:
    """The clock of the day jumps by up to 40 days, either way, during an update."""
    before = suite.rows
    offset = suite.folder / "clock"
    offset.write_text("+0", encoding="ascii")

    def act(process: psutil.Popen) -> None:
        time.sleep(choose.uniform(1.0, 8.0))
        tally.struck += process.poll() is None
        offset.write_text(f"{choose.uniform(-40, 40):+.3f}d", encoding="ascii")

    moved = {
        "LD_PRELOAD": str(FAKETIME),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        # No administrator moves the monotonic clock.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    ended = suite.update(meanwhile=act, environment=moved)
    judge(tally, ended, true_of(everyone(), STALE), everyone())
    stale = [row for row, when in suite.rows.items() if when == before.get(row)]
    tally.lost += [f"{row} was not recorded" for row in stale]
    judge(tally, suite.run(environment=OTHER), {}, everyone())


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

    return fault


FAULTS: dict[str, Callable[[Suite, random.Random, Tally], None]] = {
    "kill -9 of the measuring child": killed_child,
    "kill -9 of an xdist worker": killed_worker,
    "kill -9 of the controller in an update": killed_update,
    "SIGINT": interrupted,
    "two sessions update one directory": two_updates,
    "a device lock left behind": left_lock,
    "the disk fills up in an update": partial(spoiled, full=True),
    "the disk becomes read-only in an update": partial(spoiled, full=False),
    "the clock jumps in an update": moved_clock,
    **{f"a build {name}": misbehaves(name) for name in MISBEHAVE},
}


def left_out() -> Iterator[str]:
    """Names of faults that cannot be tried here."""
    if not may_mount():
        yield from (name for name in FAULTS if "disk" in name)
    if FAKETIME is None:
        yield from (name for name in FAULTS if "clock" in name)


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
    absent = set(left_out())
    for name, fault in FAULTS.items():
        if only not in name or name in absent:
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
    for name in sorted(absent):
        print(f"left out here: {name}")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
