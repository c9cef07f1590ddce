"""What has to hold before two records' speed means anything. Knows no speed."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from pytest_portability.parity import ParityVerdict, interface_changes
from pytest_portability.records import Record
from pytest_portability.samples import Measurement, Repeat
from pytest_portability.verdicts import Verdict

WORTH_SAYING = 0.1
"""Change of speed by alternating with the yardstick that is said beside a verdict."""

_Found = tuple[Verdict, str] | None


def unmet(
    record: Record,
    baseline: Record | None,
    measurement: Measurement | None,
    parity: ParityVerdict | None,
) -> tuple[Verdict, str] | None:
    """The verdict that comes before any of speed, and its reason; None if all is met.

    Args:
        record: of now.
        baseline: the committed one, None if there is none.
        measurement: what the record was made of, None for a stored one.
        parity: what the outputs said; None is not judged.
    """
    return (
        _misplaced(record, measurement)
        or _incomparable(record, baseline)
        or (_parity(parity) if parity else None)
        or _fits_more(record, baseline)
    )


def doubts(
    record: Record,
    baseline: Record | None,
    repeats: Sequence[Repeat],
    parity: ParityVerdict | None,
) -> tuple[str, ...]:
    """What speaks against a measurement without deciding a verdict, one sentence each."""
    other = baseline is not None and baseline.key.target != record.key.target
    held = [f"held against {baseline.key}"] if baseline is not None and other else []
    blind = record.path.caveats if record.path.evidence == "none" else ()
    return (
        *held,
        *_unknown(record, repeats),
        *(parity.notes if parity else ()),
        *_doubts(repeats),
        *blind,
    )


def _misplaced(record: Record, measurement: Measurement | None) -> _Found:
    """Whether what was asked for by name is not what ran."""
    wanted, ran = record.key.precision, record.effective
    if wanted != "native" and ran and ran != wanted:
        return Verdict.PLACEMENT, f"asked for precision {wanted}, the work ran in {ran}"
    provider = measurement.observed.asked_provider if measurement else ""
    total = sum(record.providers.values())
    if provider and total and not record.providers.get(provider):
        others = ", ".join(f"{n / total:.0%} of the nodes ran on {p}" for p, n in _by_count(record))
        return Verdict.PLACEMENT, f"asked for {provider}: {others}"
    return None


def _incomparable(record: Record, baseline: Record | None) -> _Found:
    fits, asked = record.figures.batch_effective, record.key.batch
    fitted = asked if baseline is None else baseline.figures.batch_effective
    if fits < fitted:
        was = "" if baseline is None or fitted == asked else f" (the baseline's was {fitted})"
        return Verdict.UNFIT, f"batch {asked} does not fit: the largest that does is {fits}{was}"
    changes = (
        interface_changes(record.parity, baseline.parity) if fits == fitted and baseline else ()
    )
    return (Verdict.INTERFACE, "; ".join(changes)) if changes else None


def _parity(parity: ParityVerdict) -> _Found:
    if parity.failures:
        more = f" (and {len(parity.failures) - 1} more)" if len(parity.failures) > 1 else ""
        return Verdict.PARITY, parity.failures[0] + more
    if parity.stale:
        names = parity.changed_tensors
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        what = f": weights changed: {', '.join(names[:3])}{more}" if names else ""
        return Verdict.STALE, f"the record is of another version of the model{what}"
    return None


def _fits_more(record: Record, baseline: Record | None) -> _Found:
    fits = record.figures.batch_effective
    if baseline is None or fits <= baseline.figures.batch_effective:
        return None
    fitted = baseline.figures.batch_effective
    return Verdict.IMPROVED, f"batch {fits} fits now, the baseline's largest was {fitted}"


def _unknown(record: Record, repeats: Sequence[Repeat]) -> list[str]:
    """What was asked for by name and cannot be told to have run."""
    found = []
    wanted = record.key.precision
    if wanted != "native" and not record.effective:
        found.append(f"asked for {wanted}: in which precision the work ran is not known")
    provider = next((r.observed.asked_provider for r in repeats), "")
    if provider and not sum(record.providers.values()):
        found.append(f"asked for {provider}: whether it got any node is not known")
    return found


def _doubts(repeats: Sequence[Repeat]) -> list[str]:
    """What speaks against a measurement without deciding a verdict."""
    found = []
    unsteady = sum(not r.steady for r in repeats)
    if unsteady:
        found.append(f"{unsteady} of {len(repeats)} repeats began before the speed was steady")
    changed = median(r.straight_rel for r in repeats) if repeats else 1.0
    if abs(1 / changed - 1) > WORTH_SAYING:
        found.append(
            f"alternating with the yardstick changed the speed by {1 / changed - 1:+.0%}: the "
            "throughput shown is the uninterrupted one, the loss compares the alternated ones"
        )
    return found


def _by_count(record: Record) -> list[tuple[str, int]]:
    return sorted(record.providers.items(), key=lambda item: -item[1])
