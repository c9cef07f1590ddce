"""Whether verdicts and causes are right, over the reproduced faults of ``tests/cases``.

Every case is recorded and checked as a user would. Prints one row per case, the totals, and what
the pass costs that takes the kernel path. Run it alone on the machine:

    python benchmarks/attribution.py [--only MODULE]

Needs onnxruntime, openvino, torch and what the tests need. Faults that take more than two runs
(creeping and fading speeds, a capped instruction set, a provider that is not here) are in the tests
only, and so are those of the OpenVINO plugin, which accepts one vendor's processors.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "cases")]

import detection  # noqa: E402 - the paths come first
import subjects  # noqa: E402
from judged import Judged, judge  # noqa: E402
from owed import NOTHING, OWED, Owed  # noqa: E402

from pytest_portability import run, worker  # noqa: E402
from pytest_portability.servers import Servers  # noqa: E402

ROUNDS = 7
"""Pairs of repeats with and without the kernel path."""

TIMED = {"fusion", "kernel"}
"""Kinds of causes whose time is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One case as it was judged.

    Attributes:
        owed: what is right where the fault shows.
        shows: whether it does on this machine; where not, nothing may be flagged.
        problems: what is not as it is owed here.
        explained: share of the loss that all causes explain together, None where none has one.
        seconds: wall time of the check.
    """

    case: str
    runtime: str
    owed: Owed
    shows: bool
    verdict: str
    cause: str
    problems: Sequence[str]
    explained: float | None
    seconds: float

    @property
    def right(self) -> tuple[bool, bool]:
        """Whether the verdict is, and whether the first cause is."""
        verdict = not any(problem.startswith("verdict") for problem in self.problems)
        return verdict, not self.problems


def rows(module: str) -> Iterator[Row]:
    """The cases of a module."""
    with tempfile.TemporaryDirectory() as folder:
        judged = judge(Path(folder), module, "--junitxml=times.xml")
        times = _times(Path(folder) / "times.xml")
    for name, owed in OWED[module].items():
        yield _row(name, owed, judged, times)


def _row(name: str, owed: Owed, judged: Judged, times: Mapping[str, float]) -> Row:
    item = judged.item(name)
    known = [
        cause["share"]
        for cause in item["causes"]
        if cause["share"] is not None and cause["kind"] != "unexplained"
    ]
    return Row(
        case=name,
        runtime=item["runtime"],
        owed=owed,
        shows=owed.shows,
        verdict=item["verdict"],
        cause=item["causes"][0]["kind"] if item["causes"] else "–",
        problems=judged.wrong(name, owed),
        explained=sum(known) if known else None,
        seconds=times.get(name, 0.0),
    )


def _times(path: Path) -> dict[str, float]:
    """Name of a case → seconds of its test."""
    cases = ElementTree.parse(path).iter("testcase")
    return {
        case.attrib["name"].removeprefix("test_").partition("[")[0]: float(case.attrib["time"])
        for case in cases
    }


def table(found: Sequence[Row]) -> str:
    """Markdown: one row per case, then the totals."""
    lines = ["| case | runtime | verdict | first cause | explained | s |", "|---" * 6 + "|"]
    for row in found:
        explained = "–" if row.explained is None else f"{row.explained:.0%}"
        wrong = f" **({'; '.join(row.problems)})**" if row.problems else ""
        lines.append(
            f"| {row.case} | {row.runtime} | {row.verdict}{wrong} | {row.cause} | {explained} "
            f"| {row.seconds:.1f} |"
        )
    return "\n".join([*lines, "", *_totals(found)])


def _totals(found: Sequence[Row]) -> Iterator[str]:
    faults = [row for row in found if row.owed != NOTHING and row.shows]
    harmless = [row for row in found if row.owed == NOTHING]
    unseen = [row for row in found if not row.shows]
    verdicts, causes = (sum(row.right[i] for row in faults) for i in (0, 1))
    flagged = sum(bool(row.problems) for row in harmless)
    yield f"verdicts right: {verdicts} of {len(faults)} faults"
    yield f"first cause and its evidence right: {causes} of {len(faults)}"
    yield f"harmless changes flagged: {flagged} of {len(harmless)}"
    if unseen:
        names = ", ".join(row.case for row in unseen)
        flagged = sum(bool(row.problems) for row in unseen)
        yield f"does not show here: {len(unseen)} ({names}), of which flagged: {flagged}"
    # By the cause that is owed: a case that was blamed on something else must not drop out.
    timed = [row.explained or 0.0 for row in faults if TIMED & {*row.owed.causes.split()}]
    if timed:
        yield (
            f"share of the loss explained, median of {len(timed)} cases of fusion or kernel: "
            f"{median(timed):.0%}"
        )


def passes() -> Iterator[str]:
    """What the kernel path adds to an item of two repeats, the fewest it can have."""
    wanted = {("onnxruntime.cpu", "compute"), ("openvino", "compute"), ("torch", "tiny")}
    with Servers() as servers:
        (target,) = (t for t in run.discover(servers).targets if t.platform == "cpu")
        for subject in subjects.all_subjects(detection.packaged):
            if (subject.runtime, subject.name) not in wanted:
                continue
            plain = detection.job_of(servers, target, subject, 1, subjects.UNITS)
            traced = replace(plain, sampling=replace(plain.sampling, trace=True))
            detection.call(servers, worker.measure, traced)  # what is cached is cached
            added, alone = [], []
            for _ in range(ROUNDS):
                seconds = []
                for job in (plain, traced):
                    start = time.perf_counter()
                    detection.call(servers, worker.measure, job)
                    seconds.append(time.perf_counter() - start)
                added.append(seconds[1] - seconds[0])
                alone.append(seconds[0])
            share = median(added) / (2 * median(alone))
            yield (
                f"kernel path of {subject.runtime} {subject.name}: {median(added):+.2f} s, "
                f"{share:.0%} of an item of two repeats"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Judge every case, print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", action="append", choices=OWED, help="a module of tests/cases")
    given = parser.parse_args(argv)
    found: list[Row] = []
    for module in given.only or OWED:
        importlib.import_module(module)  # what is not installed ends it here
        found += rows(module)
        print(f"{module}: done", file=sys.stderr, flush=True)
    print(table(found))
    if not given.only:
        os.environ.pop("CASE_SET", None)
        for line in passes():
            print(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())
