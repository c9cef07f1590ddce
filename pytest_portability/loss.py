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
        low: lower end of the confidence interval.
        high: upper end.
        relative: whether both sides were divided by the same yardstick; False means raw seconds.
    """

    axis: str
    value: float
    low: float
    high: float
    relative: bool = True

    def __str__(self) -> str:
        """Such as ``8.2 % lost (6.9 to 9.5 %, busy)`` or ``3.1 % gained (1.9 to 4.3 %, wall)``."""
        raw = "" if self.relative else ", raw seconds"
        gained = self.value < 0
        ends = (-self.high, -self.low) if gained else (self.low, self.high)
        low, high = (f"{100 * end + 0.0:.1f}" for end in ends)
        word = "gained" if gained else "lost"
        return f"{100 * abs(self.value):.1f} % {word} ({low} to {high} %, {self.axis}{raw})"


CONFIDENCE = 0.99975
"""One-sided level of each look. A regression is claimed at 3, 4, 5 or 6 repeats on one of two axes:
by Bonferroni's bound at most 8 × 0.025 % = 0.2 % of identical builds are flagged, in fact far fewer
because looks and axes are strongly correlated (Pocock 1977, doi:10.1093/biomet/64.2.191) and the
estimate has to exceed the tolerance too."""

PRIOR_FREEDOM = 10.0
"""Degrees of freedom of the prior spread: what about a dozen earlier processes would have given."""

CONTRADICTED = 2.0
"""Variance of the samples ÷ the prior's beyond which the prior is dropped. With 4 degrees of
freedom a right prior is dropped in 9 % of cases (χ²₄ > 8), which costs a repeat; a prior too
small by 3 or 5 would else flag up to 0.6 % of identical builds (simulated), and so 0.3 %."""

WIDEST = math.log(100)
"""Half of the widest interval of ln(figure): a factor of 100 either way says nothing already."""

UNKNOWN_CONTENTION = 0.35
"""Assumed on a CPU without a witness: about what a load of 2.7 on two cores takes away."""

RAW_SPREAD = 0.10
"""Between processes of raw seconds; identical builds differed by 2–12 %."""

SPREADS = {
    # (torch, several threads, axis): (idle, more per unit of contention), both as fractions.
    # Fitted to measured spreads: idle, and beside bursty neighbours (load 2.7 on two cores), whose
    # contention is put at 0.35 by estimate. Wall beside them: 9–21 %, busy 0.5–1.6 %, torch with
    # two threads 7 %.
    (False, False, "busy"): (0.010, 0.02),
    (False, True, "busy"): (0.012, 0.03),
    (True, False, "busy"): (0.012, 0.05),
    (True, True, "busy"): (0.020, 0.19),
    (False, False, "wall"): (0.010, 0.37),
    (False, True, "wall"): (0.015, 0.37),
    (True, False, "wall"): (0.015, 0.37),
    (True, True, "wall"): (0.020, 0.37),
}
"""Standard deviation of ln(time ÷ yardstick) between fresh processes of one build."""

ACCELERATOR_SPREAD = 0.015
"""Not measured by us yet: a device event beside a neighbour-free yardstick."""


@dataclass(frozen=True, slots=True)
class Prior:
    """The spread to expect between processes before any is seen.

    Attributes:
        spread_rel: standard deviation of ln(figure).
        freedom: degrees of freedom it counts for.
    """

    spread_rel: float
    freedom: float = PRIOR_FREEDOM


@dataclass(frozen=True, slots=True)
class Sample:
    """One axis of one side, and over how many fresh processes."""

    axis: Axis
    repeats: int


def expected(record: Record, axis: str, contended: float | None) -> Prior:
    """The prior of a build: by runtime family, threads, axis and how contended the machine is.

    Args:
        record: whose build it is.
        axis: ``busy`` or ``wall``.
        contended: share (0–1) of the processor that neighbours took; None is unknown, and then
            taken for contended on a CPU.
    """
    if record.platform != "cpu":
        return Prior(ACCELERATOR_SPREAD)
    torch = record.key.runtime.split(".")[0] == "torch"
    idle, slope = SPREADS[torch, record.threads != 1, axis]
    return Prior(math.hypot(idle, slope * (UNKNOWN_CONTENTION if contended is None else contended)))


def loss(
    axis: str, check: Sample, baseline: Sample, prior: Prior, *, relative: bool = True
) -> Interval | None:
    """The loss of throughput with a confidence interval that knows the spread between processes.

    With d the difference of the means of ln(figure), the loss is 1 − exp(−d). Its standard error
    is s·√(1/n₁ + 1/n₂), where s² pools both sides' variances with the prior's, each weighted by its
    degrees of freedom: the moderated t of Smyth 2004 (doi:10.2202/1544-6115.1027). Where the
    samples alone spread more than that they are believed instead, and where they contradict the
    prior it is dropped, so that a prior too good for this machine makes nothing certain. One
    repeat has no variance and counts as such;
    equal repeats (variance 0) lean on the prior.

    Args:
        axis: ``busy`` or ``wall``.
        check: the figures of now.
        baseline: the figures to hold them against.
        prior: of figures relative to the yardstick.
        relative: whether both were held against the same yardstick; if not, or if a ratio is not
            a number, raw seconds are compared, with ``RAW_SPREAD`` added to the prior.

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
            squares += (side.repeats - 1) * side.axis.spread_rel**2
    variance, freedom = _variance(squares, freedom, replace(prior, spread_rel=spread))
    error = math.sqrt(variance * (1 / check.repeats + 1 / baseline.repeats))
    half = min(t_quantile(CONFIDENCE, freedom) * error, WIDEST)
    d = math.log(now / then)
    value, low, high = (-math.expm1(-(d + step)) for step in (0.0, -half, half))
    return Interval(axis=axis, value=value, low=low, high=high, relative=relative)


def _variance(squares: float, freedom: float, prior: Prior) -> tuple[float, float]:
    """Variance between processes and its degrees of freedom, from squared deviations and prior."""
    if freedom and squares / freedom > CONTRADICTED * prior.spread_rel**2:
        return squares / freedom, freedom
    total = prior.freedom + freedom
    pooled = (prior.freedom * prior.spread_rel**2 + squares) / total
    return (max(pooled, squares / freedom) if freedom else pooled), total


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
