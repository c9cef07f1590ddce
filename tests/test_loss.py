"""The interval of a loss knows the spread between processes and claims no more than it may."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import scipy.stats  # type: ignore[import-untyped]  # it ships no types
from hypothesis import given
from hypothesis import strategies as st
from synthetic import figures, record, steady

from pytest_portability.loss import (
    CLAIM,
    INSIDE,
    RAW_SPREAD,
    Interval,
    Prior,
    Sample,
    crowding,
    expected,
    loss,
    memory_drift,
    t_quantile,
)
from pytest_portability.records import Axis, Record

PRIOR = Prior(0.01)


def sample(level: float, repeats: int = 4, spread: float = 0.008) -> Sample:
    return Sample(figures(None, steady(level, repeats, spread)).wall, repeats)


def held(
    check: Sample, baseline: Sample, prior: Prior = PRIOR, *, relative: bool = True
) -> Interval:
    found = loss("wall", check, baseline, prior, relative=relative)
    assert found is not None
    return found


@pytest.mark.parametrize("level", [0.9, 0.975, 0.999, INSIDE, CLAIM])
@pytest.mark.parametrize("freedom", [8, 10, 14, 18.5, 40, 1000])
def test_the_quantile_agrees_with_scipy(level: float, freedom: float) -> None:
    assert t_quantile(level, freedom) == pytest.approx(scipy.stats.t.ppf(level, freedom), rel=5e-3)


def test_the_loss_is_the_throughput_lost() -> None:
    """Twice the time is half of the throughput, half of the time is twice the throughput."""
    assert held(sample(20), sample(10)).value == pytest.approx(0.5)
    assert held(sample(5), sample(10)).value == pytest.approx(-1.0)


def test_a_claim_has_to_be_beyond_the_spread_between_sessions() -> None:
    """Repeats of one session that agree say nothing of the next one: 5.7 % was a false alarm."""
    base = sample(1.0, 6, 0.001)
    tight = Prior(0.001)
    assert not held(sample(1.045, 6, 0.001), base, tight).certain
    assert held(sample(1.06, 6, 0.001), base, tight).certain
    assert held(sample(1 / 1.06, 6, 0.001), base, tight).certain
    assert not held(sample(1.06, 4, 0.012), sample(1.0, 4, 0.012)).certain


@given(st.floats(0.1, 10), st.integers(1, 6), st.integers(1, 6), st.floats(0, 0.3))
def test_the_interval_holds_its_estimate_whatever_the_figures(
    level: float, mine: int, theirs: int, spread: float
) -> None:
    found = held(sample(level, mine, spread), sample(1.0, theirs, spread))
    assert found.low < found.value < found.high < 1


def test_more_repeats_and_less_spread_narrow_the_interval() -> None:
    def width(repeats: int, spread: float) -> float:
        found = held(sample(10, repeats, spread), sample(10, 4, spread))
        return found.high - found.low

    assert width(2, 0.01) > width(3, 0.01) > width(6, 0.01)
    assert width(4, 0.07) > 3 * width(4, 0.01)


def test_samples_that_spread_more_than_the_prior_are_believed() -> None:
    """With 6 degrees of freedom of their own, and the prior's none."""
    found = held(sample(10, 4, 0.10), sample(10, 4, 0.10))
    half = scipy.stats.t.ppf(INSIDE, 6) * 0.10 * math.sqrt(0.5)
    assert found.high == pytest.approx(-math.expm1(-half), rel=0.01)


def test_without_variance_or_with_one_repeat_the_prior_decides() -> None:
    same = held(sample(10, 4, 0.0), sample(10, 4, 0.0))
    spread = PRIOR.spread_rel * math.sqrt(PRIOR.freedom / (PRIOR.freedom + 6) / 2)
    half = scipy.stats.t.ppf(INSIDE, PRIOR.freedom + 6) * spread
    assert same.high == pytest.approx(-math.expm1(-half), rel=0.01)
    once = held(sample(10, 2), Sample(sample(10, 1).axis, 1))
    assert once.high > same.high


def test_a_spread_that_is_not_a_number_is_no_spread_seen() -> None:
    odd = Sample(Axis(seconds=0.01, ratio=10.0, spread_rel=math.nan), 4)
    assert held(odd, sample(10)).high == pytest.approx(
        held(sample(10, 4, 0.008), sample(10)).high, rel=0.3
    )


def test_another_yardstick_compares_raw_seconds_with_a_wider_prior() -> None:
    found = held(sample(10), sample(10), relative=False)
    assert not found.relative
    assert found.high > RAW_SPREAD / 2 > held(sample(10), sample(10)).high
    assert "raw seconds" in str(found)


def test_a_yardstick_that_failed_compares_raw_seconds() -> None:
    broken = Sample(Axis(seconds=0.012, ratio=math.nan, spread_rel=math.nan), 4)
    found = held(broken, sample(10))
    assert not found.relative
    assert found.value == pytest.approx(1 - 10 / 12, abs=0.01)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.nan, math.inf])
def test_figures_that_are_no_times_give_no_interval(seconds: float) -> None:
    broken = Sample(Axis(seconds=seconds, ratio=math.nan, spread_rel=0.0), 4)
    assert loss("busy", broken, sample(10), PRIOR) is None
    assert loss("busy", sample(10), broken, PRIOR) is None
    assert loss("busy", sample(10), Sample(sample(10).axis, 0), PRIOR) is None


def unrest(record: Record, rel: float | None) -> Record:
    """The same with other unrest on both axes."""
    now = record.figures
    assert now.busy is not None
    busy, wall = (replace(axis, unrest_rel=rel) for axis in (now.busy, now.wall))
    return replace(record, figures=replace(now, busy=busy, wall=wall))


def test_the_prior_knows_unrest_threads_axis_and_neighbours() -> None:
    one = unrest(record(threads=1), 0.0)
    two = replace(one, figures=replace(one.figures, threads_at_once=2.0))
    assert expected("busy", one, one, 0.0).spread_rel == pytest.approx(0.010)
    assert expected("wall", one, one, 0.0).spread_rel == pytest.approx(0.012)
    assert expected("busy", one, one, None) == expected("busy", one, one, 0.35)
    assert expected("busy", two, two, 0.5).spread_rel == pytest.approx(0.3, abs=0.005)
    idle = replace(two, figures=replace(two.figures, threads_at_once=1.01))  # its pool has no work
    assert expected("busy", idle, idle, 0.5) == expected("busy", one, one, 0.5)
    crowd, calm = (
        replace(two, figures=replace(two.figures, contended=share)) for share in (0.5, 0.0)
    )
    assert expected("busy", crowd, crowd, 0.5).spread_rel == pytest.approx(0.0316, abs=0.0005)
    assert expected("busy", crowd, calm, 0.5) == expected("busy", calm, crowd, 0.5)
    assert expected("busy", crowd, calm, 0.5).spread_rel == pytest.approx(0.3, abs=0.005)
    wide = expected("wall", one, one, 0.35).spread_rel
    assert wide > 5 * expected("busy", one, one, 0.35).spread_rel
    gpu = record(platform="cuda")
    assert expected("wall", gpu, gpu, None) == Prior(0.015)


def streams(bandwidth: float | None, yardstick_s: float = 0.001) -> Record:
    """A build of 10 ms that reads 40 MB of weights: 4 ms of copies at 10 GB/s."""
    some = record()
    figures = replace(some.figures, copy_bandwidth=bandwidth, yardstick_s=yardstick_s)
    model = replace(some.model, parameters=10_000_000)
    return replace(some, model=model, figures=figures)


def test_memory_that_became_slower_explains_what_the_weights_take_of_the_time() -> None:
    then = streams(10e9)
    assert memory_drift(streams(8e9), then) == pytest.approx(0.5 * math.log(1.25))
    assert memory_drift(streams(12.5e9), then) == pytest.approx(-0.32 * math.log(1.25))
    assert memory_drift(streams(1e9), then) == pytest.approx(math.log(10))  # all of the time
    assert memory_drift(streams(9e9), then) == 0.0  # no more than copies differ by for nothing
    small = replace(then, model=replace(then.model, parameters=2_000_000))
    assert memory_drift(replace(small, figures=streams(5e9).figures), small) == 0.0  # in a cache
    # A machine that became slower as a whole is what the yardstick is for.
    assert memory_drift(streams(8e9, 0.00125), then) == pytest.approx(0.0)
    assert memory_drift(streams(10e9, 0.00125), then) == pytest.approx(-0.4 * math.log(1.25))


@pytest.mark.parametrize("unknown", [streams(None), streams(10e9, math.nan), streams(0.0)])
def test_memory_of_which_nothing_is_known_explains_nothing(unknown: Record) -> None:
    assert memory_drift(unknown, streams(10e9)) == 0.0
    assert memory_drift(streams(10e9), unknown) == 0.0


def test_drift_stretches_the_interval_to_its_side_and_excuses_as_much_of_a_claim() -> None:
    base, check, faster = sample(10, 6, 0.001), sample(12, 6, 0.001), sample(10 / 1.2, 6, 0.001)

    def drifted(check: Sample, drift: float) -> Interval:
        found = loss("wall", check, base, PRIOR, drift=drift)
        assert found is not None
        return found

    plain = held(check, base)
    slower, quicker = drifted(check, math.log(1.15)), drifted(check, -math.log(1.15))
    assert slower.value == quicker.value == plain.value
    assert (1 - slower.low) * 1.0 == pytest.approx((1 - plain.low) * 1.15)
    assert slower.high == plain.high
    assert quicker.low == plain.low
    assert (1 - quicker.high) == pytest.approx((1 - plain.high) / 1.15)
    assert [x.certain for x in (plain, slower, quicker)] == [True, False, True]
    assert drifted(faster, math.log(1.15)).certain
    assert not drifted(faster, -math.log(1.15)).certain


def test_neighbours_that_came_explain_windows_that_disagree() -> None:
    """Torch's operators took 39 % longer beside a load that the record was not made beside."""
    calm, restless = unrest(record(threads=1), 0.05), unrest(record(threads=1), 0.25)

    def beside(some: Record, contended: float | None) -> Record:
        return replace(some, figures=replace(some.figures, contended=contended))

    crowd, alone = beside(restless, 0.6), beside(calm, 0.0)
    assert crowding("busy", crowd, alone) == pytest.approx(2.0 * 0.2)
    assert crowding("busy", alone, crowd) == pytest.approx(-2.0 * 0.2)
    assert crowding("busy", beside(restless, 0.05), alone) == 0.0  # restless, but as crowded
    assert crowding("busy", beside(restless, None), alone) == 0.0
    assert crowding("busy", crowd, beside(calm, 0.55)) == 0.0


@pytest.mark.parametrize("unquiet", ["check", "baseline"])
def test_the_less_quiet_side_widens_the_prior(unquiet: str) -> None:
    """Neighbours that no counter shows lengthen some windows more than others."""
    calm, restless = unrest(record(threads=1), 0.0), unrest(record(threads=1), 0.1)
    sides = (restless, calm) if unquiet == "check" else (calm, restless)
    assert expected("busy", *sides, 0.0).spread_rel == pytest.approx(math.hypot(0.010, 0.04))


@pytest.mark.parametrize("rel", [None, math.nan])
def test_unrest_that_is_not_known_is_assumed(rel: float | None) -> None:
    unknown = unrest(record(threads=1), rel)
    assert expected("busy", unknown, unknown, 0.0).spread_rel == pytest.approx(
        math.hypot(0.010, 0.02)
    )


def test_several_threads_whose_windows_disagree_may_be_as_far_apart_in_the_next_session() -> None:
    """Torch on two threads: repeats within 9 %, and the next session 18 % away from them."""
    restless = unrest(record(threads=2), 0.14)
    alone = unrest(record(threads=1), 0.14)
    assert expected("busy", restless, restless, 0.0).session_rel == pytest.approx(
        math.hypot(0.010, 0.25 * 0.14)
    )
    assert expected("busy", alone, alone, 0.0).session_rel == 0.010
    base, check = sample(1.0, 4, 0.002), sample(1.15, 6, 0.002)
    assert held(check, base, Prior(0.01)).certain
    assert not held(check, base, Prior(0.01, session_rel=0.036)).certain


def test_a_loss_is_claimed_at_a_level_that_the_interval_shown_does_not_need() -> None:
    """Outside of a one-in-twenty interval is no claim yet."""
    found = held(sample(10.25, 2, 0.008), sample(10, 4, 0.008))
    assert found.low > 0
    assert not found.certain
    assert held(sample(11, 4, 0.008), sample(10, 4, 0.008)).certain


def test_an_interval_reads_as_a_loss_or_a_gain() -> None:
    lost = Interval(axis="busy", value=0.082, low=0.069, high=0.095)
    gained = Interval(axis="wall", value=-0.031, low=-0.043, high=-0.019)
    assert str(lost) == "8.2 % lost (6.9 to 9.5 %, busy)"
    assert str(gained) == "3.1 % gained (1.9 to 4.3 %, wall)"
