"""The timed loop, with a clock that only moves when the fake build or yardstick works."""

from __future__ import annotations

import gc
import math
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import psutil
import pytest

from pytest_portability import measure
from pytest_portability.errors import BuildError
from pytest_portability.kernels import KernelPath
from pytest_portability.measure import Stopwatch, SystemClock, Timing
from pytest_portability.models import Arrays
from pytest_portability.runtimes import Observed
from pytest_portability.samples import Latency, Measurement, Memory, Repeat, Sampling, Window
from pytest_portability.yardstick import Yardstick

SAMPLING = Sampling(window_s=0.03, yardstick_s=0.01)
"""Of lengths that the costs below divide."""


@dataclass
class FakeClock:
    """Time moves by ``work`` alone; ``share`` of it is CPU time of this process."""

    now: float = 100.0
    cpu: float = 50.0
    share: float = 1.0
    switches: int = 0
    faults: int = 0
    others: float = 0.0
    parallel: int = 1

    def wall(self) -> float:
        """Monotonic seconds."""
        return self.now

    def busy(self) -> float:
        """CPU seconds."""
        return self.cpu

    def usage(self) -> tuple[int, int]:
        """Switches and faults."""
        return self.switches, self.faults

    def machine(self) -> float:
        """CPU seconds of all processes ÷ processors: this one's and ``others``."""
        return self.cpu / (psutil.cpu_count() or 1) + self.others * self.now

    def threads(self) -> dict[int, float]:
        """As many as work alike, and one that woke up for a moment."""
        return dict.fromkeys(range(self.parallel), self.cpu) | {-1: self.cpu / 100}

    def work(self, seconds: float) -> None:
        """Let time pass."""
        self.now += seconds
        self.cpu += seconds * self.share


@dataclass
class FakeBuild:
    """Takes ``cost(n)`` for its n-th inference; if asynchronous, whoever waits takes it.

    Attributes:
        events: what was called, in order.
        waits: whether ``synchronize`` waits for the work.
        fetch_s: what a fetch takes when everything is done.
    """

    clock: FakeClock
    cost: Callable[[int], float]
    asynchronous: bool = False
    waits: bool = True
    fetch_s: float = 0.0
    events: list[str] = field(default_factory=list)
    launched: int = 0
    queued_s: float = 0.0

    def launch(self) -> None:
        """Queue one inference, or do it."""
        self.events.append("launch")
        self.launched += 1
        self.queued_s += self.cost(self.launched)
        if not self.asynchronous:
            self._finish()

    def synchronize(self) -> None:
        """Wait for the queue, if this build does."""
        self.events.append("synchronize")
        self.clock.work(1e-9 if self.asynchronous else 0.0)
        if self.waits:
            self._finish()

    def fetch(self) -> Arrays:
        """Wait for the queue and copy."""
        self.events.append("fetch")
        self._finish()
        self.clock.work(self.fetch_s)
        return {"y": np.zeros(1)}

    def _finish(self) -> None:
        self.clock.work(self.queued_s)
        self.queued_s = 0.0

    def stage(self, inputs: Arrays) -> None:
        """Nothing to put anywhere."""

    def predict(self, inputs: Arrays) -> Arrays:
        """Not timed."""
        return inputs

    def observed(self) -> Observed:
        """Nothing was seen."""
        return Observed()

    def threads(self) -> int | None:
        """It has no pool."""
        return None

    def device_memory_bytes(self) -> int | None:
        """A CPU has none."""
        return None

    def close(self) -> None:
        """Nothing to free."""


@dataclass
class Bench:
    """A build, a yardstick and the clock both move."""

    clock: FakeClock
    build: FakeBuild
    unit: Callable[[int], float] = lambda _n: 0.001
    units: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    def run_yardstick(self, units: int) -> float:
        """Let the yardstick's time pass."""
        self.units.append(units)
        self.build.events.append("yardstick")
        before = self.clock.cpu
        self.clock.work(units * self.unit(len(self.units)))
        return self.clock.cpu - before

    def time(self, *, on_cpu: bool = True, sampling: Sampling | None = None) -> Timing:
        """Time the build."""

        def made_for(threads: int) -> Yardstick:
            self.seen.append(threads)
            return Yardstick(id="fake", run=self.run_yardstick)

        watch = Stopwatch(
            self.build,
            made_for,
            sampling or SAMPLING,
            on_cpu=on_cpu,
            clock=self.clock,
        )
        return watch.run()


def bench(cost: float | Callable[[int], float], **build: bool | float) -> Bench:
    clock = FakeClock()
    each = cost if callable(cost) else lambda _n: float(cost)
    return Bench(clock, FakeBuild(clock, each, **build))  # type: ignore[arg-type] # its own fields


# --- windows ----------------------------------------------------------------------------------


def test_a_window_is_launches_and_one_synchronisation() -> None:
    made = bench(0.01)
    windows = made.time().windows
    assert {w.batches for w in windows} == {3}
    events = made.build.events
    start = events.index("yardstick") + 1 + measure.UNIT_CALLS + 1
    assert events[start : start + 5] == ["launch"] * 3 + ["synchronize", "yardstick"]
    assert "fetch" not in events[start:]


def test_short_batches_take_back_their_caches_before_the_clock_starts() -> None:
    made = bench(0.001)
    timing = made.time()
    events = made.build.events
    start = events.index("yardstick") + 1 + measure.UNIT_CALLS + 1
    settling = ["launch"] * 3 + ["synchronize"]
    assert events[start : start + 4] == settling
    assert events[start + 4 : start + 36] == ["launch"] * 30 + ["synchronize", "yardstick"]
    assert all(w.wall_s == pytest.approx(0.03) for w in timing.windows)


def test_work_that_was_only_queued_is_inside_the_clock() -> None:
    """The launches of an asynchronous build return at once; the synchronisation waits."""
    made = bench(0.01, asynchronous=True)
    assert made.time().windows[0].wall_s == pytest.approx(0.03, rel=1e-6)


def test_a_window_is_at_least_as_long_as_asked() -> None:
    for window in bench(0.007).time(sampling=replace(SAMPLING, window_s=0.1)).windows:
        assert window.batches == 15
        assert window.wall_s >= 0.1


def test_windows_go_on_until_the_time_is_over() -> None:
    """One window and one yardstick take 40 ms, and the first yardstick 10 ms."""
    assert len(bench(0.01).time(sampling=replace(SAMPLING, seconds=1.0)).windows) == 25


def test_there_are_a_few_windows_even_where_one_takes_longer_than_all_the_time() -> None:
    assert len(bench(2.0).time(sampling=replace(SAMPLING, seconds=0.5, min_windows=4)).windows) == 4


def test_cpu_time_is_the_models_on_a_cpu_only() -> None:
    made = bench(0.01)
    made.clock.share = 0.5
    assert made.time().windows[0].busy_s == pytest.approx(0.015)
    window = bench(0.01).time(on_cpu=False).windows[0]
    assert window.busy_s is None
    assert window.yardstick_busy_s is None
    assert window.yardstick_wall_s == pytest.approx(0.001)


def test_a_window_counts_switches_and_faults_of_its_own() -> None:
    made = bench(0.01)
    launch = made.build.launch

    def noisy() -> None:
        launch()
        made.clock.switches += 1
        made.clock.faults += 10

    made.build.launch = noisy  # type: ignore[method-assign] # a neighbour
    window = made.time().windows[0]
    assert (window.switches, window.faults) == (3, 30)


def test_a_window_has_the_mean_of_the_yardsticks_around_it() -> None:
    made = bench(0.01)
    # One unit to load and five to size the windows, of ten units each.
    made.unit = lambda n: 0.001 if n <= 6 else {7: 0.001, 8: 0.003, 9: 0.007}.get(n, 0.001)
    windows = made.time().windows
    assert [w.yardstick_wall_s for w in windows[:4]] == pytest.approx([0.002, 0.005, 0.004, 0.001])
    assert [w.yardstick_busy_s for w in windows[:2]] == pytest.approx([0.002, 0.005])


def test_the_yardstick_is_sized_without_its_slow_first_call_and_without_neighbours() -> None:
    made = bench(0.01)
    made.unit = lambda n: {1: 5.0, 2: 0.02, 3: 0.0005}.get(n, 0.001)
    made.time()
    assert made.units[: 1 + measure.UNIT_CALLS] == [1] * 6
    assert set(made.units[6:]) == {20}


def test_garbage_is_collected_before_and_not_during_the_windows() -> None:
    states = []

    def unit(_n: int) -> float:
        states.append(gc.isenabled())
        return 0.001

    made = bench(0.01)
    made.unit = unit
    made.time()
    assert not any(states[1 + measure.UNIT_CALLS :])
    assert gc.isenabled()


def test_garbage_collection_stays_off_where_it_was_off() -> None:
    gc.disable()
    try:
        bench(0.01).time()
        assert not gc.isenabled()
    finally:
        gc.enable()


# --- warm-up ----------------------------------------------------------------------------------


def test_warm_up_ends_when_three_windows_are_no_faster_than_the_three_before() -> None:
    timing = bench(0.01).time()
    assert timing.steady
    assert timing.warmup_s == pytest.approx(6 * 0.03)


def test_warm_up_goes_on_while_the_build_gets_faster() -> None:
    """The first five inferences take 100 ms to 60 ms, all later ones 50 ms."""
    made = bench(lambda n: 0.05 + max(0.0, 0.06 - 0.01 * n))
    timing = made.time()
    assert timing.steady
    assert timing.first_call_s == pytest.approx(0.1)
    assert timing.warmup_s == pytest.approx(0.09 + 0.08 + 0.07 + 0.06 + 4 * 0.05)


def test_a_neighbour_does_not_prolong_the_warm_up() -> None:
    """It makes every other inference twice as long; the build gets no faster."""
    timing = bench(lambda n: 0.05 if n % 2 else 0.1).time()
    assert timing.steady
    assert timing.warmup_s < 0.5


def test_warm_up_ends_when_its_time_is_over() -> None:
    made = bench(lambda n: 0.2 * 0.95**n)
    timing = made.time(sampling=replace(SAMPLING, warmup_s=1.0))
    assert not timing.steady
    assert 1.0 <= timing.warmup_s <= 1.2


def test_a_long_batch_that_gets_no_faster_is_steady_after_two() -> None:
    assert bench(1.5).time(sampling=replace(SAMPLING, seconds=0.1)).steady


def test_a_first_call_that_compiles_is_no_part_of_any_figure() -> None:
    timing = bench(lambda n: 30.0 if n == 1 else 0.01).time()
    assert timing.first_call_s == pytest.approx(30)
    assert timing.warmup_s < 1
    assert all(w.wall_s < 0.05 for w in timing.windows)


# --- latency ----------------------------------------------------------------------------------


def test_latency_is_of_synchronous_single_calls() -> None:
    made = bench(0.0095)
    timing = made.time()
    assert timing.latency.calls == 21
    assert made.build.events[-42:] == ["launch", "synchronize"] * 21
    assert timing.latency.p50_s == pytest.approx(0.0095)


def test_latency_takes_a_part_of_the_seconds_that_were_asked_for() -> None:
    timing = bench(0.002).time(sampling=replace(SAMPLING, seconds=0.3))
    assert timing.latency.calls == 20


def test_latency_percentiles_are_those_of_the_samples() -> None:
    """The latency calls, the last 21, take 1 to 21 ms."""
    dry = bench(0.0095)
    dry.time()
    before = dry.build.launched - 21
    latency = bench(lambda n: 0.0095 if n <= before else (n - before) * 0.001).time().latency
    assert latency.p50_s == pytest.approx(0.011)
    assert latency.p90_s == pytest.approx(0.019)
    assert latency.p99_s == pytest.approx(0.0208)


def test_a_long_batch_needs_no_calls_of_their_own_for_its_latency() -> None:
    made = bench(0.5)
    timing = made.time()
    assert timing.latency.calls == len(timing.windows)
    assert made.build.events[-1] == "yardstick"


# --- bounds -----------------------------------------------------------------------------------


def test_a_batch_of_seconds_is_measured_with_few_of_them() -> None:
    """A first call, one to warm up and five windows: at 10 s each, inside the limit of 120 s."""
    made = bench(10.0)
    timing = made.time()
    assert made.build.launched == 7
    assert timing.latency.calls == 5
    assert made.clock.now - 100 < 75


@pytest.mark.parametrize("cost", [1e-7, 1e-9])
def test_a_batch_below_a_microsecond_is_launched_a_bounded_number_of_times(cost: float) -> None:
    made = bench(cost)
    timing = made.time(sampling=replace(SAMPLING, seconds=0.1, window_s=0.001))
    assert max(w.batches for w in timing.windows) <= 1001
    assert timing.latency.calls == 200


def test_a_yardstick_below_a_microsecond_is_run_a_bounded_number_of_times() -> None:
    made = bench(0.01)
    made.unit = lambda _n: 1e-9
    made.time()
    assert max(made.units) == 10_000


def test_a_slow_yardstick_is_run_once_per_window() -> None:
    made = bench(0.01)
    made.unit = lambda _n: 0.5
    made.time()
    assert max(made.units) == 1


# --- the uninterrupted stretch ------------------------------------------------------------------


def test_a_short_uninterrupted_stretch_has_no_yardstick_in_it() -> None:
    made = bench(0.01)
    timing = made.time()
    assert len(timing.straight) == measure.STRAIGHT_WINDOWS
    assert all(w.yardstick_wall_s is None for w in timing.straight)
    events = made.build.events
    last = len(events) - events[::-1].index("yardstick")
    assert events[last : last + 60] == (["launch"] * 3 + ["synchronize"]) * 15


def test_a_window_of_one_long_batch_needs_no_uninterrupted_stretch() -> None:
    assert bench(0.2).time().straight == ()


# --- what is refused --------------------------------------------------------------------------


def test_a_clock_that_runs_backwards_is_an_error() -> None:
    made = bench(lambda n: 0.01 if n < 5 else -0.01)
    expected = r"the clock stood still or ran backwards: 3 turns took -0\.0\d+ s wall"
    with pytest.raises(BuildError, match=expected):
        made.time()


def test_a_clock_that_runs_backwards_while_the_yardstick_works_is_an_error() -> None:
    made = bench(0.01)
    made.unit = lambda n: 0.001 if n < 9 else -0.001
    with pytest.raises(BuildError, match=r"ran backwards: 10 turns took -0\.01 s wall"):
        made.time()


def test_a_clock_that_stands_still_is_an_error_and_not_an_endless_loop() -> None:
    made = bench(0.0)
    with pytest.raises(BuildError, match=r"stood still or ran backwards: 1 turns took 0 s wall"):
        made.time()


@pytest.mark.parametrize("cost", [0.01, 0.0005, 3.0])
def test_a_synchronisation_that_does_not_wait_is_an_error(cost: float) -> None:
    made = bench(cost, asynchronous=True, waits=False)
    expected = (
        r"^the clock stopped before the work was done: \d+ batches took \S+ s up to "
        r"synchronize\(\), then fetch\(\) waited \S+ s for them; make the runtime's synchronize\(\)"
    )
    with pytest.raises(BuildError, match=expected):
        made.time(sampling=replace(SAMPLING, window_s=0.01, warmup_s=0.5))
    assert "yardstick" not in made.build.events


@pytest.mark.parametrize("fetch_s", [0.0, 0.02, 5.0])
def test_a_slow_fetch_is_not_taken_for_unfinished_work(fetch_s: float) -> None:
    assert bench(0.01, asynchronous=True, fetch_s=fetch_s).time().windows


def test_a_first_fetch_that_loads_something_is_not_taken_for_unfinished_work() -> None:
    made = bench(0.01)
    fetch = made.build.fetch

    def loading() -> Arrays:
        if made.build.events.count("fetch") == 0:
            made.clock.work(2.0)
        return fetch()

    made.build.fetch = loading  # type: ignore[method-assign] # compiles a conversion
    assert made.time().windows


def test_a_neighbour_that_delays_a_fetch_or_two_is_not_taken_for_unfinished_work() -> None:
    made = bench(0.01)
    fetch = made.build.fetch

    def delayed() -> Arrays:
        if made.build.events.count("fetch") in (1, 3):  # the first of a pair each time
            made.clock.work(2.0)
        return fetch()

    made.build.fetch = delayed  # type: ignore[method-assign] # as where it lost the processor
    assert made.time().windows
    assert made.build.events.count("fetch") == 7


def test_what_a_launch_raises_comes_out_and_garbage_is_collected_again() -> None:
    def fail(n: int) -> float:
        if n > 20:
            msg = "the kernel refused"
            raise BuildError(msg)
        return 0.01

    with pytest.raises(BuildError, match=r"^the kernel refused$"):
        bench(fail).time()
    assert gc.isenabled()


# --- statistics -------------------------------------------------------------------------------


def window(
    wall: float, busy: float | None = None, *, batches: int = 1, unit: float | None = 0.001
) -> Window:
    return Window(
        batches=batches,
        wall_s=wall,
        busy_s=wall if busy is None else busy,
        yardstick_wall_s=unit,
        yardstick_busy_s=unit,
    )


def repeat(windows: Sequence[Window], straight: Sequence[Window] = ()) -> Repeat:
    return Repeat(
        windows=tuple(windows),
        straight=tuple(straight),
        build_s=0.1,
        first_call_s=0.02,
        warmup_s=0.1,
        steady=True,
        latency=Latency(p50_s=0.01, p90_s=0.01, p99_s=0.01, calls=5),
        memory=Memory(),
        yardstick="fake",
        observed=Observed(),
    )


def without_cpu_time(windows: Sequence[Window]) -> list[Window]:
    return [replace(w, busy_s=None, yardstick_busy_s=None) for w in windows]


MIXED = repeat([window(0.04, 0.02, batches=2), window(0.03, 0.03), window(0.08, 0.04, batches=4)])


def test_time_per_batch_weighs_all_windows_by_their_batches() -> None:
    assert MIXED.wall_s == pytest.approx(0.15 / 7)
    assert MIXED.busy_s == pytest.approx(0.09 / 7)


def test_ratios_are_of_what_a_tenth_of_the_windows_kept_below() -> None:
    """Neighbours lengthen windows of the model and of the yardstick, and not the same ones."""
    assert MIXED.wall_ratio == pytest.approx(20)
    assert MIXED.busy_ratio == pytest.approx(10)
    slow = [window(0.02 + 0.001 * n, unit=0.001 if n else 0.004) for n in range(30)]
    assert repeat(slow).busy_ratio == pytest.approx(23)
    assert repeat(slow).yardstick_s == pytest.approx(0.001)


def test_the_burst_is_the_best_window() -> None:
    assert MIXED.burst_s == pytest.approx(0.02)


def test_one_window_is_enough_for_every_figure() -> None:
    one = repeat([window(0.02)])
    assert (one.wall_s, one.busy_s, one.burst_s) == (0.02, 0.02, 0.02)
    assert one.wall_ratio == one.busy_ratio == pytest.approx(20)
    assert (one.fading_rel, one.contended, one.straight_rel) == (0, 0, 1)


def test_windows_without_any_spread_have_their_own_value_as_every_figure() -> None:
    same = repeat([window(0.02)] * 9, [window(0.02, unit=None)] * 5)
    assert (same.straight_rel, same.fading_rel) == (1, 0)


@pytest.mark.parametrize("unit", [math.nan, 0.0, None, -0.001])
def test_a_yardstick_that_is_no_number_is_no_yardstick(unit: float | None) -> None:
    blind = repeat([window(0.02, unit=unit)] * 3)
    assert math.isnan(blind.wall_ratio)
    assert blind.busy_ratio is not None
    assert math.isnan(blind.busy_ratio)
    assert math.isnan(blind.yardstick_s)
    assert math.isnan(blind.contended)
    assert blind.wall_s == pytest.approx(0.02)


def test_one_window_with_a_bad_yardstick_does_not_spoil_the_others() -> None:
    mixed = repeat([window(0.02), window(0.02, unit=math.nan), window(0.02)])
    assert mixed.wall_ratio == pytest.approx(20)
    assert mixed.yardstick_s == pytest.approx(0.001)


def test_an_accelerator_has_no_cpu_time_and_no_contention() -> None:
    """The host's CPU time while the device works says nothing of neighbours."""
    device = repeat(without_cpu_time([window(0.02)] * 6))
    assert device.busy_s is None
    assert device.busy_ratio is None
    assert math.isnan(device.contended)
    assert device.yardstick_s == pytest.approx(0.001)


def test_contention_is_the_time_the_yardstick_had_no_processor() -> None:
    windows = [replace(window(0.02), yardstick_busy_s=busy) for busy in (0.0006, 0.0009)]
    assert repeat(windows).contended == pytest.approx(0.25)


def test_neighbours_count_where_the_work_is_on_several_threads() -> None:
    """They may leave the yardstick's one thread alone and still be in the way of the model's."""
    one = repeat([window(0.02)] * 3)
    two = replace(one, yardstick="2xgemm numpy")
    assert replace(two, neighbours=0.3).contended == pytest.approx(0.3)
    assert replace(one, neighbours=0.3).contended == 0
    assert replace(two, neighbours=math.nan).contended == 0


def test_waking_the_threads_of_a_yardstick_is_no_contention() -> None:
    """Work on one thread has a yardstick on one, which is awake already."""
    late = repeat([replace(window(0.02), yardstick_busy_s=0.00096)])
    much = repeat([replace(window(0.02), yardstick_busy_s=0.0007)])
    assert late.contended == pytest.approx(0.04)
    assert replace(late, yardstick="2xgemm numpy").contended == 0
    assert replace(much, yardstick="2xgemm numpy").contended == pytest.approx(0.25)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_the_yardstick_is_made_for_the_threads_that_work_at_once(threads: int) -> None:
    made = bench(lambda _n: 0.01)
    made.clock.parallel = threads
    assert made.time().yardstick == "fake"
    assert made.seen == [threads]


def test_without_times_of_threads_their_number_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FakeClock, "threads", lambda _self: {})
    made = bench(lambda _n: 0.01)
    made.time()
    assert made.seen == [0]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the time of each thread")
def test_the_time_of_each_thread_is_its_own() -> None:
    clock, done = SystemClock(), threading.Event()
    idle = threading.Thread(target=done.wait)
    idle.start()
    before = clock.threads()
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass
    after = clock.threads()
    done.set()
    idle.join()
    spent = {thread: after[thread] - before[thread] for thread in before}
    assert spent[threading.get_native_id()] >= 0.05
    assert spent[idle.native_id or 0] < 0.05


def test_a_slow_window_in_warm_up_does_not_make_the_others_short() -> None:
    """Its neighbour is gone when the windows begin."""
    made = bench(lambda n: 0.03 if 15 < n <= 18 else 0.01)
    assert all(w.batches == 3 for w in made.time().windows)


def test_contention_is_never_negative() -> None:
    """CPU clocks tick more coarsely than the wall clock."""
    assert repeat([replace(window(0.02), yardstick_busy_s=0.002)]).contended == 0


@pytest.mark.parametrize(
    ("uninterrupted", "sustained"),
    [(0.0200, 0.02), (0.0220, 0.022), (0.0180, 0.018)],
)
def test_the_figure_is_the_uninterrupted_one(uninterrupted: float, sustained: float) -> None:
    windows, straight = [window(0.02)] * 6, [window(uninterrupted, unit=None)] * 5
    device = repeat(without_cpu_time(windows), without_cpu_time(straight))
    for one in repeat(windows, straight), device:
        assert replace(measurement(0.02), repeats=(one,)).wall_s == pytest.approx(sustained)


def test_one_odd_uninterrupted_stretch_does_not_change_the_figure() -> None:
    """Nor does a neighbour that came during some of its windows."""
    disturbed = [window(0.02, unit=None), *[window(0.03, unit=None)] * 4]
    calm, odd = (repeat([window(0.02)] * 6, [window(w, unit=None)] * 5) for w in (0.02, 0.03))
    for repeats in (calm, odd, calm), (repeat([window(0.02)] * 6, disturbed),):
        assert replace(measurement(0.02), repeats=repeats).wall_s == pytest.approx(0.02)


def test_the_uninterrupted_stretch_is_compared_by_cpu_time_where_that_is_known() -> None:
    """A neighbour that came just then must not count as an effect of alternating."""
    assert repeat([window(0.02, 0.02)] * 6, [window(0.08, 0.02)] * 5).straight_rel == 1


def test_fading_compares_the_last_third_with_the_first() -> None:
    walls = [0.020, 0.020, 0.021, 0.022, 0.023, 0.025]
    assert repeat([window(w) for w in walls]).fading_rel == pytest.approx(0.2)


def test_fading_needs_six_windows() -> None:
    assert repeat([window(0.01), *[window(0.02)] * 4]).fading_rel == 0


def measurement(*walls: float, items: float = 8.0) -> Measurement:
    repeats = tuple(repeat([window(w)] * 3) for w in walls)
    return Measurement(repeats=repeats, batch=8, batch_effective=8, items=items)


def test_a_measurement_takes_the_median_of_its_repeats() -> None:
    three = measurement(0.01, 0.02, 0.09)
    assert three.wall_s == pytest.approx(0.02)
    assert three.busy_s == pytest.approx(0.02)
    assert three.throughput == pytest.approx(400)


def test_cpu_time_counts_only_where_every_repeat_knows_it() -> None:
    known, unknown = repeat([window(0.02)]), repeat(without_cpu_time([window(0.02)]))
    mixed = replace(measurement(0.02), repeats=(known, unknown))
    assert mixed.busy_s is None


def test_the_kernel_path_is_that_of_the_repeat_that_took_it() -> None:
    path = KernelPath(runtime="fake")
    two = measurement(0.02, 0.02)
    assert two.path is None
    traced = replace(two, repeats=(two.repeats[0], replace(two.repeats[1], path=path)))
    assert traced.path is path


def test_the_facts_are_those_of_the_first_repeat() -> None:
    two = measurement(0.02, 0.02)
    first = replace(two.repeats[0], observed=Observed(precision="bf16"))
    assert replace(two, repeats=(first, two.repeats[1])).observed.precision == "bf16"


# --- the machine's clock ------------------------------------------------------------------------


def test_the_machines_clock_never_runs_backwards() -> None:
    clock = SystemClock()
    before = clock.wall(), clock.busy(), *clock.usage()
    after = clock.wall(), clock.busy(), *clock.usage()
    assert all(b <= a for b, a in zip(before, after, strict=True))


def test_the_machines_clock_counts_nothing_where_the_platform_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert SystemClock().usage() == (0, 0)


def test_a_build_is_timed_by_the_machines_clock_unless_told_otherwise() -> None:
    build = FakeBuild(FakeClock(), lambda _n: 0.0)

    def work(units: int) -> float:
        np.ones(1000 * units).sum()
        return 0.0

    yardstick = Yardstick(id="fake", run=work)
    sampling = Sampling(seconds=0.01, window_s=0.001, yardstick_s=0.001, warmup_s=0.01)
    timing = Stopwatch(build, lambda _seen: yardstick, sampling, on_cpu=True).run()
    assert len(timing.windows) >= sampling.min_windows
    assert all(w.wall_s > 0 for w in timing.windows)
