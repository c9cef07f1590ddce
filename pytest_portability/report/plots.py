"""Plots of an item as static SVG: Vega-Lite's drawing, our figures, no script and no network."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import vl_convert
from markupsafe import Markup

from pytest_portability.report.terminal import harmless

INK, MUTED, GRID = "#1f2328", "#59636e", "#d1d9e0"
SERIES = ("#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#6e7781")
"""Colours of the light theme, AA on white; the page's style replaces each one in the dark."""

WIDTH = 270
"""Pixels without the labels beside it: a plot fits a phone, and three fit a screen. That Vega fits
the whole picture into a width costs it three times as long."""

MOST_POINTS = 120
"""Of one line: more are not seen at this width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A loss of throughput to draw: name of the axis, estimate and both ends, as fractions."""

    name: str
    value: float
    low: float
    high: float


def interval(bars: Sequence[Bar], tolerance: float) -> Mapping[str, Any] | None:
    """The change of throughput on each axis, with its interval, and the tolerance.

    Args:
        bars: one or two axes; None is drawn if no figure is finite.
        tolerance: loss to allow, a fraction; NaN draws none.
    """
    finite = [b for b in bars if math.isfinite(b.value + b.low + b.high)]
    if not finite:
        return None
    values = [{"axis": b.name, "change": -b.value, "from": -b.high, "to": -b.low} for b in finite]
    ends = [0.0, *(-end for b in finite for end in (b.low, b.high))]
    ends += [-tolerance, tolerance] if math.isfinite(tolerance) else []
    # Beyond doubling, the figure beside the plot says how much; the axis would hide the rest.
    domain = [max(-1.0, 1.1 * min(ends)), min(1.0, 1.1 * max(ends))]
    x = {
        "type": "quantitative",
        "scale": {"domain": domain, "clamp": True, "nice": False},
        "axis": {"format": "+.0%", "title": "change of throughput", "tickCount": 5},
    }
    y = {"field": "axis", "type": "nominal", "sort": None, "axis": {"title": None, "grid": False}}
    layers: list[Mapping[str, Any]] = [
        {
            "mark": {"type": "rule", "color": INK, "strokeWidth": 1},
            "data": {"values": [{"at": 0}]},
            "encoding": {"x": {"field": "at", **x}},
        },
        {
            "mark": {"type": "rule", "color": SERIES[0], "strokeWidth": 2},
            "encoding": {"x": {"field": "from", **x}, "x2": {"field": "to"}, "y": y},
        },
        {
            "mark": {"type": "point", "color": SERIES[0], "filled": True, "size": 70},
            "encoding": {"x": {"field": "change", **x}, "y": y},
        },
    ]
    if math.isfinite(tolerance):
        mark = {"type": "rule", "color": SERIES[1], "strokeDash": [4, 3], "strokeWidth": 1.5}
        limit = {"data": {"values": [{"at": -tolerance}]}, "encoding": {"x": {"field": "at", **x}}}
        layers.append({"mark": mark, **limit})
    return _plot({"values": values}, layers, height=26 * len(finite))


def windows(
    repeats: Sequence[Sequence[tuple[float, float]]], sustained: float, burst: float
) -> Mapping[str, Any] | None:
    """Throughput of each window over the measured time, a line for each repeat.

    Args:
        repeats: of each, windows as seconds and items; those of no time are left out.
        sustained: items per second that the item is judged with; NaN draws no line.
        burst: of the best window, likewise.
    """
    values = [
        {"repeat": str(number), "at": at, "rate": rate}
        for number, repeat in enumerate(repeats, 1)
        for at, rate in _line(repeat)
    ]
    if not values:
        return None
    x = {"field": "at", "type": "quantitative", "axis": {"title": "seconds", "tickCount": 5}}
    y = {
        "type": "quantitative",
        "scale": {"zero": False},
        "axis": {"title": None, "tickCount": 5, "format": "~s"},
    }
    colour = {
        "field": "repeat",
        "type": "nominal",
        "sort": None,
        "scale": {"range": list(SERIES)},
        "legend": {"title": "repeat", "orient": "top", "symbolType": "stroke"},
    }
    alone = all(len(repeat) == 1 for repeat in repeats)
    marks = {"type": "point" if alone else "line", "strokeWidth": 1.2, "opacity": 0.9}
    layers: list[Mapping[str, Any]] = [
        {"mark": marks, "encoding": {"x": x, "y": {"field": "rate", **y}, "color": colour}}
    ]
    for figure, dash in ((sustained, [1, 0]), (burst, [2, 3])):
        if math.isfinite(figure):
            mark = {"type": "rule", "color": INK, "strokeDash": dash, "strokeWidth": 1}
            encoding = {"y": {"field": "rate", **y}}
            data = {"values": [{"rate": figure}]}
            layers.append({"mark": mark, "data": data, "encoding": encoding})
    return _plot({"values": values}, layers, height=120)


def _line(repeat: Sequence[tuple[float, float]]) -> Iterable[tuple[float, float]]:
    """Time and rate of each window, or of as many stretches of windows as can be seen."""
    known = [(seconds, items) for seconds, items in repeat if seconds > 0 and items > 0]
    step = max(1, math.ceil(len(known) / MOST_POINTS))
    at = 0.0
    for start in range(0, len(known), step):
        stretch = known[start : start + step]
        seconds = sum(s for s, _ in stretch)
        rate = sum(items for _, items in stretch) / seconds
        if math.isfinite(at + seconds) and math.isfinite(rate):
            yield at + seconds / 2, rate
        at += seconds


def roles(times: Mapping[str, Mapping[str, float]]) -> Mapping[str, Any] | None:
    """Milliseconds per batch by role of the kernels, a bar for each side.

    Args:
        times: ``baseline`` and ``now`` → role → seconds per batch; one side may be missing.
    """
    values = [
        {"side": harmless(side), "role": harmless(role), "order": order, "ms": 1e3 * seconds}
        for side, by_role in times.items()
        for order, (role, seconds) in enumerate(by_role.items())
        if math.isfinite(seconds) and seconds > 0
    ]
    if not values:
        return None
    names = list(dict.fromkeys(harmless(role) for by_role in times.values() for role in by_role))
    colour = {
        "field": "role",
        "type": "nominal",
        "sort": None,
        "scale": {"domain": names, "range": list(SERIES)},
        "legend": {"title": None, "orient": "top", "symbolType": "square"},
    }
    layer = {
        "mark": {"type": "bar", "height": {"band": 0.7}},
        "encoding": {
            "x": {
                "field": "ms",
                "type": "quantitative",
                "axis": {"title": "milliseconds per batch", "tickCount": 5},
            },
            "y": {
                "field": "side",
                "type": "nominal",
                "sort": None,
                "axis": {"title": None, "grid": False},
            },
            "color": colour,
            "order": {"field": "order", "type": "quantitative"},
        },
    }
    return _plot({"values": values}, [layer], height=30 * len({v["side"] for v in values}))


def _plot(
    data: Mapping[str, Any], layers: Sequence[Mapping[str, Any]], height: int
) -> Mapping[str, Any]:
    quiet = {"labelColor": MUTED, "titleColor": MUTED, "titleFontWeight": "normal"}
    sizes = {"labelFontSize": 11, "titleFontSize": 11}
    return {
        "width": WIDTH,
        "height": height,
        "padding": 2,
        "background": None,
        "data": data,
        "layer": list(layers),
        "config": {
            "view": {"stroke": None},
            "axis": {**quiet, **sizes, "gridColor": GRID, "domain": False, "ticks": False},
            "legend": {**quiet, **sizes, "columns": 6, "padding": 0, "offset": 6},
        },
    }


def svg(spec: Mapping[str, Any], name: str, title: str, description: str) -> Markup:
    """A plot as one picture with a name and a description.

    Args:
        spec: as the functions above make it.
        name: an id of the page that nothing else has.
        title: what a screen reader calls it.
        description: what it shows, in words.
    """
    drawn = vl_convert.vegalite_to_svg(dict(spec))
    # Of the picture's parts nothing is read out one by one: its description says what they say.
    drawn = re.sub(r'\s(?:aria-[a-z]+|role|tabindex)="[^"]*"', "", drawn)
    head, _, rest = drawn.partition(">")
    words = Markup(
        ' role="img" aria-labelledby="{0}-t {0}-d">'
        '<title id="{0}-t">{1}</title><desc id="{0}-d">{2}</desc>'
    ).format(name, harmless(title), harmless(description))
    return Markup(head) + words + Markup(rest)
