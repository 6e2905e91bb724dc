"""The charts of the events that a method declares as figures."""

from collections.abc import Iterable, Sequence

from fedapps.drawing.charts import bar_chart, line_chart
from fedapps.drawing.svg import Chart, Series
from fedapps.method.figures import EventPlot
from fedapps.report.page.reading import Row, number

COLOURS = ("c1", "c2", "c3", "c4", "c5", "c6", "c7")
COUNTS, VALUES = "-counts", "-values"  # the ends of the names of a plot's two charts


def declared(rows: Sequence[Row], plot: EventPlot) -> list[Chart]:
    """Draw an event plot of a method: counts as bars, mean values as lines, by category."""
    counts: dict[str, dict[float, float]] = {}
    values: dict[str, dict[float, list[float]]] = {}
    for row in rows:
        category, _, value = row.get("detail", "").partition(" ")
        round_ = number(row, "round") or 0.0
        if row.get("kind") == plot.counted:
            of = counts.setdefault(category, {})
            of[round_] = of.get(round_, 0.0) + 1
        elif row.get("kind") == plot.valued and (found := number({"": value}, "")) is not None:
            values.setdefault(category, {}).setdefault(round_, []).append(found)
    categories = list(dict.fromkeys([*values, *counts]))
    colours = dict(zip(categories, COLOURS * len(categories), strict=False))
    charts: list[Chart] = []
    if counts:
        chart = Chart(plot.name + COUNTS, plot.count_label.capitalize(), "round", "in every round")
        bars = [Series(name, colours[name], [*of.items()]) for name, of in counts.items()]
        charts.append(bar_chart(chart, bars))
    if any(len(of) > 1 for of in values.values()):
        chart = Chart(plot.name + VALUES, plot.value_label.capitalize(), "round", "in every round")
        lines = [
            Series(name, colours[name], [(r, sum(v) / len(v)) for r, v in sorted(of.items())])
            for name, of in values.items()
        ]
        charts.append(line_chart(chart, lines, "{:.3g}".format))
    return charts


def kinds_in(charts: Iterable[Chart], plots: Sequence[EventPlot]) -> set[str]:
    """Return the kinds of events that charts of these plots show."""
    names = {chart.name for chart in charts}
    ends = [(plot.name + COUNTS, plot.counted) for plot in plots]
    ends += [(plot.name + VALUES, plot.valued) for plot in plots]
    return {kind for name, kind in ends if name in names}
