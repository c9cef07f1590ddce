"""How far outputs are from a reference and from a record's, and what that means. Knows no files."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np

from pytest_portability.models import Arrays, TensorSpec, digest, signature
from pytest_portability.outputs import (
    SKETCH_REL,
    Differences,
    OutputDifference,
    error_rel,
    exact_digest,
    kind,
    nonfinite,
    norm_change,
    sketch,
    sketch_distance,
)

__all__ = [
    "FLOOR_FACTOR",
    "TOLERANCES",
    "Computed",
    "Differences",
    "Limits",
    "OutputDifference",
    "Parity",
    "ParityVerdict",
    "Reference",
    "changed_tensors",
    "error_rel",
    "interface_changes",
    "judge",
    "measured",
    "sketch",
    "sketch_distance",
    "tolerance",
    "tolerance_between",
]

TOLERANCES = {
    "fp64": 1e-4,
    "fp32": 1e-4,
    "tf32": 5e-3,
    "fp16": 1e-2,
    "bf16": 5e-2,
    "int8": 1e-1,
    "": 1e-2,
}
"""Effective precision → allowed relative L2 error of an output.

Rounding errors of independent signs grow like u·√(depth) and layers amplify them, so each row is
a multiple of the unit roundoff u, held against what conversions of real and synthetic models
measured (relative L2 unless said):

* fp32, u = 2⁻²⁴ = 6.0e-8, × 1 700: summation order, fused kernels and vendor libraries measured
  1e-7 to 1e-5 with the optimiser on against off, at most 4.5e-5 (largest absolute difference, OCR
  recognition on OpenVINO); TF32-like rounding measured 6e-4 and bf16 6e-3: both must be caught.
* fp64 has fp32's row because the reference of an ONNX model is no better than fp32.
* tf32, u = 2⁻¹¹ = 4.9e-4, × 10: 6e-4 after four dense layers.
* fp16, u = 2⁻¹¹, × 20: 4e-4 after four convolutions, about 1e-2 on speech; twice tf32's row because
  what is stored is rounded too, and its range is 6e-8 to 65 504.
* bf16, u = 2⁻⁸ = 3.9e-3, × 13: 6e-3 after six dense layers, about 7e-3 on a 6-layer transformer.
* int8: the reference is the same quantised model, so what is left are activations that round to
  the neighbouring step of 256; a badly calibrated scale measured 0.47.
* unknown: no runtime known computes more coarsely than fp16 unasked without saying so.

A model that amplifies more than that shows it in its floor, or takes the marker's ``parity=``.
"""

FLOOR_FACTOR = 8.0
"""The floor is what one rounding of the inputs, or another split of the sums, does to the outputs.
A build that orders its sums differently rounds anew in every layer; independent roundings add as
the square root of their number, and eight covers sixty-four layers in a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parity:
    """How far the outputs are from the CPU reference, and what they were.

    Attributes:
        reference: what the reference was, such as ``onnxruntime cpu fp32 unoptimised``.
        error_rel: worst relative L2 error over the outputs; NaN without a reference.
        floors_rel: output name → the same between two arrangements of the reference itself.
        inputs: hash of the inputs; sketches of other inputs say nothing.
        outputs: signature at this profile's concrete shapes.
        sketches: output name → base64 of norm and count sketch, one short line.
        exact: output name → hash, for integer, boolean and string outputs; for a floating output
            that holds non-finite or fill elements, their counts and the hash of their positions.
        metrics: task metrics by name.
        repeatable: whether two runs of the same build gave the same bytes.
    """

    reference: str
    error_rel: float
    inputs: str
    input_specs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    floors_rel: Mapping[str, float] = field(default_factory=dict)
    sketches: Mapping[str, str] = field(default_factory=dict)
    exact: Mapping[str, str] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    repeatable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What a build's outputs were held against to tell whether it is faithful to its source.

    Attributes:
        name: such as ``onnxruntime cpu fp32 unoptimised``.
        differences: the build's outputs against it.
        floors_rel: output name → error between two arrangements of the reference itself
            (fraction, ≥ 0): an output that amplifies rounding excuses no other.
    """

    name: str
    differences: Differences
    floors_rel: Mapping[str, float] = field(default_factory=dict)


def measured(
    outputs: Arrays,
    inputs: Arrays,
    reference: Reference | None = None,
    metrics: Mapping[str, float] | None = None,
    repeats: Differences | None = None,
) -> Parity:
    """What the record keeps of a build's outputs.

    Args:
        outputs: of the timed run, in the model's order; only read.
        inputs: what it was fed; only read.
        reference: the outputs held against the reference, None without one.
        metrics: task metrics by name.
        repeats: the outputs of a second run of the same build held against these.
    """
    sketches: dict[str, str] = {}
    exact: dict[str, str] = {}
    for name, output in outputs.items():
        array = np.asarray(output)
        if kind(array) == "floating":
            sketches[name] = sketch(array)
            if lost := nonfinite(array):
                exact[name] = lost
        else:
            exact[name] = exact_digest(array)
    return Parity(
        reference=reference.name if reference else "",
        error_rel=reference.differences.worst_rel if reference else math.nan,
        floors_rel=dict(reference.floors_rel) if reference else {},
        inputs=digest(inputs),
        input_specs=signature(inputs),
        outputs=signature(outputs),
        sketches=sketches,
        exact=exact,
        metrics={name: float(value) for name, value in (metrics or {}).items()},
        repeatable=repeats is None or repeats.identical,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Computed:
    """What one build computed, how, and from which weights: one side of a judgement.

    Attributes:
        precision: what was asked for, such as ``native``.
        effective: what was observed, empty if the runtime does not say.
        weights: hash of the weights.
        tensors: tensor name → short digest.
    """

    parity: Parity
    precision: str
    effective: str
    weights: str
    tensors: Mapping[str, str] = field(default_factory=dict)

    @property
    def presumed(self) -> str:
        """Effective precision; the one asked for where the runtime does not say."""
        return self.effective or ("" if self.precision == "native" else self.precision)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What may differ; fractions.

    Attributes:
        parity: the user's tolerance of the relative L2 error, None for the table's.
        metric_rel: allowed relative difference of a task metric, either way.
        metric_abs: difference of a task metric that never counts, for metrics near zero.
    """

    parity: float | None = None
    metric_rel: float = 0.01
    metric_abs: float = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class ParityVerdict:
    """Whether a build still computes what it should.

    Attributes:
        faithful: whether it is the model it was built from; None without a reference.
        same_model: whether it computes what the baseline's build did; None if that is unknown.
        failures: what is outside its tolerance, one sentence each.
        stale: the build is faithful and computes something else because its weights changed.
        changed_tensors: weights that were changed, added or removed since the baseline.
        notes: what is worth saying and no failure, one sentence each.
        tolerance: allowed relative L2 error against the reference, of an output without a floor.
        errors_rel: output name → its error against the reference, as in ``OutputDifference``.
        allowed_rel: output name → what of it is allowed.
    """

    faithful: bool | None
    same_model: bool | None
    failures: tuple[str, ...] = ()
    stale: bool = False
    changed_tensors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    tolerance: float = 0.0
    errors_rel: Mapping[str, float] = field(default_factory=dict)
    allowed_rel: Mapping[str, float] = field(default_factory=dict)


UNREFERENCED = "no reference: whether the build is faithful to its source is not known"


def tolerance(effective: str, floor_rel: float, override: float | None = None) -> float:
    """Allowed relative L2 error of an output.

    Args:
        effective: effective precision; one that the table does not know counts as unknown.
        floor_rel: error between two arrangements of the reference (fraction, ≥ 0).
        override: the user's own tolerance; it wins.
    """
    if override is not None:
        return override
    row = TOLERANCES.get(effective, TOLERANCES[""])
    if not math.isfinite(floor_rel):
        return row
    # However ill-conditioned a model is: beyond bf16's error the check would see nothing.
    return max(row, min(FLOOR_FACTOR * floor_rel, TOLERANCES["bf16"]))


def tolerance_between(
    now: Computed, then: Computed, output: str, override: float | None = None
) -> float:
    """Allowed relative L2 difference between what two builds computed for an output.

    That of the coarser precision; but for ``native``, where nobody asked for a coarser one, that
    of the record: a silent change from fp32 to bf16 is out of it. Where the record's runtime did
    not say, the finest precision that its error against the reference allows is presumed. The
    floor is the record's: what makes a model inaccurate may make its own floor so, too.
    """
    floor = then.parity.floors_rel.get(output, 0.0)
    names = [then.presumed]
    if now.precision != "native":
        names.append(now.presumed)
    elif not then.presumed:
        fits = [n for n in ("fp32", "tf32") if then.parity.error_rel <= TOLERANCES[n]]
        names = [*fits, ""][:1]
    return max(tolerance(name, floor, override) for name in names)


def judge(
    now: Computed,
    then: Computed | None,
    reference: Reference | None,
    repeats: Differences | None = None,
    limits: Limits = Limits(),
) -> ParityVerdict:
    """Judge what a build computed.

    Not faithful to its reference, or something else than the baseline's build from the same
    weights: a failure. Faithful and something else from other weights: another version of the
    model, ``stale``; but in a coarser precision a failure. The same: one accuracy class, whatever
    file, exporter or graph it comes from.

    Args:
        now: the build under test.
        then: the baseline, None if there is none.
        reference: the build's outputs held against the reference, None without one.
        repeats: the outputs of a second run of the same build held against the first's.
        limits: what may differ.
    """
    least = tolerance(now.presumed, 0.0, limits.parity)

    def allowed(output: str) -> float:
        return tolerance(now.presumed, now.parity.floors_rel.get(output, 0.0), limits.parity)

    failures: list[str] = []
    notes: list[str] = []
    if repeats is not None and not repeats.identical:
        wrong = repeats.failures(allowed, "the first run")
        failures += [f"repeats differ: {sentence}" for sentence in wrong]
        if not wrong:
            notes.append(f"repeats differ by {repeats.worst_rel:.2g}, within the tolerance")
    unfaithful = _unfaithful(reference, then, allowed, notes)
    failures += unfaithful
    faithful = None if reference is None else not unfaithful
    errors = {d.name: d.error_rel for d in reference.differences.outputs} if reference else {}
    fits = {name: allowed(name) for name in errors}
    verdict = partial(
        ParityVerdict, faithful=faithful, tolerance=least, errors_rel=errors, allowed_rel=fits
    )
    if then is None:
        return verdict(same_model=None, failures=tuple(failures), notes=tuple(notes))
    changed = changed_tensors(now, then)
    same, other = _same_model(now, then, limits, notes)
    if same and changed:
        notes.append(f"weights changed ({len(changed)}, {changed[0]!r} first), the outputs did not")
    metrics = _metrics(now.parity.metrics, then.parity.metrics, limits, notes)
    # Other weights on other inputs: nothing says that it is still the same model.
    stale = same is not True and now.weights != then.weights and faithful is not False
    # What was quantised or narrowed on the way is no new version that needs nobody's word.
    coarser = _coarser(now, then)
    stale = stale and not coarser
    if stale:
        notes += [*other, *metrics]
    else:
        failures += [*(other if coarser or now.weights == then.weights else ()), *metrics]
    return verdict(
        same_model=same,
        failures=tuple(failures),
        stale=stale,
        changed_tensors=changed,
        notes=tuple(notes),
    )


def _coarser(now: Computed, then: Computed) -> bool:
    """Whether it computes in a precision that errs by more than the record's, as far as known."""
    here, there = (TOLERANCES.get(side.effective or "unknown") for side in (now, then))
    return here is not None and there is not None and here > there


def between(now: Computed, then: Computed) -> ParityVerdict:
    """Judge two stored records: whether they computed the same.

    Each holds what it was held against; that is not computed again.
    """
    judged = judge(now, then, None)
    return replace(judged, notes=tuple(n for n in judged.notes if n != UNREFERENCED))


def _unfaithful(
    reference: Reference | None,
    then: Computed | None,
    allowed: Callable[[str], float],
    notes: list[str],
) -> tuple[str, ...]:
    """What is wrong against the reference; an error that the record holds was accepted before."""
    if reference is None:
        notes.append(UNREFERENCED)
        return ()
    accepted = then.parity.error_rel if then is not None else 0.0
    worst = reference.differences.worst_rel
    usual = max((allowed(d.name) for d in reference.differences.outputs), default=0.0)
    known = accepted * (1 + SKETCH_REL) if usual < accepted < math.inf else 0.0
    if reference.differences.failures(allowed) and worst <= known:
        notes.append(f"an error of {worst:.2g} against the reference is the record's, too")
    empty = []
    shown = [d for d in reference.differences.outputs if d.elements]
    if not shown and reference.differences.outputs:
        empty.append("no output has an element with these inputs: nothing can be compared")
    elif len(shown) < len(reference.differences.outputs):
        names = [d.name for d in reference.differences.outputs if not d.elements]
        notes.append(f"nothing is compared of {', '.join(names)}: empty with these inputs")
    for d in shown:
        if not d.nonfinite or d.misplaced:
            continue
        if d.nonfinite == d.elements:
            empty.append(
                f"output {d.name!r}: all {d.elements} elements are NaN or infinite, in the "
                "reference too: nothing can be compared"
            )
        elif then is None:  # a record holds their positions: from then on they are compared
            notes.append(
                f"output {d.name!r}: {d.nonfinite} of {d.elements} elements are NaN, infinite or "
                "masked, as in the reference: only the others are compared"
            )
    failures = reference.differences.failures(lambda name: max(allowed(name), known))
    return (*empty, *failures)


def _same_model(
    now: Computed, then: Computed, limits: Limits, notes: list[str]
) -> tuple[bool | None, tuple[str, ...]]:
    """Whether both computed the same (None: unknown), and how not, one sentence an output."""
    a, b = now.parity, then.parity
    if a.inputs != b.inputs:
        notes.append(
            f"the inputs hash to {a.inputs[:8]}, the record's to {b.inputs[:8]}: "
            "whether the outputs are still the record's is unknown"
        )
        return None, ()
    shapes = {spec.name: spec.shape for spec in b.outputs}
    common = [s.name for s in a.outputs if shapes.get(s.name) == s.shape and 0 not in s.shape]
    failures: list[str] = []
    unknown = not common
    for name in common:
        allowed = tolerance_between(now, then, name, limits.parity)
        change, certain = _output_change(a, b, name, allowed)
        unknown = unknown or not certain
        if change:
            (failures if certain else notes).append(f"output {name!r}: {change}")
    return (False if failures else None if unknown else True), tuple(failures)


def _output_change(now: Parity, then: Parity, name: str, allowed: float) -> tuple[str, bool]:
    """How one output differs from the record's, empty if it does not, and whether that is sure."""
    here, there = now.exact.get(name, ""), then.exact.get(name, "")
    floating = name in now.sketches and name in then.sketches
    if here != there and floating:
        text = (
            f"NaN, infinite or masked elements: {here or 'none'}; the record has {there or 'none'}"
        )
        return text, True
    if here != there:
        # In low precision a near tie rounds to the other side, and the record does not hold how
        # many elements that is; the comparison with the reference counts them.
        sure = allowed <= TOLERANCES["fp32"]
        more = "" if sure else "; in this precision a few elements may differ"
        return f"hashes to {here or 'nothing'}, the record's to {there or 'nothing'}{more}", sure
    if not floating and not here:
        return "the record holds nothing of it: whether it is still the record's is unknown", False
    sketches = (now.sketches[name], then.sketches[name]) if floating else ()
    distance = sketch_distance(*sketches) if sketches else 0.0
    if math.isnan(distance):
        return "beyond the range of a sketch: whether it is still the record's is unknown", False
    if distance > allowed * (1 + SKETCH_REL):
        text = f"relative L2 difference {distance:.2g} (±25 %) from the record's > {allowed:.2g}"
        return text, True
    least = norm_change(*sketches) if sketches else 0.0
    return f"norm {least:.2g} off the record's > {allowed:.2g}" if least > allowed else "", True


def _metrics(
    now: Mapping[str, float], then: Mapping[str, float], limits: Limits, notes: list[str]
) -> tuple[str, ...]:
    """Task metrics that moved or are gone, one sentence each; NaN equals NaN."""
    notes += [f"metric {n!r} = {now[n]:.5g} is not in the record" for n in now if n not in then]
    # Not a note: leaving the metric out would switch the gate off in silence.
    failures = [f"metric {n!r} of the record was not measured" for n in then if n not in now]
    for name in (n for n in now if n in then):
        a, b = now[name], then[name]
        if a == b or (math.isnan(a) and math.isnan(b)):
            continue
        allowed = max(limits.metric_abs, limits.metric_rel * abs(b))
        if not abs(a - b) <= allowed:
            failures.append(
                f"metric {name!r} is {a:.5g}, the record's {b:.5g} (allowed: ±{allowed:.2g})"
            )
    return tuple(failures)


def interface_changes(now: Parity, then: Parity) -> tuple[str, ...]:
    """How names, order, shapes or dtypes of inputs and outputs differ, one sentence each."""
    return (
        *_signature_changes("input", now.input_specs, then.input_specs),
        *_signature_changes("output", now.outputs, then.outputs),
    )


def _signature_changes(
    what: str, now: tuple[TensorSpec, ...], then: tuple[TensorSpec, ...]
) -> list[str]:
    here, there = {s.name: s for s in now}, {s.name: s for s in then}
    found = [f"{what} {n!r} of the record is missing" for n in there if n not in here]
    found += [f"{what} {n!r} is not in the record" for n in here if n not in there]
    if not found and [*here] != [*there]:
        found.append(f"{what}s are in the order {[*here]}, the record's in {[*there]}")
    for name in (n for n in here if n in there):
        a, b = here[name], there[name]
        if a.dtype != b.dtype:
            found.append(f"{what} {name!r} is {a.dtype}, the record's {b.dtype}")
        if a.shape != b.shape:
            found.append(f"{what} {name!r} has shape {a.shape}, the record's {b.shape}")
    return found


def changed_tensors(now: Computed, then: Computed) -> tuple[str, ...]:
    """Names of weights that were changed, added or removed; one that was only renamed is none."""
    if now.weights == then.weights:
        return ()
    here, there = now.tensors, then.tensors
    changed = {n for n in here.keys() & there.keys() if here[n] != there[n]}
    gone = {there[n] for n in there.keys() - here.keys()}
    new = {here[n] for n in here.keys() - there.keys()}
    added = {n for n in here.keys() - there.keys() if here[n] not in gone}
    removed = {n for n in there.keys() - here.keys() if there[n] not in new}
    return tuple(sorted(changed | added | removed))
