"""The SVG chart of intervals: a row for each name, with a value and its interval."""

from collections.abc import Sequence
from dataclasses import dataclass

from fedapps.core.words import shortened
from fedapps.drawing.svg import Box, Chart, Hit, Mark, Scale, Tick, dot_path, steps, written

WIDTH, ROW, NAME = 640.0, 24.0, 28  # of a chart; height of a row; characters of its name, at most
LETTER = 9.0  # width of a letter of a name on small screens, where letters are widest


@dataclass(frozen=True)
class Interval:
    """A row of a chart of intervals; values that are None are not drawn."""

    name: str
    value: float
    title: str
    low: float | None = None
    high: float | None = None
    other: float | None = None  # a value to compare with


def interval_chart(chart: Chart, rows: Sequence[Interval], zero: bool = False) -> Chart:
    """Draw a dot and an interval in each row, and a diamond for the value to compare with.

    With `zero`, values are differences, and a line marks 0. The box is as high as the rows need.
    """
    names = [shortened(row.name, NAME) for row in rows]
    known = [v for row in rows for v in (row.value, row.low, row.high, row.other) if v is not None]
    low, high = min([*known, *[0.0] * zero]), max([*known, *[0.0] * zero])
    room = 0.04 * (high - low or 1.0)
    left, bottom = 14.0 + LETTER * max(map(len, names)), 8.0 + ROW * len(rows)
    chart.box = Box(WIDTH, bottom + 40, left, WIDTH - 20, 8.0, bottom, x_grid=True, y_grid=False)
    x_scale = Scale(low - room, high + room, left, WIDTH - 20)
    chart.x_ticks = [Tick(x_scale(x), f"{x:g}") for x in steps(x_scale.low, x_scale.high, 8)]
    if zero:
        chart.marks.append(Mark(f"M{written(x_scale(0))} 8V{written(bottom)}", "", "zero"))
    for place, (row, name) in enumerate(zip(rows, names, strict=True)):
        y = 8.0 + ROW * (place + 0.5)
        chart.y_ticks.append(Tick(y, name))
        if row.low is not None and row.high is not None:
            d = f"M{written(x_scale(row.low))} {written(y)}H{written(x_scale(row.high))}"
            chart.marks.append(Mark(d, "first", "interval"))
        chart.marks.append(Mark(dot_path([(x_scale(row.value), y)]), "first", "dots", 9))
        if row.other is not None:
            d = f"M{written(x_scale(row.other))} {written(y - 5)}l5 5l-5 5l-5 -5z"
            chart.marks.append(Mark(d, "second", "diamond"))
        chart.hits.append(Hit(0, y - ROW / 2, WIDTH, ROW, row.title))
    return chart
