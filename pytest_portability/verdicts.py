"""The verdicts, and the one table of what each does to an item and to its record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum


class Verdict(str, Enum):
    """The outcome of holding a record against its baseline."""

    OK = "ok"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    PARITY = "parity"
    INTERFACE = "interface"
    PLACEMENT = "placement"
    MEMORY = "memory"
    UNFIT = "unfit"
    STALE = "stale"
    MISSING = "missing"
    INCONCLUSIVE = "inconclusive"
    ERROR = "error"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Policy:
    """What a verdict does.

    Attributes:
        item: outcome of the pytest item: ``pass``, ``fail``, ``skip``, or the name of the user's
            policy that decides it: ``missing`` or ``inconclusive``.
        update: what ``--update-baselines`` writes: ``yes``, ``refresh`` (facts, never figures),
            ``accept`` (only with a reason), ``unless worse`` (a loss only with one), ``never``.
    """

    item: str
    update: str


POLICY: Mapping[Verdict, Policy] = {
    Verdict.OK: Policy("pass", "refresh"),
    Verdict.IMPROVED: Policy("pass", "yes"),
    Verdict.REGRESSED: Policy("fail", "accept"),
    Verdict.PARITY: Policy("fail", "accept"),
    Verdict.INTERFACE: Policy("fail", "accept"),
    Verdict.PLACEMENT: Policy("fail", "never"),
    Verdict.MEMORY: Policy("fail", "accept"),
    Verdict.UNFIT: Policy("fail", "accept"),
    Verdict.STALE: Policy("missing", "unless worse"),
    Verdict.MISSING: Policy("missing", "yes"),
    Verdict.INCONCLUSIVE: Policy("inconclusive", "never"),
    Verdict.ERROR: Policy("fail", "never"),
    Verdict.SKIPPED: Policy("skip", "never"),
}
"""The one table. ``ok`` keeps the figures, so that ten losses of 4 % cannot creep through."""


WRONG = frozenset(
    {
        *(Verdict.PARITY, Verdict.INTERFACE, Verdict.PLACEMENT, Verdict.UNFIT),
        *(Verdict.ERROR, Verdict.SKIPPED),
    }
)
"""Of a build that does not do what was asked for: its speed is not that of its target."""


def outcome(verdict: Verdict, *, missing: str = "fail", inconclusive: str = "warn") -> str:
    """What the pytest item does: ``pass``, ``warn``, ``fail`` or ``skip``.

    Args:
        verdict: the verdict.
        missing: the user's policy, ``fail`` or ``warn``, for ``missing`` and ``stale``.
        inconclusive: the same for ``inconclusive``.
    """
    item = POLICY[verdict].item
    return {"missing": missing, "inconclusive": inconclusive}.get(item, item)
