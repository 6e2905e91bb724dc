"""Plot a table's accuracy over rounds, with one line per method."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.figures.output import add_plot, save_plot
from experiments.outcomes.cells import outcomes
from experiments.papers.files import single
from experiments.papers.table import SCALES, Table
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.drawing.pictures import WIDTH, new_axes

WORDS = {
    "accuracy_initial_weighted": "accuracy by test samples",
    "accuracy_personalized_weighted": "personalized accuracy by test samples",
}
Curves = Mapping[tuple[str, str], Mapping[int, float]]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `python -m experiments curves`."""
    parser.add_argument("table")
    parser.add_argument("--scale", choices=SCALES, default="cpu")
    add_plot(parser, required=True)


def curves_of(store: Store, table: Table, scale: str) -> Curves:
    """Return the column that the table follows, by (cell, seed) and round."""
    found = {}
    for outcome in outcomes(store, table, scale):
        for run in outcome.runs:
            if table.follows in run.rounds:
                points = zip(run.rounds["round"], run.rounds[table.follows], strict=True)
                curve = {int(r): v for r, v in points if r is not None and v is not None}
                found[outcome.cell.name, str(run.seed)] = curve
    return found


def reached(store: Store, table: Table, scale: str) -> tuple[list[str], list[list[str]]]:
    """Return heads and lines about each curve: its last and best value, and when it got how far.

    A threshold for which a paper says when its curves reached it has a second column for that.
    """
    published = {row.name: row.reached for row in table.rows}
    told = {int(threshold) for rounds in published.values() for threshold in rounds}
    heads = ["row", "seed", "last", "best round"]
    for threshold in table.thresholds:
        heads += [f"first round at {threshold} %"] + [f"published, {threshold} %"] * (
            threshold in told
        )
    lines = []
    for (name, seed), curve in curves_of(store, table, scale).items():
        best = max(curve, key=lambda round_: curve[round_])
        line = [name, seed, f"{100 * curve[max(curve)]:.2f}", f"{100 * curve[best]:.2f} ({best})"]
        theirs = published.get(name.partition("@")[0], {})
        for threshold in table.thresholds:
            first = (str(r) for r in sorted(curve) if 100 * curve[r] >= threshold)
            line += [next(first, "never")]
            line += [str(theirs.get(str(threshold), ""))] * (threshold in told)
        lines.append(line)
    return heads, lines


def show(store: Store, options: Namespace) -> None:
    """Draw the curves into a file; raises `RunError` if there are none."""
    table = single(options.table)
    curves = curves_of(store, table, options.scale)
    if not curves:
        raise RunError("the table has no curves: no row has run, or its file has no `follows`")
    save_plot(lambda: draw(table.title, table.follows, curves), options.plot)


def draw(title: str, column: str, curves: Curves) -> Figure:
    """Draw lines over rounds, in percent. Names are at the right, in the order of the lines."""
    figure, axes = new_axes("round", f"{WORDS.get(column, column)}, %", (WIDTH, 3.8))
    axes.set_title(title)
    ends = {key: 100 * curve[max(curve)] for key, curve in curves.items()}
    values = [value for curve in curves.values() for value in curve.values()]
    gap = 4.5 * (max(values) - min(values))
    last, one_seed = max(map(max, curves.values())), len({seed for _, seed in curves}) == 1
    place, palette = -1e9, mpl.color_sequences["tab10"]
    for index, key in enumerate(sorted(curves, key=lambda key: ends[key])):
        curve = curves[key]
        rounds, values = [*curve], [100 * value for value in curve.values()]
        colour = palette[index % len(palette)]
        axes.plot(rounds, values, color=colour, linewidth=1.6)
        place = max(place + gap, ends[key])
        name = key[0] if one_seed else f"{key[0]}, seed {key[1]}"
        short = f" (round {rounds[-1]})" if rounds[-1] < last else ""
        axes.annotate(
            f"{name}  {ends[key]:.1f}{short}",
            (last, ends[key]),
            (1.02 * last, place),
            color=colour,
            va="center",
            fontsize=8,
            annotation_clip=False,
        )
    return figure
