"""Sampling, raw samples and the timed loop, and nothing else."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from statistics import median
from typing import Protocol

import numpy as np

from pytest_portability.errors import BuildError
from pytest_portability.kernels import KernelPath
from pytest_portability.runtimes import Build, Observed
from pytest_portability.yardstick import Yardstick

STRAIGHT_WINDOWS = 5
STRAIGHT_LIMIT_S = 0.1
"""Longer windows hold one long batch, which a yardstick before it cannot change: no stretch."""

STRAIGHT_BOUNDS = (0.97, 1.03)
LATENCY_S = 0.2
LATENCY_CALLS = (5, 200)
"""Fewest and most synchronous calls; between them, as many as fit into ``LATENCY_S``."""

MIN_BATCH_S = 1e-6
"""Below this a batch is taken to last this long, so that a window has a bounded number of them."""

MOST_UNITS = 1 << 20
MIN_UNFINISHED_S = 0.005
"""A fetch that is slower than its repetition by less is a cold copy, not unfinished work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How long and how often to measure; every duration in seconds.

    Attributes:
        seconds: time per repeat in which model windows alternate with yardstick windows.
        window_s: least length of one model window.
        yardstick_s: length to aim at for one yardstick window.
        warmup_s: most that warm-up may take after the first call.
        steady_rel: warm-up ends when the last three windows agree within this fraction.
        min_windows: fewest windows, even if they take longer than ``seconds``.
        trace: whether this repeat also takes the kernel path.
    """

    seconds: float = 1.5
    window_s: float = 0.03
    yardstick_s: float = 0.01
    warmup_s: float = 2.0
    steady_rel: float = 0.10
    min_windows: int = 5
    trace: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One stretch of queued batches with one synchronisation at its end, and its yardstick.

    Attributes:
        batches: inferences inside the clock.
        wall_s: wall time of the window.
        busy_s: process CPU time of the window on a CPU target, else None.
        yardstick_wall_s: wall time per unit of the yardstick's work around this window; None in
            the uninterrupted stretch, which has no yardstick.
        yardstick_busy_s: CPU time per unit of the yardstick's work.
        switches: involuntary context switches during the window.
        faults: minor page faults during the window.
    """

    batches: int
    wall_s: float
    busy_s: float | None
    yardstick_wall_s: float | None = None
    yardstick_busy_s: float | None = None
    switches: int = 0
    faults: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Synchronous single calls, seconds."""

    p50_s: float
    p90_s: float
    p99_s: float
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Peaks at the profile; None where not known.

    Attributes:
        device_bytes: device allocator's peak.
        arena_bytes: CPU arena in use at its peak, exact, without weights.
        process_bytes: growth of the child's resident set from before the build to its peak.
    """

    device_bytes: int | None = None
    arena_bytes: int | None = None
    process_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What one fresh child process measured of one build.

    Attributes:
        windows: after warm-up, in order, each with its yardstick.
        straight: the uninterrupted stretch, without yardstick.
        yardstick: identity of the yardstick's work and library.
    """

    windows: tuple[Window, ...]
    straight: tuple[Window, ...]
    build_s: float
    first_call_s: float
    warmup_s: float
    steady: bool
    latency: Latency
    memory: Memory
    yardstick: str
    observed: Observed
    path: KernelPath | None = None

    @property
    def wall_s(self) -> float:
        """Sustained wall seconds per batch: all windows after warm-up."""
        return sum(w.wall_s for w in self.windows) / sum(w.batches for w in self.windows)

    @property
    def straight_rel(self) -> float:
        """Uninterrupted ÷ alternated time per batch: CPU time where known, else wall time."""
        if not self.straight:
            return 1.0
        if self.busy_s is not None:
            straight, windows = (
                median((w.busy_s or 0.0) / w.batches for w in some)
                for some in (self.straight, self.windows)
            )
        else:
            straight, windows = (
                median(w.wall_s / w.batches for w in some)
                for some in (self.straight, self.windows)
            )
        return straight / windows if windows else 1.0

    @property
    def sustained_s(self) -> float:
        """Wall seconds per batch to report: the uninterrupted figure where alternating changed it."""
        low, high = STRAIGHT_BOUNDS
        return self.wall_s if low <= self.straight_rel <= high else self.wall_s * self.straight_rel

    @property
    def busy_s(self) -> float | None:
        """CPU seconds per batch, None where not known."""
        if any(w.busy_s is None for w in self.windows):
            return None
        return sum(w.busy_s or 0.0 for w in self.windows) / sum(w.batches for w in self.windows)

    @property
    def wall_ratio(self) -> float:
        """Median over windows of wall time per batch ÷ its yardstick's; NaN without a yardstick."""
        return _ratio([(w.wall_s / w.batches, w.yardstick_wall_s) for w in self.windows])

    @property
    def busy_ratio(self) -> float | None:
        """Median over windows of CPU time per batch ÷ its yardstick's, None where not known."""
        if self.busy_s is None:
            return None
        return _ratio([((w.busy_s or 0.0) / w.batches, w.yardstick_busy_s) for w in self.windows])

    @property
    def yardstick_busy_s(self) -> float:
        """Median CPU seconds of one unit of the yardstick; NaN without a yardstick."""
        found = [w.yardstick_busy_s for w in self.windows if w.yardstick_busy_s]
        return median(found) if found else math.nan

    @property
    def burst_s(self) -> float:
        """Wall seconds per batch of the best window."""
        return min(w.wall_s / w.batches for w in self.windows)

    @property
    def fading_rel(self) -> float:
        """Last third ÷ first third of the windows' wall time per batch, minus 1; needs 6 windows."""
        third = len(self.windows) // 3
        if third < 2:
            return 0.0
        first = median(w.wall_s / w.batches for w in self.windows[:third])
        return median(w.wall_s / w.batches for w in self.windows[-third:]) / first - 1

    @property
    def contended(self) -> float:
        """Share (0–1) of the yardstick's wall time that it did not have the processor."""
        pairs = [
            (w.yardstick_busy_s, w.yardstick_wall_s)
            for w in self.windows
            if w.yardstick_busy_s is not None and w.yardstick_wall_s
        ]
        if not pairs:
            return math.nan
        return max(0.0, 1 - sum(b for b, _ in pairs) / sum(w for _, w in pairs))


def _ratio(pairs: list[tuple[float, float | None]]) -> float:
    ratios = [value / unit for value, unit in pairs if unit]
    return median(ratios) if ratios else math.nan


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """Raw samples and facts of one build at one profile, over several fresh processes.

    Attributes:
        batch: batch size asked for.
        batch_effective: the one measured; smaller when the asked one does not fit.
        items: what one batch counts as, in ``unit``.
    """

    repeats: tuple[Repeat, ...]
    batch: int
    batch_effective: int
    items: float
    unit: str = "samples"

    @property
    def wall_s(self) -> float:
        """Sustained wall seconds per batch, median over repeats."""
        return median(r.sustained_s for r in self.repeats)

    @property
    def throughput(self) -> float:
        """Sustained items per second."""
        return self.items / self.wall_s

    @property
    def busy_s(self) -> float | None:
        """CPU seconds per batch, median over repeats; None where not known."""
        found = [r.busy_s for r in self.repeats if r.busy_s is not None]
        return median(found) if len(found) == len(self.repeats) else None

    @property
    def path(self) -> KernelPath | None:
        """The kernel path, from the repeat that took it."""
        return next((r.path for r in self.repeats if r.path is not None), None)

    @property
    def observed(self) -> Observed:
        """The facts of the first repeat's build."""
        return self.repeats[0].observed


class Clock(Protocol):
    """Where time comes from; one per child, replaced in tests."""

    def wall(self) -> float:
        """Monotonic seconds."""

    def busy(self) -> float:
        """CPU seconds of this process, all threads."""

    def usage(self) -> tuple[int, int]:
        """Involuntary context switches and minor page faults of this process so far."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What the timed loop saw of one build; the durations of ``Repeat`` without its facts."""

    windows: tuple[Window, ...]
    straight: tuple[Window, ...]
    first_call_s: float
    warmup_s: float
    steady: bool
    latency: Latency


class Stopwatch:
    """Times one build whose inputs are already staged.

    The clock of a window starts before its first launch and stops after the synchronisation that
    follows its last one, so queued work is inside; staging inputs and fetching outputs are not.

    Args:
        build: the executable, with inputs staged.
        yardstick: the fixed work to alternate with.
        on_cpu: whether process CPU time is the model's busy time.
    """

    def __init__(
        self,
        build: Build,
        yardstick: Yardstick,
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
        warm, steady = self._warm_up(first.wall_s)
        batches = self._batches(warm[-1])
        units = self._units()
        with _no_garbage_collection():
            windows = self._alternate(batches, units)
            short = windows[-1].wall_s < STRAIGHT_LIMIT_S
            straight = tuple(self._window(batches) for _ in range(STRAIGHT_WINDOWS * short))
            latency = self._latency(windows[-1].wall_s / windows[-1].batches)
        self._check_finished(batches)
        return Timing(
            windows=windows,
            straight=straight,
            first_call_s=first.wall_s,
            warmup_s=sum(w.wall_s for w in warm),
            steady=steady,
            latency=latency,
        )

    def _window(self, batches: int) -> Window:
        clock, build = self._clock, self._build
        switches, faults = clock.usage()
        busy, wall = clock.busy(), clock.wall()
        for _ in range(batches):
            build.launch()
        build.synchronize()
        wall, busy = clock.wall() - wall, clock.busy() - busy
        more_switches, more_faults = clock.usage()
        if wall <= 0 or busy < 0:
            msg = f"the clock ran backwards: {batches} batches took {wall:g} s wall, {busy:g} s CPU"
            raise BuildError(msg)
        return Window(
            batches=batches,
            wall_s=wall,
            busy_s=busy if self._on_cpu else None,
            switches=more_switches - switches,
            faults=more_faults - faults,
        )

    def _warm_up(self, first_s: float) -> tuple[list[Window], bool]:
        windows: list[Window] = []
        batches = max(1, math.ceil(self._sampling.window_s / max(first_s, MIN_BATCH_S)))
        spent = 0.0
        while True:
            window = self._window(batches)
            windows.append(window)
            batches = self._batches(window)
            spent += window.wall_s
            last = [w.wall_s / w.batches for w in windows[-3:]]
            steady = len(last) == 3 and max(last) <= min(last) * (1 + self._sampling.steady_rel)
            if steady or spent >= self._sampling.warmup_s:
                return windows, steady

    def _batches(self, window: Window) -> int:
        per_batch = max(window.wall_s / window.batches, MIN_BATCH_S)
        return max(1, math.ceil(self._sampling.window_s / per_batch))

    def _units(self) -> int:
        units = 1
        while True:
            start = self._clock.wall()
            self._yardstick.run(units)
            spent = self._clock.wall() - start
            if spent >= self._sampling.yardstick_s / 2 or units >= MOST_UNITS:
                return max(1, round(units * self._sampling.yardstick_s / max(spent, 1e-9)))
            units *= 2

    def _alternate(self, batches: int, units: int) -> tuple[Window, ...]:
        windows: list[Window] = []
        clock = self._clock
        end = clock.wall() + self._sampling.seconds
        before = self._unit(units)
        while clock.wall() < end or len(windows) < self._sampling.min_windows:
            window = self._window(batches)
            after = self._unit(units)
            # The yardstick of a window is the mean of the two that enclose it: a neighbour that
            # comes or goes during the window is half in it on both sides.
            windows.append(
                replace(
                    window,
                    yardstick_wall_s=(before[0] + after[0]) / 2,
                    yardstick_busy_s=(before[1] + after[1]) / 2,
                )
            )
            before = after
        return tuple(windows)

    def _unit(self, units: int) -> tuple[float, float]:
        clock = self._clock
        busy, wall = clock.busy(), clock.wall()
        self._yardstick.run(units)
        return (clock.wall() - wall) / units, (clock.busy() - busy) / units

    def _latency(self, batch_s: float) -> Latency:
        calls = max(LATENCY_CALLS[0], min(LATENCY_CALLS[1], int(LATENCY_S / max(batch_s, 1e-9))))
        samples = []
        for _ in range(calls):
            start = self._clock.wall()
            self._build.launch()
            self._build.synchronize()
            samples.append(self._clock.wall() - start)
        p50, p90, p99 = np.percentile(samples, [50, 90, 99])
        return Latency(p50_s=float(p50), p90_s=float(p90), p99_s=float(p99), calls=calls)

    def _check_finished(self, batches: int) -> None:
        """Raise if fetching waits for work that the synchronisation should have waited for."""
        window = self._window(batches)
        fetches = []
        for _ in range(2):
            start = self._clock.wall()
            self._build.fetch()
            fetches.append(self._clock.wall() - start)
        waited = fetches[0] - fetches[1]
        if waited > max(window.wall_s, MIN_UNFINISHED_S):
            msg = (
                f"the clock stopped before the work was done: {batches} batches took "
                f"{window.wall_s:.3g} s up to synchronize(), then fetch() waited {waited:.3g} s "
                "for them; make the runtime's synchronize() wait for every launch"
            )
            raise BuildError(msg)


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
