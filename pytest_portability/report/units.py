"""Figures as text for a page: with the unit that suits them, a dash where they are unknown."""

from __future__ import annotations

import math
from collections.abc import Sequence

UNKNOWN = "–"
"""What stands for a figure that is not known."""


def number(value: float | None, digits: int = 4) -> str:
    """Some significant digits, no exponent where none is needed."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    if abs(value) >= 10 ** (digits - 1):
        return f"{value:,.0f}".replace(",", " ") if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.{digits}g}"


def small(value: float | None) -> str:
    """An error, such as ``2.1e-4``; exactly nothing is 0."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{value:.1e}".replace("e-0", "e-").replace("e+0", "e+") if value else "0"


def change(value: float | None) -> str:
    """A fraction as signed percent."""
    if value is None or not math.isfinite(value):
        return UNKNOWN
    return f"{round(100 * value, 1) + 0.0:+.1f} %".replace("-", "−")  # + 0.0: no minus nothing


def spread(value: float, low: float, high: float) -> str:
    """A loss and its interval, as the change of throughput that it is."""
    return f"{change(-value)} ({change(-high)} to {change(-low)})"


def seconds(value: float) -> str:
    """With the unit that suits it."""
    return _scaled(value, (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6), ("ns", 1e-9)))


def size(value: float) -> str:
    """Bytes, in binary units."""
    return _scaled(value, (("GiB", 2.0**30), ("MiB", 2.0**20), ("KiB", 2.0**10), ("B", 1.0)))


def _scaled(value: float, units: Sequence[tuple[str, float]]) -> str:
    if not math.isfinite(value):
        return UNKNOWN
    unit, scale = next((u for u in units if abs(value) >= u[1]), units[-1])
    return f"{number(value / scale, 3)} {unit}"


def share(value: float) -> str:
    """A fraction as whole percent."""
    return f"{100 * value:.0f} %" if math.isfinite(value) else UNKNOWN


def bar(value: float) -> str:
    """A fraction as the length of a bar."""
    return f"{100 * min(max(value, 0.0), 1.0):.0f}%" if math.isfinite(value) else "0%"


def sort_key(value: float | None) -> str:
    """What a column is sorted by; empty where nothing is known, which comes last."""
    return "" if value is None or not math.isfinite(value) else f"{value:.9g}"


FILTERS = {f.__name__: f for f in (number, small, change, share, bar, sort_key)}
"""What the template may do with a figure."""
