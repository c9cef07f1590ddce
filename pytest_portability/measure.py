"""Sampling, raw samples and the timed loop, and nothing else."""

from __future__ import annotations

import contextlib
import gc
import math
import time
from collections.abc import Callable, Iterator
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

MIN_TURN_S = 1e-6
"""A batch or a unit of the yardstick is taken to last at least this long, so that a window has a
bounded number of them."""

UNIT_CALLS = 5
"""Single units of the yardstick to time before its windows are sized: a neighbour only ever makes
one longer, so the least of them counts."""

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
        yardstick_busy_s: CPU time per unit of the yardstick's work on a CPU target, else None.
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

        def typical(windows: tuple[Window, ...]) -> float:
            by_wall = self.busy_s is None
            times = (w.wall_s if by_wall else w.busy_s or 0.0 for w in windows)
            return median(time / w.batches for time, w in zip(times, windows, strict=True))

        alternated = typical(self.windows)
        return typical(self.straight) / alternated if self.straight and alternated else 1.0

    @property
    def sustained_s(self) -> float:
        """Wall seconds per batch to report: uninterrupted where alternating changed the figure."""
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
        """Median seconds of one unit of the yardstick: CPU time where known, else wall time.

        NaN without a yardstick.
        """
        busy = [w.yardstick_busy_s for w in self.windows]
        found = busy if any(busy) else [w.yardstick_wall_s for w in self.windows]
        known = [unit for unit in found if unit is not None and unit > 0]
        return median(known) if known else math.nan

    @property
    def burst_s(self) -> float:
        """Wall seconds per batch of the best window."""
        return min(w.wall_s / w.batches for w in self.windows)

    @property
    def fading_rel(self) -> float:
        """Wall time per batch, last ÷ first third of the windows, minus 1; 0 below 6 windows."""
        third = len(self.windows) // 3
        if third < 2:
            return 0.0
        first = median(w.wall_s / w.batches for w in self.windows[:third])
        return median(w.wall_s / w.batches for w in self.windows[-third:]) / first - 1

    @property
    def contended(self) -> float:
        """Share (0–1) of the yardstick's wall time that it did not have the processor.

        NaN where its CPU time is not known.
        """
        pairs = [
            (w.yardstick_busy_s, w.yardstick_wall_s)
            for w in self.windows
            if w.yardstick_busy_s is not None and (w.yardstick_wall_s or 0.0) > 0
        ]
        if not pairs:
            return math.nan
        return max(0.0, 1 - sum(b for b, _ in pairs) / sum(w or 0.0 for _, w in pairs))


def _ratio(pairs: list[tuple[float, float | None]]) -> float:
    # NaN and what a coarse clock takes for 0 are both no yardstick; neither is above 0.
    ratios = [value / unit for value, unit in pairs if unit is not None and unit > 0]
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
        self._build.fetch()  # the first one may load a conversion; see ``_check_finished``
        warm, steady = self._warm_up(first.wall_s)
        self._check_finished(warm[-1])
        batches = self._batches(warm[-1])
        units = self._units()
        with _no_garbage_collection():
            windows = self._alternate(batches, units)
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
        )

    def _timed(self, work: Callable[[int], None], turns: int) -> tuple[float, float]:
        """Wall and CPU seconds of ``work(turns)``."""
        clock = self._clock
        busy, wall = clock.busy(), clock.wall()
        work(turns)
        wall, busy = clock.wall() - wall, clock.busy() - busy
        if not wall > 0 or not busy >= 0:
            msg = f"the clock stood still or ran backwards: {turns} turns took {wall:g} s wall "
            msg += f"and {busy:g} s CPU time"
            raise BuildError(msg)
        return wall, busy

    def _infer(self, batches: int) -> None:
        for _ in range(batches):
            self._build.launch()
        self._build.synchronize()

    def _window(self, batches: int) -> Window:
        switches, faults = self._clock.usage()
        wall, busy = self._timed(self._infer, batches)
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
            last = [w.wall_s / w.batches for w in windows[-3:]]
            steady = len(last) == 3 and max(last) <= min(last) * (1 + self._sampling.steady_rel)
            if steady or sum(w.wall_s for w in windows) >= self._sampling.warmup_s:
                return windows, steady
            windows.append(self._window(self._batches(windows[-1])))

    def _batches(self, window: Window) -> int:
        return self._turns(self._sampling.window_s, window.wall_s / window.batches)

    @staticmethod
    def _turns(length_s: float, turn_s: float) -> int:
        return max(1, math.ceil(length_s / max(turn_s, MIN_TURN_S)))

    def _units(self) -> int:
        self._yardstick.run(1)  # loads the library's kernels
        unit_s = min(self._timed(self._yardstick.run, 1)[0] for _ in range(UNIT_CALLS))
        return self._turns(self._sampling.yardstick_s, unit_s)

    def _alternate(self, batches: int, units: int) -> tuple[Window, ...]:
        windows: list[Window] = []
        end = self._clock.wall() + self._sampling.seconds
        before = self._timed(self._yardstick.run, units)
        while len(windows) < self._sampling.min_windows or self._clock.wall() < end:
            window = self._window(batches)
            after = self._timed(self._yardstick.run, units)
            # The yardstick of a window is the mean of the two that enclose it: a neighbour that
            # comes or goes during the window is half in it on both sides.
            wall, busy = ((a + b) / 2 / units for a, b in zip(before, after, strict=True))
            # The host's CPU time says nothing of a yardstick that runs on an accelerator.
            unit_busy = busy if self._on_cpu else None
            windows.append(replace(window, yardstick_wall_s=wall, yardstick_busy_s=unit_busy))
            before = after
        return tuple(windows)

    def _latency(self, windows: tuple[Window, ...]) -> Latency:
        batch_s = median(w.wall_s / w.batches for w in windows)
        if windows[0].batches == 1:  # each was a synchronous single call already
            samples = [w.wall_s for w in windows]
        else:
            fewest, most = LATENCY_CALLS
            calls = max(fewest, min(most, int(LATENCY_S / batch_s)))
            samples = [self._timed(self._infer, 1)[0] for _ in range(calls)]
        p50, p90, p99 = (float(p) for p in np.percentile(samples, [50, 90, 99]))
        return Latency(p50_s=p50, p90_s=p90, p99_s=p99, calls=len(samples))

    def _check_finished(self, window: Window) -> None:
        """Raise if fetching waits for work that the synchronisation should have waited for.

        Args:
            window: the latest one; nothing was launched since.
        """
        waits = []
        for _ in range(2):
            start = self._clock.wall()
            self._build.fetch()
            waits.append(self._clock.wall() - start)
        waited = waits[0] - waits[1]
        if waited > max(window.wall_s, MIN_UNFINISHED_S):
            msg = (
                f"the clock stopped before the work was done: {window.batches} batches took "
                f"{window.wall_s:.3g} s up to synchronize(), then fetch() waited {waited:.3g} s "
                "for them; make the runtime's synchronize() wait for every launch"
            )
            raise BuildError(msg)


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
