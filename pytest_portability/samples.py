"""Raw samples of a build, and the figures that follow from them. Knows no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from pytest_portability.kernels import KernelPath
from pytest_portability.runtimes import Observed
from pytest_portability.sensors import Sensors
from pytest_portability.yardstick import threads_of

WAKING = 0.05
"""Share of a yardstick window on several threads that goes by until all of them are awake; measured
on an idle virtual machine."""

UNDISTURBED = 10
"""One window in so many is taken to have run undisturbed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How long and how often to measure; every duration in seconds.

    Attributes:
        seconds: time per repeat in which model windows alternate with yardstick windows.
        window_s: least length of one model window.
        yardstick_s: length to aim at for one yardstick window.
        warmup_s: most that warm-up may take after the first call.
        steady_rel: warm-up ends when the best of three windows is not better than the best of the
            three before by more than this fraction.
        min_windows: fewest windows, even if they take longer than ``seconds``.
        trace: whether this repeat also takes the kernel path.
    """

    seconds: float = 1.5
    window_s: float = 0.01
    yardstick_s: float = 0.005
    warmup_s: float = 2.0
    steady_rel: float = 0.05
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
        device_bytes: device allocator's peak; of a runtime that does not tell it, growth of what
            the driver says that the child holds, from before the build to after it was timed.
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
        neighbours: share (0–1) of the machine's processors that other processes used meanwhile,
            NaN where unknown.
        at_once: CPU time of all threads ÷ the busiest one's, from 1 on; NaN where unknown.
        copy_bandwidth: bytes copied per second by one thread, NaN where unknown.
        sensors: what the device's sensors saw around the timed part, None if they were not read.
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
    neighbours: float = math.nan
    at_once: float = math.nan
    copy_bandwidth: float = math.nan
    sensors: Sensors | None = None

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
            return _undisturbed([t / w.batches for t, w in zip(times, windows, strict=True)])

        rel = typical(self.straight) / typical(self.windows)
        return rel if math.isfinite(rel) else 1.0

    @property
    def busy_s(self) -> float | None:
        """CPU seconds per batch, None where not known."""
        if any(w.busy_s is None for w in self.windows):
            return None
        return sum(w.busy_s or 0.0 for w in self.windows) / sum(w.batches for w in self.windows)

    @property
    def wall_ratio(self) -> float:
        """Undisturbed wall time per batch ÷ the yardstick's; NaN without a yardstick."""
        windows = self.windows
        return _ratio(
            [w.wall_s / w.batches for w in windows], [w.yardstick_wall_s for w in windows]
        )

    @property
    def busy_ratio(self) -> float | None:
        """Undisturbed CPU time per batch ÷ the yardstick's, None where not known."""
        if self.busy_s is None:
            return None
        windows = self.windows
        busy = [(w.busy_s or 0.0) / w.batches for w in windows]
        return _ratio(busy, [w.yardstick_busy_s for w in windows])

    @property
    def wall_unrest_rel(self) -> float:
        """Wall time per batch of the median window ÷ an undisturbed one's, minus 1."""
        return _unrest([w.wall_s / w.batches for w in self.windows])

    @property
    def busy_unrest_rel(self) -> float | None:
        """CPU time per batch of the median window ÷ an undisturbed one's, minus 1; None likewise.

        Of neighbours that no counter shows, such as another machine on the same core, this is the
        only witness.
        """
        if self.busy_s is None:
            return None
        return _unrest([(w.busy_s or 0.0) / w.batches for w in self.windows])

    @property
    def yardstick_s(self) -> float:
        """Undisturbed seconds of one unit of the yardstick: CPU time where known, else wall time.

        NaN without a yardstick.
        """
        busy = [w.yardstick_busy_s for w in self.windows]
        return _undisturbed(busy if any(busy) else [w.yardstick_wall_s for w in self.windows])

    @property
    def burst_s(self) -> float:
        """Wall seconds per batch of the best window."""
        return min(w.wall_s / w.batches for w in self.windows)

    @property
    def fading_rel(self) -> float:
        """Wall time per batch, last ÷ first third of the windows, minus 1; 0 below 6 windows."""
        return fading(self.windows)

    @property
    def contended(self) -> float:
        """Share (0–1) of the processor that neighbours took from the work, NaN where unknown.

        What the yardstick missed of its wall time; for one on several threads, less what waking
        them costs, and at least the share of the machine that others used.
        """
        pairs = [
            (w.yardstick_busy_s, w.yardstick_wall_s)
            for w in self.windows
            if w.yardstick_busy_s is not None and (w.yardstick_wall_s or 0.0) > 0
        ]
        if not pairs:
            return math.nan
        parallel = threads_of(self.yardstick) > 1
        got = sum(b for b, _ in pairs) / sum(w or 0.0 for _, w in pairs)
        missed = max(0.0, 1 - got - (WAKING if parallel else 0.0))
        return max(missed, self.neighbours) if parallel and self.neighbours > 0 else missed


def fading(windows: Sequence[Window]) -> float:
    """Wall time per batch, last ÷ first third of the windows, minus 1; 0 below 6 windows."""
    third = len(windows) // 3
    if third < 2:
        return 0.0
    first = median(w.wall_s / w.batches for w in windows[:third])
    return median(w.wall_s / w.batches for w in windows[-third:]) / first - 1


def _ratio(times: Sequence[float], units: Sequence[float | None]) -> float:
    return _undisturbed(times) / _undisturbed(units)


def _unrest(times: Sequence[float]) -> float:
    least = _undisturbed(times)
    return median(times) / least - 1 if least > 0 else math.nan


def _undisturbed(times: Sequence[float | None]) -> float:
    """The time that a tenth of the windows kept below; NaN where none is known.

    Neighbours, a shared cache and a core shared with another machine only ever make a window
    longer. On an idle virtual machine this quantile differed between fresh processes up to three
    times less than the median did, for ONNX Runtime on one thread; for torch hardly less.
    """
    # NaN and what a coarse clock takes for 0 are both unknown; neither is above 0.
    known = sorted(time for time in times if time is not None and time > 0)
    return known[len(known) // UNDISTURBED] if known else math.nan


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
    def straight_rel(self) -> float:
        """Uninterrupted ÷ alternated time per batch, median over repeats."""
        return median(r.straight_rel for r in self.repeats)

    @property
    def wall_s(self) -> float:
        """Sustained wall seconds per batch, median over repeats, without alternating's effect."""
        return median(r.wall_s for r in self.repeats) * self.straight_rel

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
    def throttled(self) -> tuple[str, ...]:
        """Why the device was throttled in at least half of the repeats; empty where unknown."""
        seen = [reason for r in self.repeats if r.sensors for reason in r.sensors.throttled]
        return tuple(sorted({x for x in seen if 2 * seen.count(x) >= len(self.repeats)}))

    @property
    def neighbours(self) -> int | None:
        """Other processes on the accelerator, upper median of the repeats; None if unknown."""
        seen = [r.sensors.neighbours for r in self.repeats if r.sensors]
        known = sorted(count for count in seen if count is not None)
        return known[len(known) // 2] if known else None

    @property
    def path(self) -> KernelPath | None:
        """The kernel path, from the repeat that took it."""
        return next((r.path for r in self.repeats if r.path is not None), None)

    @property
    def observed(self) -> Observed:
        """The facts of the first repeat's build."""
        return self.repeats[0].observed
