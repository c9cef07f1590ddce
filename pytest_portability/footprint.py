"""How much more memory a build takes than its baseline. Knows figures, not verdicts."""

from __future__ import annotations

from pytest_portability.records import Figures

FLOOR_BYTES = 4 * 2**20
"""Growth below this is page and allocator granularity, whatever fraction it is."""


def growth(now: Figures, then: Figures, tolerance: float) -> tuple[float | None, str]:
    """How much memory grew.

    Args:
        now: figures of now.
        then: of the baseline.
        tolerance: growth to allow, as a fraction, beside ``FLOOR_BYTES``.

    Returns:
        Growth of the figure that grew most as a fraction, None where nothing is comparable; and a
        sentence if that is beyond the tolerance, else an empty one.
    """
    pairs = [
        ("device memory", now.memory_device_bytes, then.memory_device_bytes),
        ("arena", now.memory_arena_bytes, then.memory_arena_bytes),
        ("process memory", now.memory_process_bytes, then.memory_process_bytes),
    ]
    known = [(name, new, old) for name, new, old in pairs if new is not None and old]
    if len(known) > 1 and known[0][0] == "device memory":
        known = [pair for pair in known if pair[0] != "arena"]
    if not known:
        return None, ""
    most = then.memory_process_most_bytes or 0
    grown = [
        (name, new, old)
        for name, new, old in known
        if new - old > FLOOR_BYTES
        and new / old - 1 > tolerance
        and (name != "process memory" or new > most)
    ]
    name, new, old = max(grown or known, key=lambda p: p[1] / p[2])
    rel = new / old - 1
    if not grown:
        return rel, ""
    mib = f"{old / 2**20:.1f} → {new / 2**20:.1f} MiB"
    grew = f"{name} grew {rel:.1%} ({mib})" if old > FLOOR_BYTES else f"{name} grew: {mib}"
    return rel, f"{grew}, beyond {tolerance:.0%} and 4 MiB"
