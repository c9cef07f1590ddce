"""Rules that judge speed, and the table that holds them against each other; see ``detection.py``.

A rule is asked about two sessions, a baseline and a check, and says ``slower``, ``faster``,
``pass`` or ``unsure``. Rules that look at one process see the first of a session, as their tools
would.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from pytest_portability import compare, recording
from pytest_portability.parity import Parity
from pytest_portability.pipeline import RECORDING_REPEATS, REPEATS
from pytest_portability.records import Key, ModelVersion, Record
from pytest_portability.samples import Measurement, Repeat
from pytest_portability.targets import Target
from pytest_portability.verdicts import Verdict

MOST_REPEATS = 6
"""Processes of a session: what a check takes at most."""

FEWER_THREADS = -1
"""Instead of a percentage: one thread where there were two."""

TOLERANCE = 0.05
TARGET = Target(vendor="cpu", arch="x86_64", product="benchmark", platform="cpu")
MODEL = ModelVersion(
    kind="onnx", framework="", opset={}, weights="w", tensors={}, graph="g", parameters=0
)
PARITY = Parity(reference="none", error_rel=0.0, inputs="", input_specs=(), outputs=())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shot:
    """One fresh process.

    Attributes:
        repeat: what the plugin measured.
        seconds: that it took, with its process.
        calls: single calls of the same build afterwards, seconds.
        parameters: of the model.
    """

    repeat: Repeat
    seconds: float
    calls: Any
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """Fresh processes of one build, one after the other; ``percent`` more work than the base."""

    subject: str
    runtime: str
    threads: int
    state: str
    number: int
    percent: int
    shots: tuple[Shot, ...]

    def record(self, repeats: int) -> tuple[Record, Measurement]:
        """What the plugin would record of the first so many processes."""
        taken = tuple(shot.repeat for shot in self.shots[:repeats])
        measurement = Measurement(repeats=taken, batch=1, batch_effective=1, items=1.0)
        key = Key(model=self.subject, target="t", runtime=self.runtime, precision="native", batch=1)
        model = replace(MODEL, parameters=self.shots[0].parameters)
        made = recording.record(key, TARGET, model, measurement, PARITY, environment={}, commit="")
        return made, measurement


Answer = tuple[str, float]
Rule = Callable[[Session, Session], Answer]


def ours(base: Session, check: Session) -> Answer:
    """The plugin's own rule at its default tolerance, repeat by repeat."""
    baseline, _ = base.record(RECORDING_REPEATS)
    for done in range(REPEATS, len(check.shots) + 1):
        record, measurement = check.record(done)
        comparison = compare.decide(record, baseline, measurement=measurement)
        if not compare.undecided(comparison):
            break
    seconds = sum(shot.seconds for shot in check.shots[:done])
    answers = {
        Verdict.REGRESSED: "slower",
        Verdict.IMPROVED: "faster",
        Verdict.INCONCLUSIVE: "unsure",
    }
    return answers.get(comparison.speed or comparison.verdict, "pass"), seconds


def _one_process(figure: Callable[[Any], float], limit: float = 1 + TOLERANCE) -> Rule:
    def rule(base: Session, check: Session) -> Answer:
        now, then = figure(check.shots[0].calls), figure(base.shots[0].calls)
        return ("slower" if now > then * limit else "pass"), float(check.shots[0].calls.sum())

    return rule


def _torch_latency(calls: Any) -> float:
    """Median of 20 calls, the best of three rounds."""
    return min(float(np.median(calls[i : i + 20])) for i in (0, 20, 40) if len(calls) > i)


def _perf_baseline(relative: float) -> Rule:
    def rule(base: Session, check: Session) -> Answer:
        now, then = _torch_latency(check.shots[0].calls), _torch_latency(base.shots[0].calls)
        limit = then * (1 + relative) + 5e-5
        return ("slower" if now > limit else "pass"), float(check.shots[0].calls[:60].sum())

    return rule


def _over_processes(of_one: Callable[[Any], float], of_all: Callable[..., float]) -> Rule:
    def rule(base: Session, check: Session) -> Answer:
        now, then = (of_all(of_one(s.calls) for s in x.shots) for x in (check, base))
        spent = float(sum(s.calls.sum() for s in check.shots))
        return ("slower" if now > then * (1 + TOLERANCE) else "pass"), spent

    return rule


def _rank_test(base: Session, check: Session) -> Answer:
    from scipy.stats import (  # type: ignore[import-untyped]  # noqa: PLC0415 - of this rule only
        mannwhitneyu,
    )

    now, then = check.shots[0].calls, base.shots[0].calls
    certain = mannwhitneyu(now, then, alternative="greater").pvalue < 0.01
    larger = np.median(now) > np.median(then) * (1 + TOLERANCE)
    return ("slower" if certain and larger else "pass"), float(now.sum())


RULES: dict[str, Rule] = {
    "pytest-portability": ours,
    "pytest-benchmark mean:5%": _one_process(lambda c: float(np.mean(c))),
    "pytest-benchmark median:5%": _one_process(lambda c: float(np.median(c))),
    "pytest-benchmark min:5%": _one_process(lambda c: float(np.min(c))),
    "pytest-torch perf_baseline (25 % + 50 us)": _perf_baseline(0.25),
    "pytest-torch perf_baseline at 5 %": _perf_baseline(TOLERANCE),
    "Mann-Whitney p < 0.01 and median + 5 %": _rank_test,
    "min of 6 processes + 5 %": _over_processes(lambda c: float(np.min(c)), min),
    "median of 6 processes + 5 %": _over_processes(lambda c: float(np.median(c)), median),
}

# --- table -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A pair to judge, and what is true of it.

    Attributes:
        percent: 0 for identical builds, ``FEWER_THREADS``, or percent more work.
    """

    base: Session
    check: Session
    percent: int

    @property
    def hard(self) -> bool:
        """Whether it is torch on several threads, which has a line of its own."""
        return self.base.runtime.startswith("torch") and self.base.threads > 1


def cases(sessions: Sequence[Session]) -> Iterator[Case]:
    """Every pair whose baseline is of the base build, in the same state or recorded idle."""
    for base, check in itertools.permutations(sessions, 2):
        same = (base.subject, base.runtime) == (check.subject, check.runtime)
        if base.percent or not same or base.state not in (check.state, "idle"):
            continue
        if base.threads == check.threads and (check.percent or base.number != check.number):
            yield Case(base=base, check=check, percent=check.percent)


def table(sessions: Sequence[Session]) -> str:
    """Markdown: one line per rule, then ours by state, and by runtime and number of threads.

    torch on several threads is in its own line only. Pairs share sessions: their number says how
    much was judged, not how many independent samples that is.
    """
    pairs = list(cases(sessions))
    usual = [case for case in pairs if not case.hard]
    slowdowns = sorted({case.percent for case in usual if case.percent > 0})
    named = [f"+{p} % caught" for p in slowdowns] + ["2 → 1 threads caught"]
    head = ["rule", "checks", "false alarms", *named, "unsure", "median s"]
    lines = [_row(head), _row(["---"] * len(head))]
    kinds = [*slowdowns, FEWER_THREADS]
    lines += [_row([name, *_cells(rule, usual, kinds)]) for name, rule in RULES.items()]
    groups = {
        f"ours, {state}, recorded {'idle' if apart else 'alike'}": [
            c for c in usual if c.check.state == state and (c.base.state != state) is apart
        ]
        for apart in (False, True)
        for state in dict.fromkeys(s.state for s in sessions)
    }
    for runtime, threads in dict.fromkeys((c.base.runtime, c.base.threads) for c in pairs):
        groups[f"ours, {runtime} on {threads} thread{'s' * (threads > 1)}"] = [
            c for c in pairs if (c.base.runtime, c.base.threads) == (runtime, threads)
        ]
    lines += [_row([name, *_cells(ours, found, kinds)]) for name, found in groups.items() if found]
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(rule: Rule, pairs: Sequence[Case], kinds: Sequence[int]) -> list[str]:
    answers = [(case.percent, *rule(case.base, case.check)) for case in pairs]
    if not answers:
        return ["0", *["–"] * (len(kinds) + 3)]

    def share(kind: int) -> str:
        of_kind = [answer for percent, answer, _ in answers if percent == kind]
        # To call an identical build faster is as wrong as to call it slower.
        claims = of_kind.count("slower") + (0 if kind else of_kind.count("faster"))
        return f"{claims / len(of_kind):.1%} of {len(of_kind)}" if of_kind else "–"

    unsure = sum(answer == "unsure" for _, answer, _ in answers) / len(answers)
    seconds = median(spent for *_, spent in answers)
    return [
        str(len(answers)),
        share(0),
        *(share(kind) for kind in kinds),
        f"{unsure:.1%}",
        f"{seconds:.1f}",
    ]
