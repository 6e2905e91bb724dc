"""The kinds of SVG charts: lines, pairs of dots, bars, points, cells."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeVar

from fedapps.drawing.svg import (
    BOX,
    Box,
    Chart,
    Hit,
    Mark,
    Point,
    Scale,
    Series,
    Show,
    Tick,
    dot_path,
    line_path,
    steps,
    written,
)

T = TypeVar("T")

MOST_POINTS = 1500  # points of a line; if there are more, every n-th is drawn
MOST_HITS = 200  # boxes with a title in a chart
ANY, POSITIVE = (-math.inf, math.inf), (0.0, math.inf)  # values that an axis can have


def line_chart(
    chart: Chart,
    series: Sequence[Series],
    show: Show,
    show_x: Show = "{:g}".format,
    bounds: tuple[float, float] = ANY,
    x_from: float | None = None,
    whole_x: bool = True,
) -> Chart:
    """Draw series as lines over a common x axis.

    `show` formats a value, for the axis and for titles. The y axis stays within `bounds`, bands
    included.
    """
    xs = sorted({x for line in series for x, _ in line.points})
    x_scale = _across(chart, xs[0] if x_from is None else x_from, xs[-1])
    edges = [edge for line in series for edge in _edges(line)]
    y_scale = _upwards(chart, min(edges), max(edges), show, bounds)
    chart.x_ticks = [Tick(x_scale(x), show_x(x)) for x in steps(x_scale.low, xs[-1], 7, whole_x)]
    for line in series:
        points = _thinned(line.points, MOST_POINTS)
        if line.spread:
            chart.marks.append(Mark(_band(line, x_scale, y_scale), line.colour, "area"))
        places = [(x_scale(x), y_scale(y)) for x, y in points]
        chart.marks.append(Mark(line_path(places), line.colour, "line"))
        if len(places) <= chart.box.dotted:
            chart.marks.append(Mark(dot_path(places), line.colour, "dots", chart.box.dot))
        for place, title in zip(places, line.titles, strict=False):
            chart.hits.append(_dot_hit(chart, place, title, line.colour))
        chart.legend.append((line.label, line.colour, "line"))
        if line.spread:
            chart.legend.append((f"{line.label} ± standard deviation", line.colour, "area"))
    if not chart.hits:
        chart.hits = _columns(chart, xs, x_scale, _sayings(chart, series, show, show_x))
    return chart


def pair_chart(
    chart: Chart,
    names: Sequence[str],
    series: Sequence[Series],
    show: Show,
    bounds: tuple[float, float],
) -> Chart:
    """Draw a column per name, with a dot for each series and a line that connects the dots.

    Nothing stands below a column whose name is empty.
    """
    x_scale = Scale(-0.5, len(names) - 0.5, chart.box.left, chart.box.right)  # as in `column_hits`
    values = [y for line in series for _, y in line.points]
    y_scale = _upwards(chart, min(values), max(values), show, bounds)
    chart.x_ticks = [Tick(x_scale(i), name) for i, name in enumerate(names) if name]
    size = max(2.0, min(9.0, 70 / len(names) ** 0.55))
    if len(series) > 1:
        at: dict[float, list[float]] = {}
        for line in series:
            for x, y in line.points:
                at.setdefault(x, []).append(y)
        ties = ((x_scale(x), y_scale(min(ys)), y_scale(max(ys))) for x, ys in at.items())
        d = "".join(f"M{written(x)} {written(a)}V{written(b)}" for x, a, b in ties)
        chart.marks.append(Mark(d, "quiet", "tie"))
    for line in series:
        places = [(x_scale(x), y_scale(y)) for x, y in line.points]
        chart.marks.append(Mark(dot_path(places), line.colour, "dots", round(size, 1)))
        chart.legend.append((line.label, line.colour, "dots"))
    return chart


def scatter_chart(
    chart: Chart,
    points: Sequence[Point],
    titles: Sequence[str],
    colour: str,
    show: Show,
    bounds: tuple[float, float],
) -> Chart:
    """Draw a dot with a title for each point; x is a whole number >= 0."""
    x_scale = _across(chart, 0.0, 1.05 * max(x for x, _ in points))
    ys = [y for _, y in points]
    y_scale = _upwards(chart, min(ys), max(ys), show, bounds)
    chart.x_ticks = [Tick(x_scale(x), f"{x:g}") for x in steps(0.0, x_scale.high, 7, True)]
    places = [(x_scale(x), y_scale(y)) for x, y in points]
    chart.marks.append(Mark(dot_path(places), colour, "dots", chart.box.dot))
    for place, title in zip(places, titles, strict=True):
        chart.hits.append(_dot_hit(chart, place, title))
    return chart


def bar_chart(chart: Chart, series: Sequence[Series]) -> Chart:
    """Draw the counts of series as stacked bars, at whole numbers x."""
    show = "{:g}".format
    xs = sorted({x for line in series for x, _ in line.points})
    heights = dict.fromkeys(xs, 0.0)
    for line in series:
        for x, y in line.points:
            heights[x] += y
    x_scale = _across(chart, xs[0] - 0.5, xs[-1] + 0.5)
    y_scale = _upwards(chart, 0.0, max(heights.values()) or 1.0, show, POSITIVE, whole=True)
    chart.x_ticks = [Tick(x_scale(x), show(x)) for x in steps(xs[0], xs[-1], 7, True)]
    width = max(1.0, 0.8 * (x_scale(1.0) - x_scale(0.0)))
    below = dict.fromkeys(xs, 0.0)
    for line in series:
        d = ""
        for x, y in line.points:
            left, low, top = x_scale(x) - width / 2, y_scale(below[x]), y_scale(below[x] + y)
            box = f"V{written(top)}h{written(width)}V{written(low)}z"
            d += f"M{written(left)} {written(low)}{box}"
            below[x] += y
        chart.marks.append(Mark(d, line.colour, "bars"))
        chart.legend.append((line.label, line.colour, "bars"))
    chart.hits = _columns(chart, xs, x_scale, _sayings(chart, series, show, show))
    return chart


def heat_chart(
    chart: Chart, cells: Iterable[tuple[int, int, float]], size: tuple[int, int]
) -> Chart:
    """Draw a value >= 0 for each cell (column, row), darker where it is larger."""
    columns, rows = size
    cells = list(cells)
    box = chart.box = replace(chart.box, y_grid=False)
    wide, high = (box.right - box.left) / columns, (box.bottom - box.top) / rows
    most = max((value for *_, value in cells), default=0.0) or 1.0
    levels: dict[int, list[str]] = {}
    for column, row, value in cells:
        # The square root keeps a handful of samples visible next to hundreds.
        level = math.ceil(8 * math.sqrt(value / most))
        x, y = box.left + column * wide, box.bottom - (row + 1) * high
        cell = f"M{written(x)} {written(y)}h{written(wide)}v{written(high)}h-{written(wide)}z"
        levels.setdefault(level, []).append(cell)
    chart.marks = [
        Mark("".join(found), f"level-{level}", "heat") for level, found in sorted(levels.items())
    ]
    chart.x_ticks = [
        Tick(round(box.left + (c + 0.5) * wide, 1), f"{c:g}")
        for c in steps(0, columns - 1, 10, True)
    ]
    chart.y_ticks = [
        Tick(round(box.bottom - (r + 0.5) * high, 1), f"{r:g}") for r in steps(0, rows - 1, 6, True)
    ]
    return chart


def column_hits(count: int, title: Callable[[int], str]) -> list[Hit]:
    """Return a box with a title for each of `count` equal columns of a plot."""
    wide = (BOX.right - BOX.left) / count
    return [_hit(BOX, BOX.left + i * wide, wide, title(i)) for i in range(count)]


def _across(chart: Chart, low: float, high: float) -> Scale:
    return Scale(low, high if high > low else low + 1, chart.box.left, chart.box.right)


def _upwards(
    chart: Chart,
    low: float,
    high: float,
    show: Show,
    bounds: tuple[float, float],
    whole: bool = False,
) -> Scale:
    """Make the y axis, with room around the values but within `bounds`, and its grid lines."""
    (floor, ceiling), low, high = bounds, min([low, *chart.span]), max([high, *chart.span])
    room = 0.06 * (high - low) or 0.06 * abs(high) or 1.0
    low = max(low - room, floor)
    high = min(high + room, ceiling + 0.01 * (ceiling - low))
    scale = Scale(low, high, chart.box.bottom, chart.box.top)
    chart.y_ticks = [
        Tick(scale(y), show(y).replace(".0 %", " %")) for y in _told_apart(low, high, show, whole)
    ]
    return scale


def _told_apart(low: float, high: float, show: Show, whole: bool) -> list[float]:
    """Return at most six round numbers, so few that each is written in its own way."""
    for most in range(6, 0, -1):
        found = steps(low, high, most, whole)
        if len({*map(show, found)}) == len(found):
            return found
    return found[:1]


def _edges(line: Series) -> list[float]:
    values = [y for _, y in line.points]
    if not line.spread:
        return values
    return [y + sign * s for y, s in zip(values, line.spread, strict=True) for sign in (-1, 1)]


def _sayings(
    chart: Chart, series: Sequence[Series], show: Show, show_x: Show
) -> Callable[[float], str]:
    """Return a function that gives the title at an x: the value of each series there."""
    tables = [
        (line.label, dict(line.points), dict(zip((x for x, _ in line.points), line.spread)))  # noqa: B905
        for line in series
    ]

    def say(x: float) -> str:
        said = [f"{chart.x_label} {show_x(x)}"]
        for label, values, spreads in tables:
            if x in values:
                spread = f" ± {show(spreads[x])}" if x in spreads else ""
                said.append(f"{label}: {show(values[x])}{spread}" if label else show(values[x]))
        return "\n".join(said)

    return say


def _thinned(values: Sequence[T], most: int) -> Sequence[T]:
    """Return every n-th value, counted from the last one, so that they are at most `most`."""
    every = -(-len(values) // most)
    return values[(len(values) - 1) % every :: every]


def _columns(
    chart: Chart, xs: Sequence[float], scale: Scale, title: Callable[[float], str]
) -> list[Hit]:
    """Return boxes around some of the x; each extends halfway to its neighbors."""
    chosen = _thinned(xs, MOST_HITS)
    places = [scale(x) for x in chosen]
    middles = [(a + b) / 2 for a, b in pairwise(places)]
    edges = [chart.box.left, *middles, chart.box.right]
    return [
        _hit(chart.box, left, right - left, title(x))
        for x, left, right in zip(chosen, edges, edges[1:], strict=False)
    ]


def _hit(box: Box, x: float, width: float, title: str) -> Hit:
    return Hit(round(x, 1), box.top, round(width, 1), box.bottom - box.top, title)


def _dot_hit(chart: Chart, place: Point, title: str, colour: str = "") -> Hit:
    (x, y), size = place, max(chart.box.dot, 8.0)
    return Hit(round(x - size / 2, 1), round(y - size / 2, 1), size, size, title, colour)


def _band(line: Series, x_scale: Scale, y_scale: Scale) -> str:
    known = _thinned([*zip(line.points, line.spread, strict=True)], MOST_POINTS)
    low, high = y_scale.low, y_scale.high
    upper = [(x_scale(x), y_scale(min(y + s, high))) for (x, y), s in known]
    lower = [(x_scale(x), y_scale(max(y - s, low))) for (x, y), s in reversed(known)]
    return line_path([*upper, *lower]) + "z"
