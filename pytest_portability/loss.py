"""The loss of throughput and how certain it is. Knows figures and their spread, not verdicts."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist

from pytest_portability.records import Axis, Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Loss of throughput on one axis: 0.31 is 31 % slower, negative is faster; all fractions.

    Attributes:
        axis: ``busy`` or ``wall``.
        value: the estimate.
        low: lower end of the interval, which the loss is below in one case of twenty at most.
        high: upper end, likewise.
        certain: whether "no loss" is outside of the wider interval that a claim needs.
        relative: whether both sides were divided by the same yardstick; False means raw seconds.
    """

    axis: str
    value: float
    low: float
    high: float
    certain: bool = True
    relative: bool = True

    def __str__(self) -> str:
        """Such as ``8.2 % lost (6.9 to 9.5 %, busy)`` or ``3.1 % gained (1.9 to 4.3 %, wall)``."""
        raw = "" if self.relative else ", raw seconds"
        gained = self.value < 0
        ends = (-self.high, -self.low) if gained else (self.low, self.high)
        low, high = (f"{100 * end + 0.0:.1f}" for end in ends)
        word = "gained" if gained else "lost"
        return f"{100 * abs(self.value):.1f} % {word} ({low} to {high} %, {self.axis}{raw})"


CLAIM = 0.99985
"""One-sided level at which a loss or a gain is claimed. It may be at 3, 4, 5 or 6 repeats on one of
two axes: by Bonferroni's bound at most 8 × 0.015 % = 0.12 % of identical builds are flagged, in
fact far fewer because looks and axes are strongly correlated (Pocock 1977,
doi:10.1093/biomet/64.2.191) and the estimate has to exceed the tolerance too."""

INSIDE = 0.95
"""One-sided level of the interval that is shown and that a pass needs inside the tolerance. It is
not corrected for the up to five looks, because a pass costs less when it is wrong: a loss of 8 %
passes at 5 % only if the estimate errs by 3 % and 1.6 standard errors at once, and the next run
looks again."""

PRIOR_FREEDOM = 4.0
"""Degrees of freedom of the prior spread: what five earlier processes would have given."""

CONTRADICTED = 1.5
"""Variance of the samples ÷ the prior's beyond which the prior is dropped. Simulated machines whose
spread was 0.3 to 4 times the prior's then flagged at most 0.3 % of identical builds."""

WIDEST = math.log(100)
"""Half of the widest interval of ln(figure): a factor of 100 either way says nothing already."""

FURTHEST = 500.0
"""Most that ln(figure) is taken to differ by: a record that nothing measured overflows no float."""

UNKNOWN_CONTENTION = 0.35
"""Assumed on a CPU without a witness: about what a load of 2.7 on two cores takes away."""

RAW_SPREAD = 0.10
"""Between processes of raw seconds; identical builds differed by 2–12 %."""

QUIET_SPREAD = {"busy": 0.010, "wall": 0.012}
"""Standard deviation of ln(time ÷ yardstick) between fresh processes of one build on a machine
whose windows agree."""

SESSION_SPREAD = 0.010
"""Standard deviation of the same between sessions, whose repeats share the state of the machine.
Identical builds an hour apart differed by 0.1 to 2.6 % on an idle virtual machine, where repeats of
one session agreed within 0.3 to 0.8 %; 16 to 28 % where memory decides, which nothing here tells.
A claim has to be beyond it; a pass does not, for the next session looks again."""

SESSION_UNREST = 0.25
"""More of it per unit of unrest where several threads work: torch on two settled for whole sessions
in states up to 18 % apart, within which windows disagreed by 14 %."""

SESSION_SPEED = 0.07
"""More of it per unit of ln(machine's speed) that the machine changed by since the record: a build
of many small operators took 8 % longer than the yardstick tells in a session in which the machine
had become 26 % slower between two of its measurements, and windows and repeats agreed."""

SHORT_CALL_S = 20e-6
"""Seconds per launch up to which a build on a CPU is taken to spend its time on calls rather than
in kernels: a call of torch's costs some 4 µs, one of ONNX Runtime's 2."""

CALLS_SPEED = 0.7
"""In place of ``SESSION_SPEED`` for those: what slows a processor down unseen (on a virtual machine
the other half of its core) slows calls more than a product of matrices. Layers of torch, 4 µs a
call, took 48 % longer than the yardstick told, 21 % slower itself; no counter showed why. Set so
that this one observation is not claimed, with three repeats that agree within 5 %."""

UNREST = 0.4
"""More of it per unit of unrest: where the typical window takes 10 % longer than an undisturbed
one, undisturbed ones of several processes have a standard deviation of some 4 %. Fitted on a
virtual machine whose neighbours no counter shows; it needs no table of runtimes: the build's own
windows tell."""

CONTENTION = {
    # (several threads, axis): more of it per unit of contention, and of its change since the record
    (False, "busy"): (0.03, 0.06),
    (True, "busy"): (0.06, 0.60),  # what the second thread does depends on its getting a core
    (False, "wall"): (0.37, 0.0),
    (True, "wall"): (0.60, 0.0),
}
"""Fitted to machines beside bursty and steady neighbours that took 20–80 % of the processor. Beside
equal neighbours, work per batch of identical builds agreed within 2 %; between an idle machine and
those, that of one thread moved by 3 %, that of two by 30 %."""

UNKNOWN_UNREST = 0.05
"""Assumed where a record does not tell."""

ACCELERATOR_SPREAD = 0.015
"""Not measured by us yet: a device event beside a neighbour-free yardstick."""


@dataclass(frozen=True, slots=True)
class Prior:
    """The spread to expect between processes before any is seen.

    Attributes:
        spread_rel: standard deviation of ln(figure).
        session_rel: that between sessions.
        freedom: degrees of freedom it counts for.
    """

    spread_rel: float
    session_rel: float = SESSION_SPREAD
    freedom: float = PRIOR_FREEDOM


CROWDING = 2.0
"""What neighbours may add to ln(time) per unit by which unrest grew with them. Beside a steady load
windows of torch disagreed by 11 to 26 % more than on the idle machine, and its undisturbed time was
26 to 64 % longer: neighbours empty the caches that small operators live in. Builds whose windows
agreed as before took within 5 % of what they took. Fitted on 360 pairs of identical builds."""

CROWD = 0.1
"""Change of contention since the record from which that counts."""


def crowding(axis: str, check: Record, baseline: Record) -> float:
    """What neighbours that the record was not made beside may have added to ln(figure).

    Args:
        axis: ``busy`` or ``wall``.
        check: of now.
        baseline: what it is held against.

    Returns:
        Positive where there is more of them now, negative where there was then; 0 where nothing
        tells.
    """
    now, then = check.figures, baseline.figures
    if now.contended is None or then.contended is None:
        return 0.0
    if abs(now.contended - then.contended) <= CROWD:
        return 0.0
    more, less = (_unrest(getattr(side, axis)) for side in (now, then))
    return CROWDING * (more - less)


WEIGHT_BYTES = 4
"""Per parameter. Fewer after quantisation: then memory excuses more than it should."""

CACHED_BYTES = 8 * 2**20
"""Weights up to this stay in a cache from batch to batch: builds with 1.6 MB took the same time in
sessions whose copies differed by a fifth."""

BANDWIDTH_NOISE = 0.2
"""What ln(bandwidth) may differ by for nothing: on an idle machine that of sessions had a standard
deviation of 0.09, while a build that streams through 52 MB of weights took the same."""


def memory_drift(check: Record, baseline: Record) -> float:
    """What the machine's memory alone may have added to ln(time ÷ yardstick) since the record.

    An upper bound: weights that no cache is sure to hold are taken to come from memory once per
    batch, at the cost of a copy. What activations cost is not in it.

    Returns:
        Positive where memory became slower than the yardstick did; 0 where nothing tells.
    """
    now, then = check.figures, baseline.figures
    known = (now.copy_bandwidth, then.copy_bandwidth, now.yardstick_s, then.yardstick_s)
    if not all(figure is not None and usable(figure) for figure in known):
        return 0.0
    weights = check.model.parameters * WEIGHT_BYTES
    slower = math.log((then.copy_bandwidth or 1.0) / (now.copy_bandwidth or 1.0))
    slower -= math.log(now.yardstick_s / then.yardstick_s)
    if weights <= CACHED_BYTES or abs(slower) < BANDWIDTH_NOISE:
        return 0.0
    weights_s = weights / (now.copy_bandwidth or 1.0)
    return slower * min(1.0, weights_s / min(now.wall.seconds, then.wall.seconds))


@dataclass(frozen=True, slots=True)
class Sample:
    """One axis of one side, and over how many fresh processes."""

    axis: Axis
    repeats: int


def expected(
    axis: str, check: Record, baseline: Record, contended: float | None, machine: float = 0.0
) -> Prior:
    """The prior of a comparison: by axis, unrest, threads and how the machine is and was.

    Args:
        axis: ``busy`` or ``wall``.
        check: of now.
        baseline: what it is held against; the less quiet of the two counts.
        contended: share (0–1) of the processor that neighbours took; None is unknown, and then
            taken for contended on a CPU.
        machine: how much slower it became since the record, a fraction; negative is faster.
    """
    speed = min(math.log1p(max(machine, -0.99)), WIDEST)
    if check.platform != "cpu":
        return Prior(ACCELERATOR_SPREAD, math.hypot(SESSION_SPREAD, SESSION_SPEED * speed))
    calls = _of_calls(check) or _of_calls(baseline)
    moved = speed * (CALLS_SPEED if calls else SESSION_SPEED)
    taken = UNKNOWN_CONTENTION if contended is None else contended
    then, now = baseline.figures.contended, check.figures.contended
    more = taken if then is None or now is None else abs(now - then)
    parallel = check.parallel or baseline.parallel
    slope, change = CONTENTION[parallel, axis]
    unrest = max(_unrest(getattr(side.figures, axis)) for side in (check, baseline))
    spread = math.hypot(QUIET_SPREAD[axis], UNREST * unrest, slope * taken, change * more)
    session = math.hypot(SESSION_SPREAD, SESSION_UNREST * unrest * parallel, moved)
    return Prior(spread, session)


def _of_calls(record: Record) -> bool:
    """Whether a build spends its time on calls, as far as its kernel path tells."""
    launches = sum(use.launches for use in record.path.uses)
    return record.figures.wall.seconds < launches * SHORT_CALL_S


def _unrest(axis: Axis) -> float:
    seen = axis.unrest_rel
    return UNKNOWN_UNREST if seen is None or not math.isfinite(seen) else min(max(0.0, seen), 10.0)


def loss(
    axis: str,
    check: Sample,
    baseline: Sample,
    prior: Prior,
    *,
    relative: bool = True,
    drift: float = 0.0,
) -> Interval | None:
    """The loss of throughput with a confidence interval that knows the spread between processes.

    With d the difference of the means of ln(figure), the loss is 1 − exp(−d). Its standard error
    is s·√(1/n₁ + 1/n₂), where s² pools both sides' variances with the prior's, each weighted by its
    degrees of freedom: the moderated t of Smyth 2004 (doi:10.2202/1544-6115.1027). Where the
    samples alone spread more than that they are believed instead, and where they contradict the
    prior it is dropped, so that a prior too good for this machine makes nothing certain. One
    repeat has no variance and counts as such; equal repeats (variance 0) lean on the prior. A claim
    is held against the spread between sessions, too.

    Args:
        axis: ``busy`` or ``wall``.
        check: the figures of now.
        baseline: the figures to hold them against.
        prior: of figures relative to the yardstick.
        relative: whether both were held against the same yardstick; if not, or if a ratio is not
            a number, raw seconds are compared, with ``RAW_SPREAD`` added to the prior.
        drift: what the machine may have added to ln(figure); the interval reaches that much
            further, and a claim has to be beyond it.

    Returns:
        None if a figure needed is zero, negative or not a number.
    """
    pairs = [(check.axis.ratio, baseline.axis.ratio), (check.axis.seconds, baseline.axis.seconds)]
    relative = relative and all(usable(figure) for figure in pairs[0])
    now, then = pairs[0] if relative else pairs[1]
    if not (usable(now) and usable(then)) or min(check.repeats, baseline.repeats) < 1:
        return None
    spread = prior.spread_rel if relative else math.hypot(prior.spread_rel, RAW_SPREAD)
    freedom, squares = 0.0, 0.0
    for side in (check, baseline):
        if math.isfinite(side.axis.spread_rel):
            freedom += side.repeats - 1
            squares += (side.repeats - 1) * min(side.axis.spread_rel, WIDEST) ** 2
    variance, freedom = _variance(squares, freedom, replace(prior, spread_rel=spread))
    error = math.sqrt(variance * (1 / check.repeats + 1 / baseline.repeats))
    d = min(max(math.log(now) - math.log(then), -FURTHEST), FURTHEST)
    half = min(t_quantile(INSIDE, freedom) * error, WIDEST)
    ends = (0.0, -half - max(drift, 0.0), half - min(drift, 0.0))
    value, low, high = (-math.expm1(-(d + step)) for step in ends)
    excused = max(drift, 0.0) if d > 0 else max(-drift, 0.0)
    certain = abs(d) - excused > _claimed(error, freedom, prior.session_rel)
    return Interval(axis=axis, value=value, low=low, high=high, certain=certain, relative=relative)


def _variance(squares: float, freedom: float, prior: Prior) -> tuple[float, float]:
    """Variance between processes and its degrees of freedom, from squared deviations and prior."""
    if freedom and squares / freedom > CONTRADICTED * prior.spread_rel**2:
        return squares / freedom, freedom
    total = prior.freedom + freedom
    pooled = (prior.freedom * prior.spread_rel**2 + squares) / total
    return (max(pooled, squares / freedom) if freedom else pooled), total


def _claimed(error: float, freedom: float, session: float) -> float:
    """The difference beyond which a claim is certain, between two sessions.

    Args:
        error: standard error by repeats, above 0.
        freedom: its degrees of freedom; those of the sum with the spread between sessions are by
            Welch and Satterthwaite (doi:10.2307/3002019).
        session: standard deviation of ln(figure) between sessions.
    """
    total = math.hypot(error, math.sqrt(2) * session)
    both = t_quantile(CLAIM, freedom * (total / error) ** 4) * total
    # More degrees of freedom must not make certain what the repeats alone do not.
    return max(both, t_quantile(CLAIM, freedom) * error)


def usable(figure: float) -> bool:
    """Whether a figure can be compared: positive and finite."""
    return math.isfinite(figure) and figure > 0


def t_quantile(level: float, freedom: float) -> float:
    """Quantile of Student's t by its expansion about the normal one, within 0.5 % from 8 on.

    Below that it is too small at most by a few percent at 4, and large enough to decide nothing.

    Abramowitz and Stegun 1964, formula 26.7.5 (https://dlmf.nist.gov/AS).

    Args:
        level: one-sided, between 0.5 and 1.
        freedom: degrees of freedom.
    """
    z = NormalDist().inv_cdf(level)
    g1 = (z**3 + z) / 4
    g2 = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    g3 = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    g4 = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
    return z + g1 / freedom + g2 / freedom**2 + g3 / freedom**3 + g4 / freedom**4
