"""Parity: how far outputs are from a reference and from the record's, and what that means."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from pytest_portability import parity
from pytest_portability.models import TensorSpec
from pytest_portability.outputs import Differences, norm_change, sketch_values
from pytest_portability.parity import (
    Computed,
    Limits,
    Parity,
    ParityVerdict,
    Reference,
    error_rel,
    judge,
    measured,
    sketch,
    sketch_distance,
    tolerance,
    tolerance_between,
)

Floats = npt.NDArray[np.float32]


def normal(*shape: int, seed: int = 0) -> Floats:
    """Normal values in float32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def off(array: Floats, error: float, seed: int = 1) -> Floats:
    """The same with an independent relative L2 error of about that size."""
    noise = normal(*array.shape, seed=seed)
    return array + np.float32(error * np.linalg.norm(array) / np.linalg.norm(noise)) * noise


def rounded(array: Floats, bits: int) -> Floats:
    """Values with that many bits of mantissa, as TF32 (10) and bfloat16 (7) keep."""
    drop = 23 - bits
    raw = array.view(np.int32) + np.int32(1 << (drop - 1))
    return (raw & np.int32(~((1 << drop) - 1))).view(np.float32)


# --- against a reference --------------------------------------------------------------------------


def test_the_error_is_the_relative_l2_norm() -> None:
    """Per output, in float64; a float64 reference of a float32 build is as it should be."""
    reference = {"a": np.array([3.0, 4.0]), "b": np.array([1.0])}
    found = error_rel(
        {"a": np.array([3.0, 4.5], np.float32), "b": np.ones(1, np.float32)}, reference
    )
    assert [d.error_rel for d in found.outputs] == [0.1, 0.0]
    assert found.worst_rel == 0.1
    assert found.failures(lambda _: 0.1) == ()
    assert found.failures(lambda _: 0.01) == (
        "output 'a': relative L2 error 0.1 against the reference > 0.01",
    )


def test_an_output_of_several_chunks_is_compared_whole() -> None:
    """An error in the last element counts; a view that is not contiguous is read in C order."""
    reference = normal(3, 250_001)
    here = reference.copy()
    here[-1, -1] += 1e3
    (found,) = error_rel({"y": here}, {"y": reference}).outputs
    assert found.differing == 1
    assert found.error_rel == pytest.approx(1e3 / np.linalg.norm(reference.astype(float)), rel=1e-3)
    assert error_rel({"y": here.T}, {"y": np.ascontiguousarray(here.T)}).identical


@pytest.mark.parametrize(
    ("outputs", "reference", "problem"),
    [
        ({"a": 1.0}, {"a": 1.0, "b": 1.0}, "output 'b' of the reference is missing"),
        ({"a": 1.0, "b": 1.0}, {"a": 1.0}, "output 'b' is not in the reference"),
        (
            {"b": 1.0, "a": 1.0},
            {"a": 1.0, "b": 1.0},
            "outputs are in the order ['b', 'a'], the reference's in ['a', 'b']",
        ),
        ({"a": [1.0]}, {"a": [[1.0]]}, "output 'a' has shape (1,), the reference (1, 1)"),
        ({"a": 1}, {"a": 1.0}, "output 'a' is int64, the reference float64"),
        ({"a": True}, {"a": 1}, "output 'a' is bool, the reference int64"),
        ({"a": "x"}, {"a": 1.0}, "output 'a' is str32, the reference float64"),
    ],
)
def test_outputs_that_cannot_be_compared_are_named(
    outputs: dict[str, Any], reference: dict[str, Any], problem: str
) -> None:
    """And never pass: the worst error is infinite."""
    here, there = ({n: np.asarray(v) for n, v in d.items()} for d in (outputs, reference))
    found = error_rel(here, there)
    assert found.problems == (problem,)
    assert found.failures(lambda _: 1.0) == (problem,)
    assert found.worst_rel == math.inf
    assert not found.identical


def test_all_nan_against_a_reference_without_nan_fails() -> None:
    """A maximum that ignores NaN would see no difference."""
    found = error_rel({"y": np.full(32, np.nan, np.float32)}, {"y": np.ones(32)})
    assert found.failures(lambda _: 1.0) == (
        (
            "output 'y': 32 of 32 elements are NaN, infinite or masked, 0 in the reference; "
            "32 are not the same"
        ),
    )


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_the_same_non_finite_elements_are_fine(value: float) -> None:
    """The finite rest is compared; one more of them, or another kind, is a failure."""
    reference = normal(64)
    reference[3] = value
    assert error_rel({"y": reference.copy()}, {"y": reference}).identical
    more = reference.copy()
    more[5] = value
    (failure,) = error_rel({"y": more}, {"y": reference}).failures(lambda _: 1.0)
    assert failure == (
        "output 'y': 2 of 64 elements are NaN, infinite or masked, 1 in the reference; "
        "1 are not the same"
    )
    other = reference.copy()
    other[3] = -value if np.isinf(value) else 0.0
    assert len(error_rel({"y": other}, {"y": reference}).failures(lambda _: 1.0)) == 1


def test_a_reference_of_zeros_is_compared_absolutely() -> None:
    """Division by its norm would say nothing."""
    found = error_rel({"y": np.array([0.0, 3.0, 4.0])}, {"y": np.zeros(3)})
    assert found.failures(lambda _: 1.0) == (
        "output 'y': absolute L2 error (the reference is all zero) 5 against the reference > 1",
    )
    assert error_rel({"y": np.zeros(3)}, {"y": np.zeros(3)}).worst_rel == 0.0


def test_empty_outputs_are_equal() -> None:
    """No boxes found is a result."""
    for dtype in (np.float32, np.int64):
        assert error_rel({"y": np.zeros((0, 4), dtype)}, {"y": np.zeros((0, 4), dtype)}).identical
    assert measured({"y": np.zeros((0, 4), np.float32)}, {}).sketches


def test_no_outputs_are_not_equal() -> None:
    """Nothing was compared."""
    found = error_rel({}, {})
    assert found.failures(lambda _: 1.0) == ("there is no output to compare",)
    assert math.isinf(found.worst_rel)
    assert math.isinf(Differences(problems=(), outputs=()).worst_rel)


def test_a_list_of_one_is_a_reference_of_a_lone_tensor() -> None:
    """And a lone array one of a tuple of one."""
    y = np.ones(3)
    for here, there in (("output", "output_0"), ("output_0", "output")):
        found = error_rel({here: y}, {there: y})
        assert (found.problems, [d.name for d in found.outputs]) == ((), [here])


def test_integers_booleans_and_text_are_counted() -> None:
    """The share of elements that differ is held against the tolerance."""
    there = {"label": np.arange(100), "on": np.zeros(4, bool), "word": np.array(["a", "b"])}
    here = {"label": np.arange(100), "on": np.zeros(4, bool), "word": np.array(["a", "ü"])}
    here["label"][7] = 0
    found = error_rel(here, there)
    assert found.failures(lambda _: 0.02) == (
        "output 'word': 1 of 2 elements differ from the reference (0.5 > 0.02)",
    )
    assert found.failures(lambda _: 1e-4)[0] == (
        "output 'label': 1 of 100 elements differ from the reference (0.01 > 0.0001)"
    )


def test_complex_outputs_are_compared_by_parts() -> None:
    """A wrong sign of the imaginary part is an error."""
    there = np.array([3 + 4j])
    assert error_rel({"y": np.array([3 - 4j])}, {"y": there}).worst_rel == pytest.approx(8 / 5)
    assert sketch_distance(sketch(-there), sketch(there)) == pytest.approx(2.0, rel=0.3)


# --- the sketch -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [100, 1_000, 31_623, 1_000_000])
@pytest.mark.parametrize("error", [1e-5, 1e-2, 1.0])
def test_the_distance_of_sketches_is_that_of_the_arrays(size: int, error: float) -> None:
    """Within 25 %, from 100 to a million elements."""
    for seed in range(3 if size > 100_000 else 20):
        there = normal(size, seed=seed).astype(np.float64)
        noise = normal(size, seed=seed + 100).astype(np.float64)
        here = there + error * noise
        true = np.linalg.norm(here - there) / np.linalg.norm(there)
        assert sketch_distance(sketch(here), sketch(there)) == pytest.approx(true, rel=0.25)


def test_an_error_in_few_elements_is_estimated_more_coarsely() -> None:
    """Elements that share a bucket add up or cancel; one alone is exact."""
    there = normal(1000).astype(np.float64)
    for seed in range(50):
        here = there.copy()
        where = np.random.default_rng(seed).choice(1000, 5, replace=False)
        here[where[:1]] += 1.0
        true = np.linalg.norm(here - there) / np.linalg.norm(there)
        assert sketch_distance(sketch(here), sketch(there)) == pytest.approx(true, rel=1e-3)
        here[where] += 1.0
        true = np.linalg.norm(here - there) / np.linalg.norm(there)
        assert true / 2 < sketch_distance(sketch(here), sketch(there)) < true * 2


def test_a_sketch_is_the_same_on_every_platform_and_for_ever() -> None:
    """Records hold it: were the hash to change, every record would be of another model."""
    assert sketch(np.arange(8, dtype=np.float32)) == sketch(np.arange(8, dtype=">f8"))
    values = sketch_values(sketch(np.arange(1, 9)[::-1].astype(np.float16)))
    assert values[0] == pytest.approx(math.sqrt(204))
    assert {int(i): values[i] for i in np.flatnonzero(values[1:]) + 1} == GOLDEN


# 8, 7, … 1 by bucket, with their signs; 7 and 6 share one, and so do 4 and 2
GOLDEN = {3: 1.0, 16: -2.0, 26: -5.0, 32: -8.0, 36: 1.0, 44: -3.0}


def test_a_sketch_has_room_on_one_line() -> None:
    """Norm and 64 buckets in float32."""
    assert len(sketch(normal(10))) == 348


def test_non_finite_elements_count_as_zero_in_a_sketch() -> None:
    """Their positions are kept apart from it."""
    there = normal(1000)
    here = there.copy()
    there[:3], here[:3] = 0.0, (np.nan, np.inf, -np.inf)
    assert sketch(here) == sketch(there)
    kept = measured({"y": here}, {}).exact["y"]
    assert kept.startswith("1 NaN, 1 +inf, 1 -inf: ")
    moved = np.roll(here, 1)
    assert measured({"y": moved}, {}).exact["y"] != kept


def test_distances_at_the_edges() -> None:
    """Zero norm is absolute, beyond float32 is unknown, anything else is no sketch."""
    zero, five = sketch(np.zeros(4)), sketch(np.array([0.0, 0.0, 5.0, 0.0]))
    assert sketch_distance(five, zero) == 5.0
    assert sketch_distance(zero, zero) == 0.0
    assert math.isnan(sketch_distance(sketch(np.full(4, 1e200)), five))
    with pytest.raises(ValueError, match="a sketch is base64 of 65 float32, this has 3 bytes"):
        sketch_distance("AAAA", five)


# --- tolerances -----------------------------------------------------------------------------------


def test_fp32_passes_summation_order_and_catches_reduced_precision() -> None:
    """What optimisers do to the order of sums passes; TF32 and bfloat16 operands do not."""
    weights = [normal(256, 256, seed=s) / np.float32(16) for s in range(4)]
    x = normal(64, 256, seed=9)

    def net(change: Any) -> dict[str, Floats]:
        h = x
        for w in weights:
            h = np.tanh(change(h) @ change(w))
        return {"y": h}

    order = np.random.default_rng(0).permutation(256)
    reference = net(lambda a: a.astype(np.float64))
    h = x
    for w in weights:
        h = np.tanh(h[:, order] @ w[order])
    assert error_rel({"y": h}, reference).worst_rel < tolerance("fp32", 0.0) / 10
    tf32 = error_rel(net(lambda a: rounded(a, 10)), reference).worst_rel
    bf16 = error_rel(net(lambda a: rounded(a, 7)), reference).worst_rel
    assert tolerance("fp32", 0.0) * 1.25 < tf32 < tolerance("tf32", 0.0)
    assert tolerance("fp32", 0.0) * 1.25 < bf16 < tolerance("bf16", 0.0)


def test_the_floor_of_the_reference_widens_the_tolerance() -> None:
    """Eight times what two arrangements of the reference differ, never beyond bf16's own."""
    assert tolerance("fp32", 1e-6) == 1e-4
    assert tolerance("fp32", 1e-3) == 8e-3
    assert tolerance("fp32", 0.5) == tolerance("bf16", 0.0)
    assert tolerance("fp32", math.nan) == 1e-4
    assert tolerance("fp32", 1e-3, 1e-6) == 1e-6
    assert tolerance("posit8", 0.0) == tolerance("", 0.0)


def test_a_build_cannot_excuse_itself_by_a_floor_of_its_own() -> None:
    """What rounds the operands of a product does so in the reference's arrangements, too."""
    y = normal(10)
    here, there = computed(y, effective="fp32"), computed(y, effective="fp32")
    rough = replace(here, parity=replace(here.parity, floors_rel={"y": 1e-3}))
    assert tolerance_between(rough, there, "y") == tolerance("fp32", 0.0)
    assert tolerance_between(here, replace(there, parity=rough.parity), "y") == tolerance(
        "fp32", 1e-3
    )


def test_the_floor_of_one_output_excuses_no_other() -> None:
    """Tokens that flip at a near tie say nothing of the logits beside them."""
    y, tokens = normal(100), np.arange(1000)
    flipped = np.where(tokens < 3, -1, tokens)
    here = {"y": off(y, 5e-3), "tokens": flipped}
    differences = error_rel(here, {"y": y, "tokens": tokens})
    reference = Reference(name="cpu", differences=differences, floors_rel={"tokens": 0.003})
    made = replace(computed(y), parity=measured(here, X, reference))
    (failure,) = judge(made, None, reference).failures
    assert failure == "output 'y': relative L2 error 0.005 against the reference > 0.0001"
    flips = error_rel({"y": y, "tokens": flipped}, {"y": y, "tokens": tokens})
    usual = Reference(name="cpu", differences=flips, floors_rel={"tokens": 0.003})
    then = replace(computed(y), parity=measured({"y": y, "tokens": flipped}, X, usual))
    assert "output 'y': relative L2 error 0.005 against the reference > 0.0001" in (
        judge(made, then, reference).failures
    )


MASKS = (-1e9, -1e4, float(np.finfo(np.float32).min), 1e30)


@pytest.mark.parametrize("fill", MASKS)
def test_what_is_masked_hides_nothing_of_the_rest(fill: float) -> None:
    """A norm that holds −1e9 is that of the mask: every other logit could be wrong."""
    y = normal(64)
    mask = np.arange(64) % 2 == 0

    def masked(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.where(mask, np.float32(fill), values).astype(np.float32)

    assert error_rel({"y": masked(y)}, {"y": masked(y)}).identical
    (found,) = error_rel({"y": masked(-7 * y)}, {"y": masked(y)}).outputs
    assert found.error_rel == pytest.approx(8.0, rel=1e-3)
    assert found.misplaced == 0
    assert found.nonfinite == 32
    moved = np.where(np.roll(mask, 1), np.float32(fill), y).astype(np.float32)
    (failure,) = error_rel({"y": moved}, {"y": masked(y)}).failures(lambda _: 0.1)
    assert failure == (
        "output 'y': 32 of 64 elements are NaN, infinite or masked, 32 in the reference; "
        "64 are not the same"
    )
    (of_record,) = judge(computed(masked(3 * y)), computed(masked(y)), None).failures
    assert of_record.startswith("output 'y': relative L2 difference 2")
    (of_record,) = judge(computed(moved), computed(masked(y)), None).failures
    assert of_record.startswith("output 'y': NaN, infinite or masked elements: 0 NaN, ")


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_the_least_number_of_a_type_is_that_of_a_wider_one(dtype: type[Any]) -> None:
    """``masked_fill(mask, torch.finfo(dtype).min)``, held against a reference in fp64."""
    y = normal(64)

    def masked(wide: type[Any]) -> npt.NDArray[Any]:
        values = y.astype(wide)
        values[::2] = np.finfo(wide).min
        return values

    differences = error_rel({"y": masked(dtype)}, {"y": masked(np.float64)})
    assert not differences.failures(lambda _: 1e-3)
    assert differences.worst_rel < 1e-3


def test_numbers_whose_square_is_beyond_float64_are_compared() -> None:
    y = normal(64)
    (found,) = error_rel(
        {"y": 1e300 * off(y, 0.01).astype(np.float64)}, {"y": 1e300 * y.astype(np.float64)}
    ).outputs
    assert found.error_rel == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize(
    "values",
    [
        [1.0, 1.0, 1e-3, 1e-5],  # probabilities that rounded to 1
        [1e9, 1.0, 2.0, 3.0],  # one large number may have been computed
        [5e3, 5e3, 100.0, 1.0],  # not far from the rest
        [5e3, 5e3, 5e3, 5e3],
        [5e3, 5e3, 0.0, 0.0],
    ],
)
def test_large_values_that_mask_nothing_count_like_all_others(values: list[float]) -> None:
    y = np.array(values, np.float32)
    (found,) = error_rel({"y": y * np.float32(1.5)}, {"y": y}).outputs
    assert found.nonfinite == 0
    assert found.error_rel == pytest.approx(0.5, rel=1e-3)


def test_what_was_quantised_on_the_way_is_no_new_version() -> None:
    """Scales that became weights made a quantised model ``stale``, which anybody may record."""
    then = computed(Y, effective="fp32", weights="w1")
    now = computed(off(Y, 0.02), effective="int8", weights="w2")
    judged = judge(now, then, faithful(off(Y, 0.02)))
    assert not judged.stale
    assert judged.failures[0].startswith("output 'y': relative L2 difference 0.0")
    other = computed(off(Y, 0.5), effective="fp32", weights="w2")
    finer = judge(other, replace(then, effective="int8"), faithful(off(Y, 0.5)))
    assert finer.stale
    unknown = judge(replace(now, effective=""), then, faithful(off(Y, 0.02)))
    assert unknown.stale


def test_an_output_without_elements_is_no_match() -> None:
    """A detector that finds nothing in random inputs proves nothing."""
    none = np.zeros((0, 4), np.float32)
    differences = error_rel({"boxes": none}, {"boxes": none})
    reference = Reference(name="cpu", differences=differences)
    (failure,) = judge(computed(none), None, reference).failures
    assert failure == "no output has an element with these inputs: nothing can be compared"
    both = error_rel({"boxes": none, "y": Y}, {"boxes": none, "y": Y})
    judged = judge(computed(Y), None, Reference(name="cpu", differences=both))
    assert judged.failures == ()
    assert "nothing is compared of boxes: empty with these inputs" in judged.notes
    assert judge(computed(none), computed(none), None).same_model is None


def test_a_record_that_lost_what_it_held_of_an_output_does_not_vouch_for_it() -> None:
    then = computed(Y, sketches={})
    judged = judge(computed(3 * Y), then, None)
    assert judged.same_model is None
    assert judged.failures == ()
    assert any("the record holds nothing of it" in note for note in judged.notes)


def test_a_norm_that_changed_is_a_difference_whatever_the_sketch_estimates() -> None:
    there = normal(10_000)
    assert norm_change(sketch(1.15 * there), sketch(there)) == pytest.approx(0.15, rel=1e-4)
    assert norm_change(sketch(there), sketch(there)) == 0
    assert norm_change(sketch(there), sketch(0 * there)) == pytest.approx(100, rel=0.05)


@pytest.mark.parametrize(
    ("precision", "now", "then", "as_"),
    [
        ("fp16", "fp16", "fp16", "fp16"),
        ("bf16", "bf16", "fp32", "bf16"),
        ("fp16", "", "", "fp16"),
        ("native", "bf16", "fp32", "fp32"),
        ("native", "fp32", "bf16", "bf16"),
        ("native", "bf16", "", "fp32"),
    ],
)
def test_builds_are_compared_by_the_coarser_precision_unless_nobody_asked_for_it(
    precision: str, now: str, then: str, as_: str
) -> None:
    """``native`` is held to what the record's build did."""
    y = normal(10)
    here = replace(computed(y, effective=now), precision=precision)
    there = replace(computed(y, effective=then), precision=precision)
    assert tolerance_between(here, there, "y") == tolerance(as_, 0.0)


# --- the judgement --------------------------------------------------------------------------------

Y = normal(16, 64)
X = {"x": normal(16, 8, seed=5)}


def computed(
    y: npt.NDArray[Any], *, effective: str = "fp32", weights: str = "w1", **changes: Any
) -> Computed:
    """One side of a judgement, asked for as ``native``."""
    kept = replace(measured({"y": y}, X, faithful(y)), **changes)
    tensors = {"fc.bias": "b1", "fc.weight": weights}
    return Computed(
        parity=kept, precision="native", effective=effective, weights=weights, tensors=tensors
    )


def faithful(y: npt.NDArray[Any], error: float = 0.0) -> Reference:
    """A reference from which the output is that far."""
    reference = off(y, error, seed=77) if error else y
    return Reference(
        name="cpu", differences=error_rel({"y": y}, {"y": reference}), floors_rel={"y": 1e-7}
    )


def test_the_same_outputs_are_one_accuracy_class() -> None:
    """Whatever file, exporter or weights layout they come from."""
    here = off(Y, 1e-6)
    verdict = judge(computed(here, weights="w2"), computed(Y), faithful(here))
    assert verdict == ParityVerdict(
        faithful=True,
        same_model=True,
        changed_tensors=("fc.weight",),
        notes=("weights changed (1, 'fc.weight' first), the outputs did not",),
        tolerance=1e-4,
        errors_rel={"y": 0.0},
        allowed_rel={"y": 1e-4},
    )


def test_without_a_baseline_only_the_reference_judges() -> None:
    """As on a first run."""
    assert judge(computed(Y), None, faithful(Y)).failures == ()
    verdict = judge(computed(Y), None, faithful(Y, 1e-2))
    assert verdict.faithful is False
    assert verdict.same_model is None
    assert verdict.failures == (
        "output 'y': relative L2 error 0.01 against the reference > 0.0001",
    )


def test_an_output_without_one_finite_element_is_never_faithful() -> None:
    """NaN where the reference is NaN too agrees, and says nothing about the build."""
    lost = np.full_like(Y, np.nan)
    verdict = judge(computed(lost), None, faithful(lost))
    assert [failure.partition(":")[0] for failure in verdict.failures] == ["output 'y'"]
    assert f"all {Y.size} elements are NaN or infinite, in the reference too" in str(verdict)


def test_an_output_that_is_partly_not_finite_is_recorded_with_a_word() -> None:
    """A mask of infinities may be meant; a NaN that the model always had should be seen once."""
    some = Y.copy()
    some.flat[:2] = np.nan, -np.inf
    verdict = judge(computed(some), None, faithful(some))
    assert verdict.failures == ()
    (note,) = verdict.notes
    assert note == (
        f"output 'y': 2 of {Y.size} elements are NaN, infinite or masked, as in the reference: "
        "only the others are compared"
    )
    assert judge(computed(some), computed(some), faithful(some)).notes == ()


def test_without_a_reference_faithfulness_is_unknown() -> None:
    """And said so."""
    verdict = judge(computed(Y), computed(Y), None)
    assert verdict.faithful is None
    assert verdict.same_model is True
    assert verdict.notes == (
        "no reference: whether the build is faithful to its source is not known",
    )


def test_something_else_from_the_same_weights_is_a_failure() -> None:
    """A badly calibrated scale: faithful to its own file, and no longer the recorded model."""
    here = off(Y, 0.4)
    verdict = judge(computed(here), computed(Y), faithful(here))
    assert (verdict.faithful, verdict.same_model, verdict.stale) == (True, False, False)
    (failure,) = verdict.failures
    assert failure.startswith("output 'y': relative L2 difference 0.")
    assert failure.endswith(" (±25 %) from the record's > 0.0001")


def test_something_else_from_other_weights_is_stale() -> None:
    """Another version of the model, with the names of the tensors that differ."""
    here = off(Y, 0.4)
    verdict = judge(computed(here, weights="w2"), computed(Y), faithful(here))
    assert (verdict.faithful, verdict.same_model, verdict.stale) == (True, False, True)
    assert verdict.failures == ()
    assert verdict.changed_tensors == ("fc.weight",)
    assert verdict.notes[0].startswith("output 'y': relative L2 difference 0.")


def test_other_weights_do_not_excuse_an_unfaithful_build() -> None:
    """It is wrong against its own source."""
    here = off(Y, 0.4)
    verdict = judge(computed(here, weights="w2"), computed(Y), faithful(here, 0.1))
    assert (verdict.faithful, verdict.stale) == (False, False)
    assert verdict.failures == ("output 'y': relative L2 error 0.1 against the reference > 0.0001",)


def test_a_silent_change_to_bfloat16_is_a_failure() -> None:
    """It is within bfloat16's tolerance of the reference, and nobody asked for bfloat16."""
    here = off(Y, 6e-3)
    now = computed(here, effective="bf16")
    verdict = judge(now, computed(Y), faithful(here, 6e-3))
    assert (verdict.faithful, verdict.same_model) == (True, False)
    assert len(verdict.failures) == 1
    asked = replace(now, precision="bf16")
    assert judge(asked, computed(Y), faithful(here, 6e-3)).failures == ()


def test_a_difference_within_the_accuracy_of_the_sketch_passes() -> None:
    """Only beyond 1.25 times the tolerance is it certain."""
    assert judge(computed(off(Y, 1e-4 * 0.95)), computed(Y), faithful(Y)).same_model is True
    assert judge(computed(off(Y, 1e-4 * 1.7)), computed(Y), faithful(Y)).same_model is False


def test_the_markers_tolerance_holds_for_both_comparisons() -> None:
    """``parity=0.5`` lets the badly calibrated model pass."""
    here = off(Y, 0.3)
    limits = Limits(parity=0.5)
    verdict = judge(computed(here), computed(Y), faithful(here, 0.3), limits=limits)
    assert verdict.failures == ()
    assert verdict.tolerance == 0.5


def test_other_inputs_make_the_comparison_with_the_record_unknown() -> None:
    """And it is said."""
    then = computed(off(Y, 0.4), inputs="0123456789")
    verdict = judge(computed(Y), then, faithful(Y))
    assert verdict.same_model is None
    assert verdict.failures == ()
    here = computed(Y).parity.inputs[:8]
    assert verdict.notes == (
        (
            f"the inputs hash to {here}, the record's to 01234567: "
            "whether the outputs are still the record's is unknown"
        ),
    )


def test_non_finite_elements_are_held_against_the_record() -> None:
    """Even where no reference tells."""
    here = Y.copy()
    here[0, 0] = np.inf
    verdict = judge(computed(here), computed(Y), None)
    kept = computed(here).parity.exact["y"]
    assert verdict.failures == (
        f"output 'y': NaN, infinite or masked elements: {kept}; the record has none",
    )


def test_integer_outputs_are_held_against_the_record_by_hash() -> None:
    """In fp32 a difference is one; in a coarser precision a near tie may round otherwise."""
    labels = np.arange(16)
    now, then = computed(labels), computed(labels[::-1].copy())
    a, b = (c.parity.exact["y"] for c in (now, then))
    sentence = f"output 'y': hashes to {a}, the record's to {b}"
    verdict = judge(now, then, faithful(labels))
    assert verdict.same_model is False
    assert verdict.failures == (sentence,)
    coarse = replace(then, effective="bf16")
    verdict = judge(now, coarse, faithful(labels))
    assert verdict.same_model is None
    assert verdict.failures == ()
    assert verdict.notes == (f"{sentence}; in this precision a few elements may differ",)


def test_outputs_beyond_the_range_of_a_sketch_are_unknown() -> None:
    """Float64 outputs of 1e200."""
    big = np.full(8, 1e200)
    verdict = judge(computed(big), computed(big), faithful(big))
    assert verdict.same_model is None
    assert verdict.notes == (
        "output 'y': beyond the range of a sketch: whether it is still the record's is unknown",
    )


def test_an_error_that_was_recorded_on_purpose_is_not_reported_again() -> None:
    """Only an acceptance can have written it; a larger one fails."""
    then = computed(Y, error_rel=0.2)
    verdict = judge(computed(Y), then, faithful(Y, 0.2))
    assert verdict.failures == ()
    assert verdict.notes == ("an error of 0.2 against the reference is the record's, too",)
    assert judge(computed(Y), then, faithful(Y, 0.5)).failures == (
        "output 'y': relative L2 error 0.46 against the reference > 0.25",
    )


def test_repeats_that_differ_are_noted_or_fail() -> None:
    """Other bits are worth a note, dropout left on is a failure."""
    little = error_rel({"y": off(Y, 1e-6)}, {"y": Y})
    verdict = judge(computed(Y), computed(Y), faithful(Y), little)
    assert verdict.failures == ()
    assert verdict.notes == (f"repeats differ by {little.worst_rel:.2g}, within the tolerance",)
    assert not measured({"y": Y}, X, repeats=little).repeatable
    much = error_rel({"y": off(Y, 0.5)}, {"y": Y})
    assert judge(computed(Y), None, faithful(Y), much).failures == (
        "repeats differ: output 'y': relative L2 error 0.5 against the first run > 0.0001",
    )
    same = error_rel({"y": Y}, {"y": Y})
    assert judge(computed(Y), computed(Y), faithful(Y), same).notes == ()
    assert measured({"y": Y}, X, repeats=same).repeatable


@pytest.mark.parametrize(
    ("now", "then", "failures", "notes"),
    [
        ({"auc": 0.9352}, {"auc": 0.9348}, (), ()),
        ({"auc": math.nan}, {"auc": math.nan}, (), ()),
        (
            {"auc": 0.9},
            {"auc": 0.9348},
            ("metric 'auc' is 0.9, the record's 0.9348 (allowed: ±0.0093)",),
            (),
        ),
        (
            {"cer": 0.5},
            {"cer": 0.25},
            ("metric 'cer' is 0.5, the record's 0.25 (allowed: ±0.0025)",),
            (),
        ),
        (
            {"auc": math.nan},
            {"auc": 0.5},
            ("metric 'auc' is nan, the record's 0.5 (allowed: ±0.005)",),
            (),
        ),
        ({"loss": 1e-7}, {"loss": 0.0}, (), ()),
        (
            {"loss": 1e-3},
            {"loss": 0.0},
            ("metric 'loss' is 0.001, the record's 0 (allowed: ±1e-06)",),
            (),
        ),
        ({}, {"auc": 0.5}, ("metric 'auc' of the record was not measured",), ()),
        ({"auc": 0.5}, {}, (), ("metric 'auc' = 0.5 is not in the record",)),
    ],
)
def test_task_metrics_are_held_against_the_records(
    now: dict[str, float],
    then: dict[str, float],
    failures: tuple[str, ...],
    notes: tuple[str, ...],
) -> None:
    """One per cent either way; one that vanished or appeared is said."""
    verdict = judge(computed(Y, metrics=now), computed(Y, metrics=then), faithful(Y))
    assert verdict.failures == failures
    assert verdict.notes == notes


def test_a_metric_of_another_version_of_the_model_is_shown_and_not_judged() -> None:
    """Retraining moves it; the record of the new version will hold it."""
    here = off(Y, 0.4)
    now = computed(here, weights="w2", metrics={"auc": 0.95})
    verdict = judge(now, computed(Y, metrics={"auc": 0.9}), faithful(here))
    assert verdict.stale
    assert verdict.failures == ()
    assert verdict.notes[-1] == "metric 'auc' is 0.95, the record's 0.9 (allowed: ±0.009)"


def test_changes_of_the_interface_are_named() -> None:
    """Between build and record dtypes are exact, unlike against the reference."""
    half = Y.astype(np.float16)
    changes = parity.interface_changes(computed(half).parity, computed(Y).parity)
    assert changes == ("output 'y' is float16, the record's float32",)
    then = computed(Y, outputs=(TensorSpec(name="y", dtype="float32", shape=(16, 65)),))
    changes = parity.interface_changes(computed(Y).parity, then.parity)
    assert changes == ("output 'y' has shape (16, 64), the record's (16, 65)",)
    assert judge(computed(Y), then, faithful(Y)).same_model is None
    spec = {n: TensorSpec(name=n, dtype="int64", shape=(1,)) for n in "abc"}
    now = replace(computed(Y).parity, input_specs=(spec["a"], spec["b"]))
    old = replace(now, input_specs=(spec["b"], spec["a"]))
    assert parity.interface_changes(now, old) == (
        "inputs are in the order ['a', 'b'], the record's in ['b', 'a']",
    )
    old = replace(now, input_specs=(spec["a"], spec["c"]))
    assert parity.interface_changes(now, old) == (
        "input 'c' of the record is missing",
        "input 'b' is not in the record",
    )


def test_a_renamed_tensor_is_no_changed_tensor() -> None:
    """Only what was changed, added or removed is named."""
    now = replace(computed(Y, weights="w2"), tensors={"new": "1", "b": "2", "c": "9", "d": "4"})
    then = replace(computed(Y), tensors={"old": "1", "b": "2", "c": "3", "e": "5"})
    assert parity.changed_tensors(now, then) == ("c", "d", "e")
    (note,) = judge(now, then, faithful(Y)).notes
    assert note == "weights changed (3, 'c' first), the outputs did not"
    assert parity.changed_tensors(now, replace(then, weights="w2")) == ()


# --- what the record keeps ------------------------------------------------------------------------


def test_a_record_keeps_signature_sketch_hashes_and_metrics() -> None:
    """Of the outputs it keeps no value."""
    kept = measured(
        {"y": Y, "label": np.array([3, 1])}, X, faithful(Y, 1e-2), {"auc": np.float64(0.9)}
    )
    assert isinstance(kept, Parity)
    assert kept.reference == "cpu"
    assert kept.error_rel == pytest.approx(1e-2, rel=0.01)
    assert kept.floors_rel == {"y": 1e-7}
    assert kept.outputs == (
        TensorSpec(name="y", dtype="float32", shape=(16, 64)),
        TensorSpec(name="label", dtype="int64", shape=(2,)),
    )
    assert kept.input_specs == (TensorSpec(name="x", dtype="float32", shape=(16, 8)),)
    assert list(kept.sketches) == ["y"]
    assert list(kept.exact) == ["label"]
    assert type(kept.metrics["auc"]) is float
    assert math.isnan(measured({"y": Y}, X).error_rel)
