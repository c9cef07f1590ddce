"""False alarms, misses and cost of rules that judge speed, on the same raw runs.

Identical builds and builds with a known share of extra work are measured in fresh processes on an
idle machine, beside bursty neighbours and beside a steady load of twice the cores. Every rule then
judges the same pairs of sessions: ours, and what a user would reach for instead. Run it alone on
the machine:

    python benchmarks/detection.py [--quick] [--runs FILE]

``--runs`` keeps the raw runs in a pickle and, if the file is there, judges them again without
measuring. Needs onnxruntime, openvino, torch, scipy and silero-vad; what is not installed is left
out and said so.
"""

from __future__ import annotations

import argparse
import os
import pickle
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import rules
import subjects
from rules import FEWER_THREADS, Session, Shot
from subjects import UNITS, Subject

from pytest_portability import models, run, runtimes, worker, yardstick
from pytest_portability.errors import PortabilityError
from pytest_portability.runtimes import Request
from pytest_portability.samples import Sampling
from pytest_portability.servers import Servers
from pytest_portability.subject import Source
from pytest_portability.targets import Target, usable_cores
from pytest_portability.worker import Job

STATES = ("idle", "bursty", "steady")
NEIGHBOURS_PER_CORE = 2
NEIGHBOUR_LIMIT_S = 600.0
SLOWDOWNS = (6, 8, 12, 25)
CALLS_S = 0.3
MOST_CALLS = 2000

BY_VALUE = [sys.modules[__name__], subjects]
"""What a child cannot import."""


# --- measuring ---------------------------------------------------------------------------------


def shoot(job: Job) -> tuple[Any, Any, int, float]:
    """One repeat as the plugin takes it, then single calls of the same build one by one.

    Returns:
        The repeat, seconds of each call, parameters of the model, seconds after the repeat.
    """
    outcome = worker.measure(job)
    begin = time.perf_counter()
    request = Request(
        model=job.source.load(),
        handle=job.handle,
        platform=job.platform,
        options=job.options,
        cache_dir=job.cache_dir,
    )
    calls: list[float] = []
    with closing(job.runtime.build(request)) as build:
        build.stage(job.inputs)
        for _ in range(5):
            build.launch()
            build.synchronize()
        end = time.perf_counter() + CALLS_S
        while len(calls) < MOST_CALLS and time.perf_counter() < end:
            start = time.perf_counter()
            build.launch()
            build.synchronize()
            calls.append(time.perf_counter() - start)
    parameters = models.describe(request.model).parameters
    return outcome.repeat, np.array(calls), parameters, time.perf_counter() - begin


def job_of(servers: Servers, target: Target, subject: Subject, threads: int, units: int) -> Job:
    """One repeat of a subject without its kernel path."""
    return Job(
        source=Source(
            model=servers.keep(subject.make(units), BY_VALUE),
            inputs=servers.keep((None, None)),
            name=subject.name,
        ),
        path=None,
        runtime=runtimes.load(subject.runtime, ()),
        handle=target.handles[subject.runtime],
        platform="cpu",
        precision="native",
        options={subjects.THREADS_OPTION[subject.runtime]: threads},
        inputs=dict(subject.inputs(units)),
        sampling=Sampling(trace=False),
        cache_dir=str(servers.directory / "cache"),
    )


def call(servers: Servers, function: Callable[[Job], Any], job: Job) -> Any:
    """Call a function of a job in a fresh child, as the plugin does."""
    return servers.call(
        function,
        job,
        environment={**yardstick.ENVIRONMENT, **job.runtime.environment},
        preload=("numpy", "onnx", "pytest_portability.worker", *job.runtime.packages),
        by_value=BY_VALUE,
    )


def measure(
    servers: Servers,
    target: Target,
    subject: Subject,
    *,
    threads: int,
    units: int,
    yardstick_threads: int,
) -> list[Shot]:
    """One session: fresh processes, as many as a check takes at most."""
    job = job_of(servers, target, subject, threads, units)
    job = replace(job, yardstick_threads=yardstick_threads)
    shots: list[Shot] = []
    for _ in range(rules.MOST_REPEATS):
        start = time.perf_counter()
        repeat, calls, parameters, after_s = call(servers, shoot, job)
        seconds = time.perf_counter() - start - after_s
        shots.append(Shot(repeat=repeat, seconds=seconds, calls=calls, parameters=parameters))
        job = replace(job, yardstick_threads=yardstick.threads_of(repeat.yardstick))
    return shots


def neighbour(state: str) -> None:
    """Work that disturbs: now a product in cache, now a stream through memory, with pauses."""
    choose = random.Random()
    a, big = np.ones((192, 192), np.float32), np.ones(2**21, np.float32)
    end, parent = time.monotonic() + NEIGHBOUR_LIMIT_S, os.getppid()
    while time.monotonic() < end and os.getppid() == parent:  # it may be killed
        stop = time.monotonic() + choose.uniform(0.02, 0.6)
        streams = choose.random() < 0.5
        while time.monotonic() < stop:
            _ = big + 1 if streams else a @ a
        if state == "bursty":
            time.sleep(choose.uniform(0.02, 0.5))


@contextmanager
def beside(state: str) -> Iterator[None]:
    """Neighbours while the block runs."""
    count = 0 if state == "idle" else NEIGHBOURS_PER_CORE * usable_cores()
    command = [sys.executable, __file__, "--neighbour", state]
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    # Of sessions of their own: Linux shares the processor between sessions first.
    started = [
        subprocess.Popen(command, env=environment, start_new_session=True) for _ in range(count)
    ]
    try:
        if started:
            time.sleep(2.0)  # they import NumPy first
        yield
        if any(process.poll() is not None for process in started):
            msg = f"a neighbour ended before what it was to disturb: {state}"
            raise RuntimeError(msg)
    finally:
        for process in started:
            process.kill()
            process.wait()


@dataclass(frozen=True, slots=True)
class Plan:
    """How much to measure: sessions of identical builds, and which slowdowns."""

    sessions: int
    slowdowns: Sequence[int]
    wanted: Sequence[str]


QUICK = Plan(
    sessions=2,
    slowdowns=[12],
    wanted=["onnxruntime.cpu:compute:1", "onnxruntime.cpu:tiny:2"],
)


def collect(plan: Plan, keep: Path | None) -> list[Session]:
    """Every session; what one subject lacks is said and left out."""
    found: list[Session] = []
    with Servers() as servers:
        (target,) = (t for t in run.discover(servers).targets if t.platform == "cpu")
        chosen = [
            (s, threads)
            for s in subjects.all_subjects(packaged)
            for threads in s.threads
            if not plan.wanted or f"{s.runtime}:{s.name}:{threads}" in plan.wanted
        ]
        yardsticks: dict[tuple[str, str, int], int] = {}
        for number in range(plan.sessions):
            for state in STATES:
                for subject, threads in chosen:
                    take = partial(measure, servers, target, subject)
                    at = subject.runtime, subject.name, threads
                    with beside(state):
                        found.extend(_variants(at, (state, number), plan, take, yardsticks))
                    if keep:
                        keep.write_bytes(pickle.dumps(found))
                print(f"session {number + 1}, {state}: done", file=sys.stderr, flush=True)
    return found


def _variants(
    of: tuple[str, str, int],
    where: tuple[str, int],
    plan: Plan,
    measured: Callable[..., list[Shot]],
    yardsticks: dict[tuple[str, str, int], int],
) -> Iterator[Session]:
    """The base build and slower ones, all beside the yardstick that the first base build had."""
    (runtime, subject, threads), (state, number) = of, where
    # Slower variants are spread over the sessions, so that no two neighbours in time are compared
    # more often than others.
    more = [s for i, s in enumerate(plan.slowdowns) if i % plan.sessions == number]
    fewer = [FEWER_THREADS] if subject == "compute" and threads > 1 else []
    for percent in (0, *more, *fewer):
        units = UNITS + max(percent, 0) * UNITS // 100
        used = 1 if percent == FEWER_THREADS else threads
        try:
            shots = measured(threads=used, units=units, yardstick_threads=yardsticks.get(of, 0))
        except (PortabilityError, ImportError, KeyError) as exc:
            print(f"left out: {runtime} {subject}: {exc!r}", file=sys.stderr)
            return
        yardsticks[of] = yardstick.threads_of(shots[0].repeat.yardstick)
        yield Session(
            subject=subject,
            runtime=runtime,
            threads=threads,
            state=state,
            number=number,
            percent=percent,
            shots=tuple(shots),
        )


def packaged(package: str, path: str) -> Path:
    """The path of a file in an installed package, which is not imported."""
    import importlib.util  # noqa: PLC0415

    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        msg = f"{package} is not installed"
        raise ImportError(msg)
    return Path(spec.submodule_search_locations[0]) / path


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, judge, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two subjects, about five minutes")
    parser.add_argument("--runs", type=Path, help="where the raw runs are, or are kept")
    parser.add_argument("--sessions", type=int, help="of identical builds, default 4, quick 2")
    parser.add_argument("--only", action="append", default=[], help="runtime:subject:threads")
    parser.add_argument("--slowdowns", help="percent, default 6,8,12,25, quick 12")
    parser.add_argument("--neighbour", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if given.neighbour:
        neighbour(given.neighbour)
        return 0
    if given.runs and given.runs.exists():
        found = pickle.loads(given.runs.read_bytes())
    else:
        usual = QUICK if given.quick else Plan(sessions=4, slowdowns=SLOWDOWNS, wanted=())
        slowdowns = None if given.slowdowns is None else given.slowdowns.split(",")
        plan = Plan(
            sessions=given.sessions or usual.sessions,
            slowdowns=usual.slowdowns if slowdowns is None else [int(s) for s in slowdowns if s],
            wanted=given.only or usual.wanted,
        )
        found = collect(plan, given.runs)
    print(rules.table(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
