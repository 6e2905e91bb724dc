"""Plot a table's accuracy over rounds, with one line per method."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.figure import Figure

from experiments.figures.output import add_plot, add_table, save_plot
from experiments.outcomes.cells import outcomes
from experiments.papers.files import single
from experiments.papers.table import Table, matches
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.core.words import number
from fedapps.drawing.pictures import WIDTH, new_axes

WORDS = {
    "accuracy_initial_weighted": "accuracy by test samples",
    "accuracy_personalized_weighted": "personalized accuracy by test samples",
}
Curves = Mapping[tuple[str, str], Mapping[int, float]]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `fedapps experiments curves`."""
    add_table(parser)
    parser.add_argument("--only", default="*", metavar="ROWS", help="rows, or row@column [all]")
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
    found = curves_of(store, table, options.scale).items()
    curves = {key: curve for key, curve in found if matches(key[0], options.only)}
    if not curves:
        raise RunError("the table has no such curves: no row has run, or its file has no `follows`")
    save_plot(lambda: draw(table.title, table.follows, curves), options.plot)


def draw(title: str, column: str, curves: Curves) -> Figure:
    """Draw a line over rounds for each row, in percent: the mean over its seeds.

    A band reaches from the least to the largest seed. Names are at the right, in the order of the
    lines; where numbers of seeds differ, they say how many a row has.
    """
    figure, axes = new_axes("round", f"{WORDS.get(column, column)}, %", (WIDTH, 3.8))
    axes.set_title(title)
    rows = {name: [c for (other, _), c in curves.items() if other == name] for name, _ in curves}
    points = {name: _by_round(of_seeds) for name, of_seeds in rows.items()}
    means = {
        name: {r: sum(values) / len(values) for r, values in found.items()}
        for name, found in points.items()
    }
    ends = {name: mean[max(mean)] for name, mean in means.items()}
    every = [value for mean in means.values() for value in mean.values()]
    gap, place, palette = 0.045 * (max(every) - min(every)), -1e9, mpl.color_sequences["tab10"]
    last, counts = max(map(max, means.values())), {len(of_seeds) for of_seeds in rows.values()}
    for index, name in enumerate(sorted(rows, key=lambda name: ends[name])):
        rounds, colour = [*means[name]], palette[index % len(palette)]
        axes.plot(rounds, [*means[name].values()], color=colour, linewidth=1.6)
        if len(rows[name]) > 1:
            low, high = zip(*((min(v), max(v)) for v in points[name].values()), strict=True)
            axes.fill_between(rounds, low, high, color=colour, alpha=0.15, linewidth=0)
        place = max(place + gap, ends[name])
        seeds = f" ({number(len(rows[name]), 'seed')})" if len(counts) > 1 else ""
        short = f" (round {rounds[-1]})" if rounds[-1] < last else ""
        axes.annotate(
            f"{name}  {ends[name]:.1f}{seeds}{short}",
            (last, ends[name]),
            (1.02 * last, place),
            color=colour,
            va="center",
            fontsize=8,
            annotation_clip=False,
        )
    return figure


def _by_round(of_seeds: Sequence[Mapping[int, float]]) -> dict[int, list[float]]:
    """Return the values of all seeds, in percent, for each round that all of them have."""
    common = set.intersection(*map(set, of_seeds))
    return {round_: [100 * curve[round_] for curve in of_seeds] for round_ in sorted(common)}
