"""All comparisons of a run, ready to render. Knows nothing of how a rendering looks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field

from pytest_portability.attribute import Cause
from pytest_portability.compare import Comparison, Verdict
from pytest_portability.measure import Measurement
from pytest_portability.records import Key
from pytest_portability.targets import Absent, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One item of a run.

    Attributes:
        nodeid: the test item.
        worker: the xdist worker that measured it, empty without xdist.
        measurement: raw samples, None where nothing was measured.
        update: what ``--update-baselines`` did: ``written``, ``refreshed``, ``unchanged``,
            ``refused: …``, or empty without it.
    """

    nodeid: str
    key: Key
    comparison: Comparison
    causes: tuple[Cause, ...] = ()
    measurement: Measurement | None = None
    worker: str = ""
    update: str = ""


@dataclass(slots=True, kw_only=True)
class Report:
    """A whole run.

    Attributes:
        session: facts of the run, such as the commit and the versions of pytest and ourselves.
        recorded: target id → number of its records among the baselines.
    """

    targets: tuple[Target, ...] = ()
    absents: tuple[Absent, ...] = ()
    recorded: Mapping[str, int] = field(default_factory=dict)
    session: MutableMapping[str, str] = field(default_factory=dict)
    entries: list[Entry] = field(default_factory=list)

    def found(self, targets: Iterable[Target], absents: Iterable[Absent]) -> None:
        """Add what a worker found; the same target on several workers is one."""
        here = {t.id: t for t in (*self.targets, *targets)}
        self.targets = tuple(here.values())
        self.absents = tuple(dict.fromkeys((*self.absents, *absents)))

    @property
    def measured(self) -> int:
        """How many items were really measured."""
        return sum(e.measurement is not None for e in self.entries)

    @property
    def counts(self) -> Counter[Verdict]:
        """How often each verdict was given."""
        return Counter(e.comparison.verdict for e in self.entries)

    @property
    def missing_targets(self) -> dict[str, int]:
        """Targets that have records but are not here → number of records."""
        here = {t.id for t in self.targets}
        return {target: n for target, n in sorted(self.recorded.items()) if target not in here}
