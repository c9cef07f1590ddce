"""The timed loop, and nothing else; what it collects is in ``samples``."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Protocol

import numpy as np
import psutil

from pytest_portability.errors import BuildError
from pytest_portability.runtimes import Build
from pytest_portability.samples import Latency, Sampling, Window
from pytest_portability.yardstick import Yardstick

STRAIGHT_WINDOWS = 15
STRAIGHT_LIMIT_S = 0.1
"""Longer windows hold one long batch, which a yardstick before it cannot change: no stretch."""

STEADY_WINDOWS = 3
"""As many of the latest windows in warm-up are held against as many before them."""

LATENCY_PART = 2 / 15
LATENCY_CALLS = (5, 200)
"""Fewest and most synchronous calls; between them, as many as fit into that part of the seconds
that windows are timed for."""

MIN_TURN_S = 1e-6
"""A batch or a unit of the yardstick is taken to last at least this long, so that a window has a
bounded number of them."""

SETTLE_PART = 10
"""One part in so many of a window is inferred beside the clock first: the first batches after the
yardstick ran slower, by 4 % of a window. Fewer batches are long ones, which it cannot matter to."""

UNIT_CALLS = 5
"""Single units of the yardstick to time before its windows are sized: a neighbour only ever makes
one longer, so the least of them counts."""

THREAD_CLOCK = 6
"""What the kernel adds to the complement of a thread's number, shifted by 3, to name the clock of
its CPU time (per thread, by the scheduler: ``linux/posix-timers_types.h``)."""

MIN_UNFINISHED_S = 0.005
"""A fetch that is slower than its repetition by less is a cold copy, not unfinished work."""

UNFINISHED_TRIES = 5
"""Windows after which fetching has to wait, each time, before work is called unfinished: beside
neighbours that took 77 % of the processor, one fetch was kept waiting for 12 ms."""


class Clock(Protocol):
    """Where time comes from; one per child, replaced in tests."""

    def wall(self) -> float:
        """Monotonic seconds."""

    def busy(self) -> float:
        """CPU seconds of this process, all threads."""

    def usage(self) -> tuple[int, int]:
        """Involuntary context switches and minor page faults of this process so far."""

    def machine(self) -> float:
        """CPU seconds that all processes used so far ÷ number of processors; NaN if unknown."""

    def threads(self) -> Mapping[int, float]:
        """CPU seconds of each thread of this process so far; empty where unknown."""


class SystemClock:
    """The machine's own clocks."""

    def wall(self) -> float:
        """Monotonic seconds."""
        return time.perf_counter()

    def busy(self) -> float:
        """CPU seconds of this process, all threads."""
        return time.process_time()

    def usage(self) -> tuple[int, int]:
        """Involuntary context switches and minor page faults; zeros where the platform has none."""
        try:
            import resource  # noqa: PLC0415 - not on Windows
        except ImportError:
            return 0, 0
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_nivcsw, usage.ru_minflt

    def machine(self) -> float:
        """CPU seconds that all processes used so far ÷ number of processors."""
        times = psutil.cpu_times()
        # A guest's time is already in the user's; what waits for a disk is idle.
        idle = {"idle", "iowait", "guest", "guest_nice"}
        used = sum(v for name, v in times._asdict().items() if name not in idle)
        return float(used) / (psutil.cpu_count() or 1)

    def threads(self) -> Mapping[int, float]:
        """CPU seconds of each thread of this process so far; empty where this is not Linux."""
        spent = {}
        for task in Path("/proc/self/task").glob("*"):
            with contextlib.suppress(OSError):  # it ended meanwhile
                spent[int(task.name)] = time.clock_gettime((~int(task.name) << 3) | THREAD_CLOCK)
        return spent


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the timed loop saw of one build; the durations of ``Repeat`` without its facts."""

    windows: tuple[Window, ...]
    straight: tuple[Window, ...]
    first_call_s: float
    warmup_s: float
    steady: bool
    latency: Latency
    neighbours: float
    yardstick: str
    at_once: float


class Stopwatch:
    """Times one build whose inputs are already staged.

    The clock of a window starts before its first launch and stops after the synchronisation that
    follows its last one, so queued work is inside; staging inputs and fetching outputs are not.

    Args:
        build: the executable, with inputs staged.
        yardstick: makes the fixed work to alternate with, of the number of threads that the build
            was seen to keep busy, 0 where that is not known.
        on_cpu: whether process CPU time is the model's busy time.
    """

    def __init__(
        self,
        build: Build,
        yardstick: Callable[[int], Yardstick],
        sampling: Sampling,
        *,
        on_cpu: bool,
        clock: Clock | None = None,
    ) -> None:
        self._build = build
        self._yardstick = yardstick
        self._sampling = sampling
        self._on_cpu = on_cpu
        self._clock = clock or SystemClock()

    def run(self) -> Timing:
        """Warm up, then measure.

        Raises:
            BuildError: the clock stopped before the work was done, or ran backwards.
        """
        first = self._window(1)
        self._build.fetch()  # the first one may load a conversion; see ``_check_finished``
        before = self._clock.threads()
        warm, steady = self._warm_up(first.wall_s)
        self._check_finished(warm[-1])
        at_once = _at_once(before, self._clock.threads())
        fixed = self._yardstick(round(at_once) if at_once > 0 else 0)
        # Of the fastest of the last: a neighbour in one would make every window too short.
        batches = max(self._batches(window) for window in warm[-STEADY_WINDOWS:])
        units = self._units(fixed)
        with _no_garbage_collection():
            others = self._others()
            windows = self._alternate(fixed, batches, units)
            neighbours = others()
            long = median(w.wall_s for w in windows) >= STRAIGHT_LIMIT_S
            straight = () if long else tuple(self._window(batches) for _ in range(STRAIGHT_WINDOWS))
            latency = self._latency(windows)
        return Timing(
            windows=windows,
            straight=straight,
            first_call_s=first.wall_s,
            warmup_s=sum(w.wall_s for w in warm),
            steady=steady,
            latency=latency,
            neighbours=neighbours,
            yardstick=fixed.id,
            at_once=at_once,
        )

    def _others(self) -> Callable[[], float]:
        """Start to watch other processes; the result tells their share of the machine since."""
        clock, processors = self._clock, psutil.cpu_count() or 1
        wall, own, machine = clock.wall(), clock.busy(), clock.machine()

        def share() -> float:
            spent = clock.wall() - wall
            used = clock.machine() - machine - (clock.busy() - own) / processors
            return min(1.0, max(0.0, used / spent)) if math.isfinite(used) else math.nan

        return share

    def _timed(self, batches: int) -> tuple[float, float]:
        """Wall seconds and CPU seconds of the process for so many batches."""
        clock = self._clock
        busy, wall = clock.busy(), clock.wall()
        for _ in range(batches):
            self._build.launch()
        self._build.synchronize()
        return self._checked(batches, clock.wall() - wall, clock.busy() - busy)

    def _reference(self, fixed: Yardstick, units: int) -> tuple[float, float]:
        """Wall and CPU seconds of so many units of the yardstick."""
        wall = self._clock.wall()
        busy = fixed.run(units)
        return self._checked(units, self._clock.wall() - wall, busy)

    @staticmethod
    def _checked(turns: int, wall: float, busy: float) -> tuple[float, float]:
        if not wall > 0 or not busy >= 0:
            msg = f"the clock stood still or ran backwards: {turns} turns took {wall:g} s wall "
            msg += f"and {busy:g} s CPU time"
            raise BuildError(msg)
        return wall, busy

    def _window(self, batches: int) -> Window:
        switches, faults = self._clock.usage()
        wall, busy = self._timed(batches)
        more_switches, more_faults = self._clock.usage()
        return Window(
            batches=batches,
            wall_s=wall,
            busy_s=busy if self._on_cpu else None,
            switches=more_switches - switches,
            faults=more_faults - faults,
        )

    def _warm_up(self, first_s: float) -> tuple[list[Window], bool]:
        windows = [self._window(self._turns(self._sampling.window_s, first_s))]
        while True:
            over = sum(w.wall_s for w in windows) >= self._sampling.warmup_s
            if over or len(windows) >= 2 * STEADY_WINDOWS:
                steady = not self._gets_faster(windows)
                if over or steady:
                    return windows, steady
            windows.append(self._window(self._batches(windows[-1])))

    def _gets_faster(self, windows: list[Window]) -> bool:
        """Whether the best of the last windows is better than the best of those before.

        The best ones, because a neighbour makes any other longer without an end.
        """
        times = [w.wall_s / w.batches for w in windows[-2 * STEADY_WINDOWS :]]
        before, last = times[: -(len(times) // 2)], times[-(len(times) // 2) :]
        return len(times) > 1 and min(last) < min(before) * (1 - self._sampling.steady_rel)

    def _batches(self, window: Window) -> int:
        return self._turns(self._sampling.window_s, window.wall_s / window.batches)

    @staticmethod
    def _turns(length_s: float, turn_s: float) -> int:
        return max(1, math.ceil(length_s / max(turn_s, MIN_TURN_S)))

    def _units(self, fixed: Yardstick) -> int:
        fixed.run(1)  # loads the library's kernels
        unit_s = min(self._reference(fixed, 1)[0] for _ in range(UNIT_CALLS))
        return self._turns(self._sampling.yardstick_s, unit_s)

    def _alternate(self, fixed: Yardstick, batches: int, units: int) -> tuple[Window, ...]:
        windows: list[Window] = []
        end = self._clock.wall() + self._sampling.seconds
        before = self._reference(fixed, units)
        while len(windows) < self._sampling.min_windows or self._clock.wall() < end:
            self._settle(batches)
            window = self._window(batches)
            after = self._reference(fixed, units)
            # The yardstick of a window is the mean of the two that enclose it: a neighbour that
            # comes or goes during the window is half in it on both sides.
            wall, busy = ((a + b) / 2 / units for a, b in zip(before, after, strict=True))
            # The host's CPU time says nothing of a yardstick that runs on an accelerator.
            unit_busy = busy if self._on_cpu else None
            windows.append(replace(window, yardstick_wall_s=wall, yardstick_busy_s=unit_busy))
            before = after
        return tuple(windows)

    def _settle(self, batches: int) -> None:
        """Let the model take back the caches that the yardstick had."""
        for _ in range(batches // SETTLE_PART):
            self._build.launch()
        if batches >= SETTLE_PART:
            self._build.synchronize()

    def _latency(self, windows: tuple[Window, ...]) -> Latency:
        batch_s = median(w.wall_s / w.batches for w in windows)
        if windows[0].batches == 1:  # each was a synchronous single call already
            samples = [w.wall_s for w in windows]
        else:
            fewest, most = LATENCY_CALLS
            calls = max(fewest, min(most, int(LATENCY_PART * self._sampling.seconds / batch_s)))
            samples = [self._timed(1)[0] for _ in range(calls)]
        p50, p90, p99 = (float(p) for p in np.percentile(samples, [50, 90, 99]))
        return Latency(p50_s=p50, p90_s=p90, p99_s=p99, calls=len(samples))

    def _check_finished(self, window: Window) -> None:
        """Raise if fetching waits for work that the synchronisation should have waited for.

        Args:
            window: the latest one; nothing was launched since.
        """
        for _ in range(UNFINISHED_TRIES):
            waited = self._fetched() - self._fetched()
            if waited <= max(window.wall_s, MIN_UNFINISHED_S):
                return
            last, window = window, self._window(window.batches)
        msg = (
            f"the clock stopped before the work was done: {last.batches} batches took "
            f"{last.wall_s:.3g} s up to synchronize(), then fetch() waited {waited:.3g} s "
            "for them; make the runtime's synchronize() wait for every launch"
        )
        raise BuildError(msg)

    def _fetched(self) -> float:
        """Wall seconds of one fetch."""
        start = self._clock.wall()
        self._build.fetch()
        return self._clock.wall() - start


def _at_once(before: Mapping[int, float], after: Mapping[int, float]) -> float:
    """How many threads were busy at once: CPU time of all ÷ the busiest one's; NaN if unknown.

    Neighbours that make all of them wait alike change nothing of it; where a pool shares out its
    work as it goes, a thread that they starve leaves its part to the others.
    """
    spent = [seconds - before.get(thread, 0.0) for thread, seconds in after.items()]
    most = max(spent, default=0.0)
    return sum(spent) / most if most > 0 else math.nan


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
