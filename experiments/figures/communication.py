"""Compare the bytes that a table's methods sent with FedAvg's (FedCMD, Fig. 8)."""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping

from matplotlib.figure import Figure

from experiments.figures.output import add_plot, add_table, print_table, save_plot
from experiments.outcomes.cells import outcomes
from experiments.papers.files import single
from experiments.papers.table import Table
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.drawing.pictures import BLUE, GREEN, INK, WIDTH, legend, new_axes, stack

REFERENCES = ("fedavg", "fedavg-ft")  # a column is compared with the first one that it has
Results = Mapping[str, Mapping[str, float]]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `fedapps experiments communication`."""
    add_table(parser)
    add_plot(parser)


def sent(results: Results) -> dict[str, tuple[float, float]]:
    """Return the bytes (down, up) of each cell, divided by all of FedAvg's bytes in its column.

    Raises `RunError` if FedAvg has no result in any column.
    """
    whole: dict[str, float] = {}
    for reference in reversed(REFERENCES):
        for cell, row in results.items():
            name, _, column = cell.partition("@")
            if name == reference:
                whole[column] = row["bytes_down"] + row["bytes_up"]
    if not whole:
        raise RunError(
            f"the table has no result of {REFERENCES[0]}, which the others are compared with"
        )
    return {
        cell: (row["bytes_down"] / whole[column], row["bytes_up"] / whole[column])
        for cell, row in results.items()
        if (column := cell.partition("@")[2]) in whole
    }


def results_of(store: Store, table: Table, scale: str) -> Results:
    """Return the costs of each cell of a table, from its first seed that has run."""
    return {o.cell.name: o.runs[0].costs for o in outcomes(store, table, scale) if o.runs}


def show(store: Store, options: Namespace) -> None:
    """Print the table, fewest bytes first, and draw it if `--plot` is given."""
    results = results_of(store, single(options.table), options.scale)
    shares = dict(sorted(sent(results).items(), key=lambda item: sum(item[1])))
    rows = []
    for name, (down, up) in shares.items():
        mega = [f"{results[name][key] / 1e6:,.1f}" for key in ("bytes_down", "bytes_up")]
        rows.append([name, *mega, f"{100 * (down + up):.1f}%"])
    print_table(("method", "down MB", "up MB", "of FedAvg"), rows)
    save_plot(lambda: draw(shares), options.plot)


def draw(shares: Mapping[str, tuple[float, float]]) -> Figure:
    """Draw bars of each method's bytes down and up, in percent of FedAvg's total."""
    size = (WIDTH, 0.8 + 0.3 * len(shares))
    figure, axes = new_axes("bytes of training, % of FedAvg's", size=size)
    names = list(shares)[::-1]
    down, up = ([100 * shares[name][part] for name in names] for part in (0, 1))
    stack(axes, names, [("down", down, BLUE), ("up", up, GREEN)], flat=True)
    for place, (a, b) in enumerate(zip(down, up, strict=True)):
        text = axes.text(a + b + 3, place, f"{a + b:.1f}", va="center", fontsize=8, color=INK)
        text.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8})
    axes.axvline(100, color=INK, linewidth=0.8, linestyle=":", zorder=1)
    axes.grid(visible=False)
    legend(axes, columns=2)
    return figure
