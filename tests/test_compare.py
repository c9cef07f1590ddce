"""Every verdict, its reason, what it does to the item and what an update writes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from synthetic import (
    EP,
    FIGURES,
    KEY,
    PARITY,
    RECORD,
    figures,
    measurement,
    path,
    record,
    slower,
    steady,
    use,
)

from pytest_portability.compare import (
    Allowed,
    Comparison,
    decide,
    error,
    undecided,
    unfit,
    with_closest,
    writes,
)
from pytest_portability.models import TensorSpec
from pytest_portability.parity import ParityVerdict
from pytest_portability.records import Accepted, Axis, Record
from pytest_portability.runtimes import Observed
from pytest_portability.verdicts import POLICY, Verdict, outcome


def said(**words: Any) -> ParityVerdict:
    """A parity outcome made up for a test."""
    return ParityVerdict(faithful=None, same_model=None, **words)


def against(
    check: Record, baseline: Record | None = RECORD, *, contended: float = 0.0, fading: float = 0.0
) -> Comparison:
    return decide(check, baseline, measurement=measurement(contended=contended, fading=fading))


# --- the table ------------------------------------------------------------------------------------


def test_every_verdict_is_in_the_table() -> None:
    assert set(POLICY) == set(Verdict)


@pytest.mark.parametrize(
    ("verdict", "item", "written", "written_accepted"),
    [
        (Verdict.OK, "pass", "facts", "facts"),
        (Verdict.IMPROVED, "pass", "all", "all"),
        (Verdict.REGRESSED, "fail", "no", "all"),
        (Verdict.PARITY, "fail", "no", "all"),
        (Verdict.INTERFACE, "fail", "no", "all"),
        (Verdict.PLACEMENT, "fail", "no", "no"),
        (Verdict.MEMORY, "fail", "no", "all"),
        (Verdict.UNFIT, "fail", "no", "all"),
        (Verdict.STALE, "fail", "all", "all"),
        (Verdict.MISSING, "fail", "all", "all"),
        (Verdict.INCONCLUSIVE, "warn", "no", "no"),
        (Verdict.ERROR, "fail", "no", "no"),
        (Verdict.SKIPPED, "skip", "no", "no"),
    ],
)
def test_a_verdict_does_what_the_table_says(
    verdict: Verdict, item: str, written: str, written_accepted: str
) -> None:
    some = Comparison(verdict=verdict, reason="", record=RECORD, baseline=RECORD)
    assert outcome(verdict) == item
    assert writes(some, accepted=False) == written
    assert writes(some, accepted=True) == written_accepted


def test_the_policies_of_the_user_decide_missing_stale_and_inconclusive() -> None:
    assert (
        outcome(Verdict.MISSING, missing="warn") == outcome(Verdict.STALE, missing="warn") == "warn"
    )
    assert outcome(Verdict.INCONCLUSIVE, inconclusive="fail") == "fail"
    assert outcome(Verdict.REGRESSED, missing="warn", inconclusive="warn") == "fail"


def test_a_new_model_version_that_lost_speed_is_written_only_when_accepted() -> None:
    stale = decide(slower(1.3), RECORD, parity=said(stale=True, changed_tensors=("fc2.weight",)))
    assert stale.verdict is Verdict.STALE
    assert stale.speed is Verdict.REGRESSED
    assert "another version of the model: weights changed: fc2.weight" in stale.reason
    assert "beyond the 5 % tolerance" in stale.reason
    assert (writes(stale, accepted=False), writes(stale, accepted=True)) == ("no", "all")
    kept = decide(RECORD, RECORD, measurement=measurement(), parity=said(stale=True))
    assert writes(kept, accepted=False) == "all"


# --- comparable? ----------------------------------------------------------------------------------


def test_a_batch_that_no_longer_fits_is_unfit_and_its_speed_is_not_compared() -> None:
    some = against(record(figures=replace(FIGURES, batch_effective=4)))
    assert some.verdict is Verdict.UNFIT
    assert some.reason == "batch 8 does not fit: the largest that does is 4"
    assert some.loss is None
    assert some.speed is None
    assert not undecided(some)


def test_a_smaller_batch_that_was_accepted_is_compared_with_itself() -> None:
    small = record(figures=replace(FIGURES, batch_effective=4))
    assert against(small, small).verdict is Verdict.OK
    assert against(RECORD, small).reason == "batch 8 fits now, the baseline's largest was 4"
    smaller = record(figures=replace(FIGURES, batch_effective=2))
    assert "(the baseline's was 4)" in against(smaller, small).reason


def test_a_changed_output_type_is_an_interface_change_even_if_all_else_is_worse() -> None:
    changed = replace(PARITY, outputs=(TensorSpec(name="y", dtype="float16", shape=(8, 2)),))
    some = decide(slower(2.0, parity=changed), RECORD, parity=said(failures=("wrong",)))
    assert some.verdict is Verdict.INTERFACE
    assert some.reason == "output 'y' is float16, the record's float32"


def test_a_precision_asked_for_that_is_not_what_ran_is_a_failure_of_placement() -> None:
    key = replace(KEY, precision="fp16")
    some = against(record(key=key, effective="fp32"), record(key=key, effective="fp16"))
    assert some.verdict is Verdict.PLACEMENT
    assert some.reason == "asked for precision fp16, the work ran in fp32"
    assert against(record(key=key, effective="")).verdict is Verdict.OK


def test_native_asks_for_nothing_and_a_name_for_exactly_that() -> None:
    assert against(record(effective="bf16")).verdict is Verdict.OK
    key = replace(KEY, precision="tf32")
    assert against(record(key=key, effective="tf32")).verdict is Verdict.OK
    assert against(record(key=key, effective="fp32")).verdict is Verdict.PLACEMENT


def test_a_precision_asked_for_by_name_and_not_observed_is_said() -> None:
    key = replace(KEY, precision="fp16")
    some = against(record(key=key, effective=""))
    assert some.warnings == ("asked for fp16: in which precision the work ran is not known",)


def test_a_bigger_batch_does_not_hide_that_another_provider_ran_it() -> None:
    """A silent fall-back to the CPU fits more, and is no improvement."""
    asked = Observed(asked_provider="CUDAExecutionProvider", providers={EP: 48})
    small = record(figures=replace(FIGURES, batch_effective=4))
    seen = measurement(observed=asked)
    assert decide(RECORD, small, measurement=seen).verdict is Verdict.PLACEMENT
    wrong = said(failures=("all wrong",))
    assert decide(RECORD, small, parity=wrong).verdict is Verdict.PARITY
    assert decide(RECORD, small).verdict is Verdict.IMPROVED


def test_what_was_not_measured_is_never_written_whatever_was_accepted() -> None:
    assert writes(unfit("batch 1 does not fit", RECORD), accepted=True) == "no"


def test_what_parity_could_not_judge_is_said_beside_a_pass() -> None:
    unknown = said(notes=("the inputs hash to b, the record's to a",))
    some = decide(RECORD, RECORD, measurement=measurement(), parity=unknown)
    assert some.verdict is Verdict.OK
    assert some.warnings == ("the inputs hash to b, the record's to a",)


def test_another_version_of_the_yardsticks_library_widens_the_interval_and_is_said() -> None:
    newer = record(figures=replace(FIGURES, yardstick="gemm-192-float32 openblas 0.3.31"))
    older = record(figures=replace(FIGURES, yardstick="gemm-192-float32 openblas 0.3.30"))
    some, same = against(newer, older), against(older, older)
    assert some.axes[0].relative
    assert some.axes[0].high > same.axes[0].high
    (warning,) = some.warnings
    assert warning.startswith("the yardstick's library changed: gemm-192-float32 openblas 0.3.30 →")


def test_a_provider_that_got_no_node_is_a_failure_of_placement_with_or_without_a_baseline() -> None:
    asked = Observed(asked_provider="CUDAExecutionProvider", providers={EP: 48})
    for baseline in (RECORD, None):
        some = decide(RECORD, baseline, measurement=measurement(observed=asked))
        assert some.verdict is Verdict.PLACEMENT
        assert some.reason == f"asked for CUDAExecutionProvider: 100% of the nodes ran on {EP}"


def test_a_provider_of_which_nothing_is_known_is_said_beside_the_verdict() -> None:
    asked = Observed(asked_provider="CUDAExecutionProvider")
    blind = record(providers={})
    some = decide(blind, blind, measurement=measurement(observed=asked))
    assert some.verdict is Verdict.OK
    assert "asked for CUDAExecutionProvider: whether it got any node is not known" in some.warnings


# --- parity ---------------------------------------------------------------------------------------


def test_a_parity_failure_comes_before_speed_which_is_shown() -> None:
    some = decide(slower(1.5), RECORD, parity=said(failures=("output 'y' differs", "metric")))
    assert some.verdict is Verdict.PARITY
    assert some.reason == "output 'y' differs (and 1 more)"
    assert some.loss is not None
    assert some.loss.value == pytest.approx(1 / 3, abs=0.01)
    assert not undecided(some)


def test_a_parity_failure_needs_no_baseline() -> None:
    assert decide(RECORD, None, parity=said(failures=("NaN",))).verdict is Verdict.PARITY


# --- throughput -----------------------------------------------------------------------------------


def test_an_unchanged_build_is_inside_the_tolerance() -> None:
    some = against(RECORD)
    assert some.verdict is Verdict.OK
    assert "inside the 5 % tolerance (default)" in some.reason


@pytest.mark.parametrize("factor", [1.08, 1.12, 1.5])
def test_a_slowdown_beyond_the_tolerance_is_caught(factor: float) -> None:
    some = against(slower(factor))
    assert some.verdict is Verdict.REGRESSED
    assert "beyond the 5 % tolerance (default)" in some.reason
    assert some.loss is not None
    assert some.loss.value == pytest.approx(1 - 1 / factor, abs=1e-3)


def test_the_reason_says_who_set_the_tolerance() -> None:
    allowed = Allowed(loss=0.2, source="marker")
    some = decide(slower(1.12), RECORD, measurement=measurement(), allowed=allowed)
    assert some.verdict is Verdict.OK
    assert "inside the 20 % tolerance (marker)" in some.reason


def test_a_certain_loss_below_the_tolerance_is_no_regression() -> None:
    quiet = record(figures=figures(steady(10, 6, 1e-4), steady(10, 6, 1e-4)))
    some = against(record(figures=figures(steady(10.45, 6, 1e-4), steady(10.45, 6, 1e-4))), quiet)
    assert some.verdict in (Verdict.OK, Verdict.INCONCLUSIVE)


def test_a_certain_gain_is_an_improvement() -> None:
    some = against(slower(0.8))
    assert some.verdict is Verdict.IMPROVED
    assert "25.0 % gained" in some.reason
    assert "the record is behind" in some.reason


def test_figures_too_noisy_to_tell_ask_for_more_repeats() -> None:
    noisy = record(figures=figures(steady(10.4, 2, 0.05), steady(10.4, 2, 0.05)))
    some = against(noisy)
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.reason.startswith("too noisy to tell: 3.8 % lost")
    assert undecided(some)


def test_a_loss_beyond_the_tolerance_that_is_not_claimed_says_what_a_claim_needs() -> None:
    some = against(record(figures=figures(steady(12, 3, 0.07), steady(12, 3, 0.07))))
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.reason.endswith("; a claim needs 99.985 % certainty, the range has 95 %")


def test_a_loss_on_two_repeats_asks_for_a_third_and_is_then_decided() -> None:
    for repeats, more in ((2, True), (3, False)):
        some = against(record(figures=figures(steady(13, repeats), steady(13, repeats))))
        assert some.verdict is Verdict.REGRESSED
        assert undecided(some) is more
    assert not undecided(against(record(figures=figures(steady(10, 2), steady(10, 2)))))


def test_a_baseline_of_one_repeat_is_compared_with_a_wider_interval() -> None:
    once = record(figures=figures([10.0], [10.0]))
    assert against(slower(1.3), once).verdict is Verdict.REGRESSED
    one, four = against(RECORD, once).loss, against(RECORD).loss
    assert one is not None
    assert four is not None
    assert one.high - one.low > four.high - four.low


def test_repeats_without_any_variance_claim_no_certainty() -> None:
    some = against(record(figures=figures([10.52] * 2, [10.52] * 2)))
    assert some.verdict is Verdict.INCONCLUSIVE


@pytest.mark.parametrize("broken", [math.nan, 0.0, math.inf])
def test_times_that_are_no_numbers_are_inconclusive_and_never_pass(broken: float) -> None:
    axis = Axis(seconds=broken, ratio=broken, spread_rel=math.nan)
    some = against(record(figures=replace(FIGURES, wall=axis, busy=None)))
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.reason == "no usable time on either side: nothing to compare"
    assert some.loss is None


def test_another_yardstick_is_compared_in_raw_seconds() -> None:
    other = record(figures=replace(FIGURES, yardstick="gemm-other"))
    some = against(other)
    assert some.verdict is Verdict.INCONCLUSIVE
    assert "raw seconds" in some.reason
    far = slower(3.0)
    assert (
        against(replace(far, figures=replace(far.figures, yardstick="o"))).verdict
        is Verdict.REGRESSED
    )


def test_a_yardstick_that_failed_is_compared_in_raw_seconds() -> None:
    axis = Axis(seconds=0.010, ratio=math.nan, spread_rel=math.nan)
    broken = record(figures=replace(FIGURES, wall=axis, busy=axis, yardstick_s=math.nan))
    some = against(broken)
    assert some.verdict is Verdict.INCONCLUSIVE
    assert all(not axis.relative for axis in some.axes)
    assert some.machine_rel == 0.0


def test_a_slower_machine_is_said_and_does_not_fail() -> None:
    slow = record(figures=figures(steady(10), steady(10), yardstick_s=0.0014))
    some = against(slow)
    assert some.verdict is Verdict.OK
    assert some.machine_rel == pytest.approx(0.4)
    assert some.warnings == ("by the yardstick this machine is 40% slower than the baseline's",)


@pytest.mark.parametrize("far", [1e308, 1e-308])
def test_figures_that_nothing_measured_break_nothing(far: float) -> None:
    """A record is a file that anybody may write."""
    axis = Axis(seconds=far, ratio=far, spread_rel=0.01)
    for figure in ({"yardstick_s": far}, {"wall": axis, "busy": axis}):
        broken = record(figures=replace(FIGURES, **figure))
        for check, baseline in ((RECORD, broken), (broken, RECORD)):
            found = decide(check, baseline, measurement=measurement())
            assert all(math.isfinite(a.low) and math.isfinite(a.high) for a in found.axes)


@pytest.mark.parametrize(("factor", "verdict"), [(1.087, "inconclusive"), (1.3, "regressed")])
def test_a_small_loss_on_a_machine_of_another_speed_is_not_claimed(
    factor: float, verdict: str
) -> None:
    """An unchanged build lost 8 % beyond what the yardstick told of a machine 26 % slower."""
    times = [steady(10 * factor, repeats=6, spread=0.006) for _axis in range(2)]
    check = record(figures=figures(*times, yardstick_s=0.00126))
    found = decide(check, RECORD, measurement=measurement())
    assert found.verdict.value == verdict
    assert any("26% slower" in text for text in found.warnings)
    same = record(figures=figures(*times))
    assert decide(same, RECORD, measurement=measurement()).verdict is Verdict.REGRESSED


@pytest.mark.parametrize(("launches", "verdict"), [(1_000, "inconclusive"), (20, "regressed")])
def test_a_build_of_many_calls_is_not_claimed_to_be_slower_than_a_slower_machine_made_it(
    launches: int, verdict: str
) -> None:
    """Unchanged layers of torch took 48 % longer than the yardstick told, 21 % slower itself."""
    kernels = path(use("add", launches, 1.0))
    times = [steady(14.8, repeats=3, spread=0.049) for _axis in range(2)]
    check = record(figures=figures(*times, yardstick_s=0.00121), path=kernels)
    baseline = record(path=kernels)
    assert decide(check, baseline, measurement=measurement()).verdict.value == verdict
    card, then = (replace(one, platform="cuda", vendor="nvidia") for one in (check, baseline))
    assert decide(card, then, measurement=measurement()).verdict is Verdict.REGRESSED
    same = record(figures=figures(*times), path=kernels)
    assert decide(same, baseline, measurement=measurement()).verdict is Verdict.REGRESSED


@pytest.mark.parametrize(("now", "word"), [(8e9, "slower"), (12.5e9, "faster")])
def test_other_memory_bandwidth_is_said_and_is_no_regression(now: float, word: str) -> None:
    """A build that waits for memory took 28 % longer beside a yardstick that took the same."""
    model = replace(RECORD.model, parameters=100_000_000)

    def copied(bandwidth: float, level: float) -> Record:
        some = figures(steady(level), steady(level))
        return record(model=model, figures=replace(some, copy_bandwidth=bandwidth))

    level = 12 if word == "slower" else 10 / 1.2
    some = against(copied(now, level), copied(10e9, 10.0))
    assert some.verdict is Verdict.INCONCLUSIVE
    (said,) = some.warnings
    assert said == (
        f"this machine copied 10.0 GB/s in memory then, {now / 1e9:.1f} GB/s now: that may have "
        f"made the build up to 25% {word}"
    )
    assert against(copied(10e9, 12.0), copied(10e9, 10.0)).verdict is Verdict.REGRESSED


def test_a_loss_on_both_axes_is_not_said_to_be_of_the_host() -> None:
    """Wall time decides, because its interval is the narrower one; the work grew with it."""
    both = record(figures=figures(steady(15, 4, 0.02), steady(15, 4, 0.004)))
    some = against(both)
    assert some.verdict is Verdict.REGRESSED
    assert some.loss is not None
    assert some.loss.axis == "wall"
    assert "host-bound" not in some.reason


def test_a_loss_of_wall_time_alone_is_a_regression_that_names_the_host() -> None:
    some = against(slower(1.0, wall=1.3))
    assert some.verdict is Verdict.REGRESSED
    assert some.loss is not None
    assert some.loss.axis == "wall"
    assert "host-bound or less parallel" in some.reason


def test_a_purely_parallel_loss_is_caught_although_less_work_is_done() -> None:
    some = against(slower(0.93, wall=1.6, threads=1), record(threads=2))
    assert some.verdict is Verdict.REGRESSED
    assert "host-bound or less parallel" in some.reason


def test_more_threads_that_do_more_work_and_finish_sooner_are_an_improvement() -> None:
    assert against(slower(1.1, wall=0.6, threads=2), record(threads=1)).verdict is Verdict.IMPROVED


def test_an_accelerator_without_busy_time_is_judged_by_wall_time() -> None:
    base = record(platform="cuda", figures=figures(None, steady(10)))
    some = decide(record(platform="cuda", figures=figures(None, steady(12))), base)
    assert some.verdict is Verdict.REGRESSED
    assert [axis.axis for axis in some.axes] == ["wall"]


# --- contention and fading ------------------------------------------------------------------------


def test_on_a_contended_machine_work_decides_and_the_reason_says_so() -> None:
    some = against(slower(1.0, wall=1.4), contended=0.3)
    assert some.verdict is Verdict.OK
    assert some.reason.endswith("wall time not judged: neighbours took 30% of the processor")


def test_contention_of_the_record_is_not_said_of_this_run() -> None:
    busy = replace(RECORD, figures=replace(FIGURES, contended=0.46))
    some = against(RECORD, busy)
    assert some.reason.endswith("neighbours took 46% of the processor when the record was made")


def test_a_first_record_made_beside_neighbours_is_said_to_be_one() -> None:
    some = decide(record(figures=replace(FIGURES, contended=0.46)), None)
    assert some.warnings == (
        "neighbours took 46% of the processor meanwhile: record it on a quieter machine",
    )


def test_a_record_made_beside_neighbours_gives_way_to_a_quieter_one() -> None:
    """What it says of wall time could never be judged, nor replaced, otherwise."""
    noisy = record(figures=replace(FIGURES, contended=0.46))
    quiet = record(figures=replace(FIGURES, contended=0.01))
    some = decide(quiet, noisy, measurement=measurement())
    assert some.verdict is Verdict.OK
    assert some.warnings == (
        "wall time not judged: neighbours took 46% of the processor when the record was made",
    )
    assert writes(some, accepted=False) == "all"
    unsure = replace(some, verdict=Verdict.INCONCLUSIVE)
    assert (writes(unsure, accepted=False), writes(unsure, accepted=True)) == ("no", "all")
    crowded = replace(unsure, record=noisy)  # on a machine that is never quiet
    assert (writes(crowded, accepted=False), writes(crowded, accepted=True)) == ("no", "all")
    assert writes(replace(unsure, baseline=quiet), accepted=True) == "no"
    assert writes(decide(noisy, quiet, measurement=measurement()), accepted=True) == "facts"
    assert writes(replace(some, verdict=Verdict.REGRESSED), accepted=False) == "no"


def test_an_interval_that_could_be_anything_is_no_pass() -> None:
    """Its estimate is a gain, and so is all of it; but of what?"""
    some = against(slower(0.7), record(figures=figures(steady(10, 2, 0.35), steady(10, 2, 0.35))))
    assert some.loss is not None
    assert some.loss.high - some.loss.low > 0.2
    assert some.verdict is Verdict.INCONCLUSIVE


def test_a_change_that_cost_something_inside_the_tolerance_is_not_said_to_cost_nothing() -> None:
    other = replace(slower(1.2), threads=8)
    wide = Allowed(loss=0.5, source="marker")
    some = decide(other, RECORD, measurement=measurement(), allowed=wide)
    assert some.verdict is Verdict.OK
    assert "threads: 1 → 8" in some.warnings
    same = decide(replace(RECORD, threads=8), RECORD, measurement=measurement())
    assert "threads: 1 → 8, at no cost" in same.warnings


def test_another_version_that_is_too_noisy_to_judge_is_written_only_on_purpose() -> None:
    some = Comparison(
        verdict=Verdict.STALE,
        reason="",
        record=RECORD,
        baseline=RECORD,
        speed=Verdict.INCONCLUSIVE,
    )
    assert (writes(some, accepted=False), writes(some, accepted=True)) == ("no", "all")
    assert against(slower(1.2, wall=1.6), contended=0.3).verdict is Verdict.REGRESSED


def test_on_a_contended_machine_wall_time_alone_or_other_threads_cannot_be_judged() -> None:
    alone = record(figures=figures(None, steady(15)))
    some = against(alone, record(figures=figures(None, steady(10))), contended=0.3)
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.reason.endswith("CPU time is not known")
    other = against(slower(0.9, wall=1.4, threads=1), record(threads=2), contended=0.3)
    assert other.verdict is Verdict.INCONCLUSIVE
    assert other.reason.endswith("other threads change the CPU time")


def test_a_loss_that_neighbours_explain_is_not_claimed() -> None:
    """Its windows disagree as neighbours make them, and the record's did not."""

    def beside(level: float, contended: float, unrest: float) -> Record:
        some = figures(steady(level), steady(level))
        assert some.busy is not None
        busy = replace(some.busy, unrest_rel=unrest)
        return record(threads=1, figures=replace(some, busy=busy, contended=contended))

    alone, crowded = beside(10.0, 0.0, 0.03), beside(14.0, 0.6, 0.2)
    assert decide(crowded, alone).verdict is Verdict.INCONCLUSIVE
    assert decide(beside(14.0, 0.6, 0.03), alone).verdict is Verdict.REGRESSED


def crowd(taken: float, at_once: float | None) -> Record:
    """A record of two threads beside neighbours that took so much."""
    figures = replace(FIGURES, contended=taken, threads_at_once=at_once)
    return record(threads=2, figures=figures)


def test_several_threads_beside_other_neighbours_than_the_records_cannot_be_judged() -> None:
    """A pool that sleeps between its layers took a third of the CPU time on a contended machine."""
    some = decide(crowd(0.4, 1.4), crowd(0.0, 1.4), measurement=measurement())
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.reason == (
        "wall time not judged: neighbours took 40% of the processor, and what several threads "
        "cost changes with what neighbours take of the processor: 0% when the record was made, "
        "40% now"
    )
    assert not undecided(some)
    assert decide(crowd(0.4, None), crowd(0.0, None)).verdict is Verdict.INCONCLUSIVE
    assert decide(crowd(0.4, 1.4), crowd(0.35, 1.4)).verdict is Verdict.OK
    assert decide(crowd(0.4, 1.0), crowd(0.0, 1.0)).verdict is Verdict.OK


def test_little_contention_widens_the_wall_interval() -> None:
    calm, some = against(RECORD), against(RECORD, contended=0.08)
    widths = [c.axes[1].high - c.axes[1].low for c in (calm, some)]
    assert widths[1] > widths[0]


def test_little_contention_excuses_a_wide_wall_interval_but_no_certain_loss() -> None:
    wide = record(figures=figures(steady(10), steady(10.2, 4, 0.05)))
    some = against(wide, contended=0.08)
    assert some.verdict is Verdict.OK
    assert "wall time too noisy to judge beside neighbours" in some.reason
    assert against(wide).verdict is Verdict.INCONCLUSIVE
    assert against(slower(1.0, wall=1.4), contended=0.08).verdict is Verdict.REGRESSED


def test_wall_time_alone_decides_nothing_where_the_work_per_batch_is_unknown() -> None:
    """Small work on two threads settles in one of two states, four times apart in wall time."""
    states = figures(steady(10, 2, 0.9), steady(30, 2, 0.001))
    some = decide(record(figures=states), RECORD, measurement=measurement())
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.reason.startswith("work per batch is too uncertain to judge by: ")


def test_fading_with_unchanged_work_is_inconclusive() -> None:
    some = against(RECORD, fading=0.3)
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.reason == "fading: the last third of the windows took 30% longer than the first"
    assert writes(some, accepted=True) == "no"


def test_fading_does_not_hide_a_loss_of_work_nor_one_much_larger_than_it() -> None:
    assert against(slower(1.3), fading=0.15).verdict is Verdict.REGRESSED
    assert against(slower(1.0, wall=2.0), fading=0.15).verdict is Verdict.REGRESSED
    assert against(slower(1.0, wall=1.12), fading=0.15).verdict is Verdict.INCONCLUSIVE


def test_a_speed_that_still_grows_is_inconclusive() -> None:
    some = against(RECORD, fading=-0.2)
    assert some.reason == "still warming up: the last third ran 20% faster than the first"


def disturbed(check: Record, *reasons: str, neighbours: int | None = None) -> Record:
    """The same, measured on a device that was throttled or shared."""
    seen = replace(check.figures, throttled=reasons, neighbours=neighbours)
    return replace(check, figures=seen)


@pytest.mark.parametrize("factor", [1.3, 0.8])
def test_a_throttled_device_proves_neither_a_loss_nor_a_gain(factor: float) -> None:
    some = against(disturbed(slower(factor), "sw thermal slowdown"))
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.reason.startswith("throttled: sw thermal slowdown; throughput: ")
    assert some.loss is not None
    assert writes(some, accepted=True) == "no"
    assert undecided(some)


def test_another_process_on_an_accelerator_is_contention_and_said_so() -> None:
    base = record(platform="cuda", figures=figures(None, steady(10)))
    check = record(platform="cuda", figures=figures(None, steady(13)))
    assert decide(check, base).verdict is Verdict.REGRESSED
    some = decide(disturbed(check, neighbours=1), base)
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.reason.startswith("contended: another process on the device; throughput: 23.1 %")


def test_a_speed_inside_the_tolerance_is_fine_however_it_came_about() -> None:
    some = against(disturbed(RECORD, "sw thermal slowdown", neighbours=2))
    assert some.verdict is Verdict.OK
    assert "throttled" not in some.reason


def test_a_power_cap_on_both_sides_or_a_cpu_quota_does_not_excuse_a_loss() -> None:
    capped = disturbed(RECORD, "sw power cap")
    assert against(disturbed(slower(1.3), "sw power cap"), capped).verdict is Verdict.REGRESSED
    assert against(disturbed(slower(1.3), "sw power cap")).verdict is Verdict.INCONCLUSIVE
    assert against(disturbed(slower(1.3), "cpu quota")).verdict is Verdict.REGRESSED


def test_growth_of_memory_is_found_on_a_throttled_device_too() -> None:
    grown = record(figures=replace(slower(1.3).figures, memory_arena_bytes=96 * 2**20))
    assert against(disturbed(grown, "hw slowdown")).verdict is Verdict.MEMORY


# --- memory and placement details -----------------------------------------------------------------


def test_memory_beyond_both_limits_fails_even_when_it_is_faster() -> None:
    grown = replace(slower(0.8).figures, memory_arena_bytes=96 * 2**20)
    some = against(record(figures=grown))
    assert some.verdict is Verdict.MEMORY
    assert some.reason == "arena grew 50.0% (64.0 → 96.0 MiB), beyond 5% and 4 MiB"
    assert some.memory_rel == pytest.approx(0.5)


def test_growth_within_either_limit_is_inside_the_tolerance() -> None:
    for arena in (67 * 2**20, None, 0):
        assert (
            against(record(figures=replace(FIGURES, memory_arena_bytes=arena))).verdict
            is Verdict.OK
        )
    tiny = [
        replace(FIGURES, memory_arena_bytes=n * 2**20, memory_process_bytes=None) for n in (1, 3)
    ]
    assert against(record(figures=tiny[1]), record(figures=tiny[0])).verdict is Verdict.OK


def test_memory_of_the_process_is_held_against_its_like_only() -> None:
    grown = replace(FIGURES, memory_process_bytes=400 * 2**20)
    assert "process memory grew 100.0%" in against(record(figures=grown)).reason
    gpu = replace(FIGURES, memory_device_bytes=2**30, memory_arena_bytes=None)
    unlike = replace(gpu, memory_process_bytes=None)
    assert against(record(figures=unlike)).memory_rel is None


def test_grown_memory_is_a_warning_beside_a_regression_and_needs_no_more_repeats() -> None:
    grown = replace(slower(1.3).figures, memory_arena_bytes=96 * 2**20)
    some = against(record(figures=grown))
    assert some.verdict is Verdict.REGRESSED
    assert "arena grew" in some.warnings[0]
    noisy = figures(steady(10.4, 2, 0.05), steady(10.4, 2, 0.05), memory_arena_bytes=96 * 2**20)
    assert against(record(figures=noisy)).verdict is Verdict.MEMORY


def test_grown_memory_asks_for_more_processes_because_the_least_can_only_fall() -> None:
    grown = replace(FIGURES, memory_process_bytes=400 * 2**20)
    assert undecided(against(record(figures=grown)))


def test_what_a_change_cost_is_said_only_where_the_speed_is_known() -> None:
    before = record(path=path(use("BiasGelu", 2, absorbs=("Add", "Gelu"))))
    noisy = figures(steady(10.4, 2, 0.05), steady(10.4, 2, 0.05))
    some = against(record(path=path(use("Add", 2), use("Gelu", 2)), figures=noisy), before)
    assert some.verdict is Verdict.INCONCLUSIVE
    assert some.warnings == ("BiasGelu ×2 no longer fused: now Add ×2, Gelu ×2",)


def test_growth_from_next_to_nothing_is_no_percentage() -> None:
    """Nor is what came with it said to cost nothing."""
    before, after = (
        record(figures=replace(FIGURES, memory_arena_bytes=n), options={"a": str(n)})
        for n in (32 * 2**10, 24 * 2**20)
    )
    some = against(after, before)
    assert some.reason == "arena grew: 0.0 → 24.0 MiB, beyond 5% and 4 MiB"
    assert some.warnings == ("option a: 32768 → 25165824",)


def test_the_figure_of_memory_that_grew_most_is_the_one_shown() -> None:
    """A smaller arena hides nothing of the process."""
    now = replace(FIGURES, memory_arena_bytes=2**20, memory_process_bytes=202 * 2**20)
    some = against(record(figures=now))
    assert some.verdict is Verdict.OK
    assert some.memory_rel == pytest.approx(0.01)


def test_an_option_that_changed_is_said_where_it_cost_nothing() -> None:
    now = record(options={"graph_optimization_level": "ORT_DISABLE_ALL"})
    some = against(now, record(options={}))
    assert some.verdict is Verdict.OK
    assert "option graph_optimization_level: unset → ORT_DISABLE_ALL, at no cost" in some.warnings


def test_work_per_batch_that_grew_uncertainly_is_not_said_not_to_have_grown() -> None:
    """25.5 % lost on the wall axis, 25.7 % of busy that no claim may be made of."""

    def seen(busy: float, spread: float) -> Record:
        return record(figures=figures(steady(busy, 4, spread), steady(13.4, 4, 0.004)), threads=2)

    alike = against(seen(13.4, 0.08), record(threads=2))
    assert alike.verdict is Verdict.REGRESSED
    assert "work per batch did not grow" not in alike.reason
    apart = against(seen(10.0, 0.004), record(threads=2))
    assert apart.verdict is Verdict.REGRESSED
    assert "work per batch did not grow with it" in apart.reason


def test_a_process_that_grows_to_what_the_baseline_also_saw_did_not_grow() -> None:
    """Allocators settle in one of a few states, a few MiB apart."""
    two_states = replace(FIGURES, memory_process_most_bytes=220 * 2**20)
    within = record(figures=replace(FIGURES, memory_process_bytes=219 * 2**20))
    beyond = record(figures=replace(FIGURES, memory_process_bytes=221 * 2**20))
    assert against(within, record(figures=two_states)).verdict is Verdict.OK
    assert against(beyond, record(figures=two_states)).verdict is Verdict.MEMORY


def test_what_changed_at_no_cost_is_a_warning() -> None:
    before = record(path=path(use("BiasGelu", 2, absorbs=("Add", "Gelu"))), graph_breaks=0)
    after = record(path=path(use("Add", 2), use("Gelu", 2)), graph_breaks=1)
    some = against(after, before)
    assert some.verdict is Verdict.OK
    assert some.warnings == (
        "graph breaks: 0 → 1, at no cost",
        "BiasGelu ×2 no longer fused: now Add ×2, Gelu ×2, at no cost",
    )


# --- the other verdicts ---------------------------------------------------------------------------


def test_a_missing_record_shows_the_closest_one() -> None:
    some = decide(RECORD, None)
    assert some.verdict is Verdict.MISSING
    assert some.reason == "no record of m onnxruntime.cpu-native-b8 on cpu-x-2c"
    near = record(key=replace(KEY, target="cpu-y-2c"), figures=replace(FIGURES, throughput=1600.0))
    shown = with_closest(some, near, "same architecture")
    assert shown.closest is near
    assert shown.reason.endswith(
        "closest (same architecture): onnxruntime.cpu-native-b8 on cpu-y-2c: "
        "1600 samples/s there, 800 here (0.50 ×)"
    )
    assert with_closest(some, None).reason.endswith(", and none that is close")


def test_an_error_and_a_skip_carry_their_reason() -> None:
    assert error("died of signal 11").verdict is Verdict.ERROR
    assert error("no fp16 here", skipped=True).verdict is Verdict.SKIPPED
    assert not undecided(error("died of signal 11"))


def test_accepted_steps_add_up() -> None:
    steps = tuple(
        Accepted(
            date=f"2026-03-0{n + 1}T00:00:00Z",
            reason="r",
            verdict="regressed",
            before=1000 * 0.966**n,
            after=1000 * 0.966 ** (n + 1),
        )
        for n in range(8)
    )
    some = record(accepted=steps)
    assert some.accepted_so_far == "accepted so far: −24 % in 8 steps since 2026-03-01"
    told = record(accepted=(replace(steps[0], loss=0.1), replace(steps[1], loss=0.1)))
    assert told.accepted_so_far == "accepted so far: −19 % in 2 steps since 2026-03-01"
    odd = record(accepted=(replace(steps[0], before=math.nan),))
    assert odd.accepted_so_far == "accepted so far: ±0 % in 1 step since 2026-03-01"
    assert RECORD.accepted_so_far == ""
