"""The plot of a comparison: means over rounds, with their spread over seeds."""

from collections.abc import Iterator
from itertools import cycle, product

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedapps.compare.comparison import Comparison
from fedapps.compare.groups import Group, label
from fedapps.compare.table import headline, scored_on
from fedapps.core.words import shortened
from fedapps.drawing.pictures import (
    HEIGHT,
    PALETTE,
    WIDTH,
    around,
    draw_line,
    limits,
    new_panels,
    title,
    whole_ticks,
)
from fedapps.tasks import Metric

COLOURS = PALETTE[:-1]  # yellow is too pale for a line
STROKES = ("-", "--", ":", "-.")
NARROWEST = 0.1  # of the range: the least that an axis for single evaluations shows
LETTERS = 12  # characters of a legend per inch
LINE = 0.2  # height of a line of the legend in inches
LONGEST = 60  # characters of a group's label; the table has the whole label


def draw(comparison: Comparison) -> Figure:
    """Draw a panel per score; of runs that personalized only once, the scores are points."""
    groups, metric = comparison.drawn, comparison.metric
    panels = _panels(groups, metric)
    labels = [_sign(group, comparison.keys, metric.personalized) for group in groups]
    once = all(len(run.curve(metric.personalized)) < 2 for group in groups for run in group.runs)
    width = WIDTH if len(panels) == 1 else 1.5 * WIDTH
    columns = max(1, int(LETTERS * width / (6 + max(map(len, labels)))))
    height = LINE * len(groups) if once else LINE * -(-len(groups) // columns)
    figure, axes = new_panels(len(panels), (width, HEIGHT + height))
    for axis, (name, text) in zip(axes, panels.items(), strict=True):
        if once:
            _draw_points(axis, comparison, name, labels)
            axis.set_xlabel(f"{text} {metric.title}")
        else:
            _draw_lines(axis, comparison, name, labels)
            axis.set_xlabel("round")
            axis.set_title(f"{text} {metric.title}", loc="left", fontsize=9)
    told = f"Mean over clients and seeds, on {scored_on(comparison)}"
    if comparison.several:
        told += f"; {'bars' if once else 'bands'}: ± std over seeds"
    if len(groups) < len(comparison.groups):
        told += f"; the best {len(groups)} of {len(comparison.groups)} groups"
    if once:
        axes[0].set_title(told, loc="left", fontsize=9)
    else:
        axes[0].set_ylim(*limits(metric, *axes[0].get_ylim()))  # of all panels, once all are drawn
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside lower left",
            ncols=columns,
            title=told,
            alignment="left",
        )
    title(figure, headline(comparison))
    return figure


def _panels(groups: list[Group], metric: Metric) -> dict[str, str]:
    names = (metric.initial, metric.personalized)
    curves = [[group.curve(name)["mean"] for name in names] for group in groups]
    figures = [[group.figures[name] for name in names] for group in groups]
    if all(initial.equals(personalized) for initial, personalized in curves + figures):
        return {metric.personalized: "initial = personalized"}
    return dict(zip(names, ("initial", "personalized"), strict=True))


def _signs() -> Iterator[tuple[str, str]]:
    """Yield colors with line styles; the first lines all look different."""
    return cycle((colour, stroke) for stroke, colour in product(STROKES, COLOURS))


def _draw_lines(axes: Axes, comparison: Comparison, name: str, labels: list[str]) -> None:
    groups, metric = comparison.drawn, comparison.metric
    for group, text, (colour, stroke) in zip(groups, labels, _signs(), strict=False):
        curve = group.curve(name)
        mean, low, high = _bounds(curve if len(curve) else _compared(group, name), metric)
        band = (low, high) if len(mean) > 1 and len(group.runs) > 1 else None
        draw_line(axes, mean, colour, text, band, stroke)
        if len(mean) == 1:
            axes.errorbar(mean.index, mean, [mean - low, high - mean], color=colour, capsize=3)
    whole_ticks(axes.xaxis, 10)


def _draw_points(axes: Axes, comparison: Comparison, name: str, labels: list[str]) -> None:
    groups, metric = comparison.drawn, comparison.metric
    places = np.arange(len(groups))
    for place, group, (colour, _) in zip(places, groups, _signs(), strict=False):
        curve = _compared(group, name)
        mean, low, high = _bounds(curve, metric)
        if len(mean):
            axes.errorbar(
                mean, place, xerr=[mean - low, high - mean], fmt="o", color=colour, capsize=3
            )
            std = metric.factor * curve["std"].iloc[-1]
            spread = f" ± {metric.digits(std, places=1)}" if std > 0 else ""
            told = f"{metric.digits(mean.iloc[-1], places=1)}{spread}"
            axes.annotate(
                told, (mean.iloc[-1], place), (0, 6), textcoords="offset points", ha="center",
                fontsize=8,
            )  # fmt: skip
    axes.grid(True, axis="both")
    axes.set_xlim(*limits(metric, *axes.get_xlim(), NARROWEST))
    axes.set_yticks(places, labels)
    axes.set_ylim(len(groups) - 0.5, -0.5)


def _sign(group: Group, keys: list[str], personalized: str) -> str:
    rounds, first, last = group.curve(personalized).index, min(group.rounds), max(group.rounds)
    told = ""
    if first < last:  # the curve ends with the first seed that has ended
        told = f" to round {rounds.max()} of {last}" if len(rounds) else f", rounds {first}-{last}"
    short = shortened(label(group, keys), LONGEST - len(told))
    return f"{group.name}: {short} (n = {len(group.runs)}{told})"


def _compared(group: Group, name: str) -> pd.DataFrame:
    """Return the scores that are compared as a curve with one point, at the mean of the rounds."""
    scores = group.figures[name].agg(["mean", "std"])
    return scores.to_frame(np.mean(group.rounds)).T.dropna(subset=["mean"])


def _bounds(curve: pd.DataFrame, metric: Metric) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Return mean, mean - std and mean + std, the last two within the bounds of the metric."""
    mean, std = curve["mean"], curve["std"].fillna(0.0)
    return metric.factor * mean, *around(metric, mean, std)
