"""A flow that measures nothing: the model's name says what the verdict is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from synthetic import RECORD, measurement, slower

from pytest_portability import compare, verdicts
from pytest_portability.attribute import Cause
from pytest_portability.compare import Comparison
from pytest_portability.loss import Interval
from pytest_portability.pipeline import Ask, Item, Result
from pytest_portability.records import Key, path_of, read
from pytest_portability.verdicts import Verdict

LOSS = {
    Verdict.OK: 0.01,
    Verdict.IMPROVED: -0.2,
    Verdict.REGRESSED: 0.312,
    Verdict.INCONCLUSIVE: 0.04,
}


def comparison(verdict: Verdict, key: Key, **fields: Any) -> Comparison:
    """A comparison of made-up records with that verdict."""
    if verdict in {Verdict.ERROR, Verdict.SKIPPED}:
        made = compare.error(f"{verdict.value} on purpose", skipped=verdict is Verdict.SKIPPED)
        return replace(made, **fields)
    fits = replace(RECORD, key=key, figures=replace(RECORD.figures, batch_effective=key.batch))
    baseline = None if verdict is Verdict.MISSING else fits
    record = fits
    if verdict is Verdict.REGRESSED:
        record = replace(fits, figures=replace(slower().figures, batch_effective=key.batch))
    loss = None
    if verdict in LOSS:
        value = LOSS[verdict]
        loss = Interval(axis="busy", value=value, low=value - 0.008, high=value + 0.008)
    made = Comparison(
        verdict=verdict,
        reason=f"{verdict.value} on purpose",
        record=record,
        baseline=baseline,
        loss=loss,
        axes=(loss,) if loss else (),
        memory_rel=None if baseline is None else 0.0,
        speed=verdict if loss else None,
    )
    return replace(made, **fields)


class Scripted:
    """Stands in for ``pipeline.Pipeline``.

    The first word of a model's name is the verdict. What is ``missing`` is ``ok`` once there is a
    record of it, and so is what is ``regressed`` once it was accepted.
    """

    def __init__(self, servers: object, baselines: Path, **_given: Any) -> None:
        del servers
        self._baselines = baselines

    def check(self, item: Item, ask: Ask) -> Result:
        """What the name says."""
        key = ask.key(item)
        verdict = Verdict(ask.name.partition("_")[0])
        path = path_of(self._baselines, key.model, key.target)
        stored = read(path).get(key) if path.exists() else None
        found = comparison(verdict, key)
        if stored is not None:
            found = replace(found, baseline=stored)
            if verdict is Verdict.MISSING or stored.accepted:
                found = replace(comparison(Verdict.OK, key), baseline=stored)
        bare = found.record is None
        shown = verdicts.POLICY[verdict].item == "fail" and not bare
        return Result(
            key=key,
            comparison=found,
            causes=(Cause(kind="fusion", summary="Gelu ×6 no longer fused", share=0.8),) * shown,
            measurement=None if bare else measurement(),
        )
