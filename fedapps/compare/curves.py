"""The plot of a comparison: mean accuracies over rounds, with their spread over seeds."""

from collections.abc import Iterator
from itertools import cycle, product
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedapps.compare.comparison import Comparison
from fedapps.compare.groups import Group, label
from fedapps.compare.runs import RESULT
from fedapps.compare.table import headline, scored_on
from fedapps.drawing import pictures
from fedapps.drawing.pictures import ACCURACY

PANELS = {"accuracy_initial": "initial", RESULT: "personalized"}
COLOURS = pictures.PALETTE[:-1]  # yellow is too pale for a line
STROKES = ("-", "--", ":", "-.")
NARROWEST = 0.1  # of the range: the least that an axis for single evaluations shows
LETTERS = 12  # characters of a legend per inch
LINE = 0.2  # height of a line of the legend in inches
LONGEST = 60  # characters of a group's label; the table has the whole label


def write(comparison: Comparison, path: Path) -> None:
    """Draw the comparison into a file; raises `RunError` if it cannot be written."""
    pictures.write(lambda: draw(comparison), path)


def draw(comparison: Comparison) -> Figure:
    """Draw a panel per accuracy; runs that were scored only once are points with error bars."""
    groups, panels = comparison.groups, _panels(comparison.groups)
    labels = [_sign(group, comparison.keys) for group in groups]
    once = all(len(group.curve(RESULT)) < 2 for group in groups)
    width = pictures.WIDTH if len(panels) == 1 else 1.5 * pictures.WIDTH
    columns = max(1, int(LETTERS * width / (6 + max(map(len, labels)))))
    height = LINE * len(groups) if once else LINE * -(-len(groups) // columns)
    figure, axes = pictures.new_panels(len(panels), (width, pictures.HEIGHT + height))
    for axis, (name, text) in zip(axes, panels.items(), strict=True):
        if once:
            _draw_points(axis, groups, name, labels)
            axis.set_xlabel(f"{text} {ACCURACY.label}")
        else:
            _draw_lines(axis, groups, name, labels)
            axis.set_xlabel("round")
            axis.set_title(f"{text} {ACCURACY.label}", loc="left", fontsize=9)
    told = f"Mean over clients and seeds, on {scored_on(comparison)}"
    if any(len(group.runs) > 1 for group in groups):
        told += f"; {'bars' if once else 'bands'}: ± std over seeds"
    if once:
        axes[0].set_title(told, loc="left", fontsize=9)
    else:
        figure.legend(
            *axes[0].get_legend_handles_labels(),
            loc="outside lower left",
            ncols=columns,
            title=told,
            alignment="left",
        )
    pictures.title(figure, headline(comparison))
    return figure


def _panels(groups: list[Group]) -> dict[str, str]:
    curves = [[group.curve(name)["mean"] for name in PANELS] for group in groups]
    if all(initial.equals(personalized) for initial, personalized in curves):
        return {RESULT: "initial = personalized"}
    return PANELS


def _signs() -> Iterator[tuple[str, str]]:
    """Yield colors with line styles; the first lines all look different."""
    return cycle((colour, stroke) for stroke, colour in product(STROKES, COLOURS))


def _draw_lines(axes: Axes, groups: list[Group], name: str, labels: list[str]) -> None:
    for group, text, (colour, stroke) in zip(groups, labels, _signs(), strict=False):
        mean, low, high = _bounds(group.curve(name))
        band = (low, high) if len(mean) > 1 and len(group.runs) > 1 else None
        pictures.draw_line(axes, mean, colour, text, stroke, band)
        if len(mean) == 1:
            axes.errorbar(mean.index, mean, [mean - low, high - mean], color=colour, capsize=3)
    axes.set_ylim(*ACCURACY.limits(*axes.get_ylim()))
    pictures.whole_ticks(axes.xaxis, 10)


def _draw_points(axes: Axes, groups: list[Group], name: str, labels: list[str]) -> None:
    places = np.arange(len(groups))
    for place, group, (colour, _) in zip(places, groups, _signs(), strict=False):
        mean, low, high = _bounds(group.curve(name))
        if len(mean):
            axes.errorbar(
                mean, place, xerr=[mean - low, high - mean], fmt="o", color=colour, capsize=3
            )
            std = ACCURACY.shown(group.curve(name)["std"].iloc[-1])
            spread = f" ± {std:.1f}" if std > 0 else ""
            told = f"{mean.iloc[-1]:.1f}{spread}"
            axes.annotate(
                told, (mean.iloc[-1], place), (0, 6), textcoords="offset points", ha="center",
                fontsize=8,
            )  # fmt: skip
    axes.grid(True, axis="both")
    axes.set_xlim(*ACCURACY.limits(*axes.get_xlim(), NARROWEST))
    axes.set_yticks(places, labels)
    axes.set_ylim(len(groups) - 0.5, -0.5)


def _sign(group: Group, keys: list[str]) -> str:
    text = label(group, keys)
    short = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
    return f"{group.name}: {short} (n = {len(group.runs)})"


def _bounds(curve: pd.DataFrame) -> tuple[pd.Series, pd.Series, pd.Series]:
    """Return mean, mean - std and mean + std, the last two within the range of the figure."""
    mean, std = curve["mean"], curve["std"].fillna(0.0)
    return ACCURACY.shown(mean), *ACCURACY.around(mean, std)
