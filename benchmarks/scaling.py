"""How reading stored records grows with their number: time and memory of the commands.

Files of 12 builds are made up, 10 targets a model. ``show``, ``diff`` and ``merge`` read them as a
user would have them do, each in a process of its own; ``history`` reads one file through many
commits. Run it alone:

    python benchmarks/scaling.py [--files 100,1000,10000] [--commits 500]
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from synthetic import KEY, RECORD, figures, path, steady, use  # noqa: E402 - the path comes first

from pytest_portability import records  # noqa: E402
from pytest_portability.records import Record  # noqa: E402

TARGETS = 10
BATCHES = (1, 2, 4, 8, 16, 32)
RUNTIMES = ("onnxruntime.cpu", "torch")
KERNELS = 20
"""Lines of the kernel path of each build: about those of a transformer."""


def row(model: str, target: str, runtime: str, batch: int, level: float) -> Record:
    """A record of plausible size."""
    kernels = path(*(use(f"Kernel{i}", i + 1, 1 / KERNELS) for i in range(KERNELS)))
    times = figures(steady(level * batch), steady(level * batch))
    key = replace(KEY, model=model, target=target, runtime=runtime, batch=batch)
    return replace(RECORD, key=key, figures=times, path=kernels)


def lay_out(folder: Path, files: int, level: float = 10.0) -> None:
    """So many files of 12 rows. One is written, the others are its text under other names."""
    folder.mkdir()
    rows = [row("M", "T", runtime, batch, level) for runtime in RUNTIMES for batch in BATCHES]
    one = records.path_of(folder, "M", "T")
    records.write(one, {r.key: r for r in rows})
    text = one.read_text(encoding="utf-8")
    shutil.rmtree(one.parent)
    for number in range(files):
        model, target = f"model{number // TARGETS:05}", f"cpu-t{number % TARGETS}-2c"
        made = text.replace('name = "M"', f'name = "{model}"').replace(
            'id = "T"', f'id = "{target}"'
        )
        file = records.path_of(folder, model, target)
        file.parent.mkdir(exist_ok=True)
        file.write_text(made, encoding="utf-8")


def timed(root: Path, *arguments: str) -> tuple[float, float]:
    """Wall seconds of a command, and the largest resident set of its processes in MB."""
    program = (
        "import resource, sys; from pytest_portability import cli; code = cli.main(sys.argv[1:]); "
        "most = max(resource.getrusage(who).ru_maxrss for who in "
        "(resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)); "
        "print(most, file=sys.stderr); sys.exit(code)"
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        cwd=root,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - start
    if done.returncode not in (0, 1):
        raise RuntimeError(done.stderr)
    return seconds, int(done.stderr.split()[-1]) / 1024


def commits(root: Path, count: int) -> None:
    """One file through so many commits, each of which changes every row of it."""
    git = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    environment = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run([*git, "init", "-q"], env=environment, check=True)
    for number in range(count):
        rows = [
            row("m", "cpu-t0-2c", runtime, batch, 10 + number / 100)
            for runtime in RUNTIMES
            for batch in BATCHES
        ]
        file = records.path_of(root / "baselines", "m", "cpu-t0-2c")
        records.write(file, {r.key: r for r in rows})
        subprocess.run([*git, "add", "-A"], env=environment, check=True)
        subprocess.run([*git, "commit", "-qm", "x"], env=environment, check=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the curve."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--files", default="100,1000", help="numbers of files, default 100,1000")
    parser.add_argument("--commits", type=int, default=500, help="of one file, default 500")
    given = parser.parse_args(argv)
    print("| command | files | s | largest process, MB |\n|---|---|---|---|")
    for files in map(int, given.files.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            lay_out(root / "baselines", files)
            lay_out(root / "other", files, 10.1)
            for arguments in (
                ("show",),
                ("diff", "baselines", "other"),
                ("merge", "other", "--baselines=merged"),
            ):
                seconds, megabytes = timed(root, *arguments)
                print(f"| {arguments[0]} | {files} | {seconds:.1f} | {megabytes:.0f} |", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        commits(Path(folder), given.commits)
        seconds, megabytes = timed(Path(folder), "history")
        print(f"| history, {given.commits} commits | 1 | {seconds:.1f} | {megabytes:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
