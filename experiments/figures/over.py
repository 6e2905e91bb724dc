"""Plot a table's rows over the key that its columns set, each mean with its 95 % interval."""

from argparse import ArgumentParser, Namespace

from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from experiments.figures.output import add_plot, add_table, print_table, save_plot
from experiments.outcomes.cells import Figure, Groups, outcomes, over_key
from experiments.papers.files import single
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.drawing.pictures import HEIGHT, PALETTE, WIDTH, legend, new_panels

APART = 0.012  # of the range: rows are drawn side by side, so that no interval hides another


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `fedapps experiments over`."""
    add_table(parser)
    add_plot(parser)


def show(store: Store, options: Namespace) -> None:
    """Print the figures, and draw them if `--plot` is given; raises `RunError` if none is there."""
    table = single(options.table)
    if not table.over:
        raise RunError(f"table {table.name} has no `over`: its columns set no key to plot over")
    groups = over_key(table, [*outcomes(store, table, options.scale)])
    if not groups:
        raise RunError(f"no row of {table.name} has run at {options.scale}")
    heads = ("row", table.over, "ours", "published")
    for common, rows in groups.items():
        if common:
            print(common)
        print_table(heads, [_line(n, x, f) for n, line in rows.items() for x, f in line])
    save_plot(lambda: draw(table.over, groups), options.plot)


def _line(name: str, value: float, figure: Figure) -> list[str]:
    ours, published, _ = figure.texts()
    return [name, f"{value:g}", ours, published]


def draw(key: str, groups: Groups) -> Picture:
    """Draw a panel for each group of columns; a dashed line is what a paper has published.

    Groups with a single value of the key are left out. Raises `RunError` if all have just one.
    """
    drawn = {name: rows for name, rows in groups.items() if any(len(x) > 1 for x in rows.values())}
    if not drawn:
        raise RunError(f"rows have run with one value of {key} only: there is nothing to plot over")
    picture, panels = new_panels(len(drawn), (WIDTH * len(drawn) ** 0.5, HEIGHT))
    for axes, (common, rows) in zip(panels, drawn.items(), strict=True):
        values = sorted({value for line in rows.values() for value, _ in line})
        gap = APART * (values[-1] - values[0])
        for place, (name, line) in enumerate(rows.items()):
            shift = gap * (place - (len(rows) - 1) / 2)
            _draw_row(axes, name, line, PALETTE[place % len(PALETTE)], shift)
        axes.set_xticks(values)
        axes.set_xlabel(key)
        legend(axes, common)
    panels[0].set_ylabel("mean over the seeds, %")
    return picture


def _draw_row(
    axes: Axes, name: str, line: list[tuple[float, Figure]], colour: str, shift: float
) -> None:
    xs = [value + shift for value, _ in line]
    means = [figure.mean for _, figure in line]
    halves = [figure.half or 0.0 for _, figure in line]
    axes.errorbar(xs, means, halves, fmt="o-", color=colour, capsize=3, elinewidth=1, label=name)
    published = [(x, figure.published) for x, (_, figure) in zip(xs, line, strict=True)]
    told = [(x, value) for x, value in published if value is not None]
    if told:
        axes.plot(*zip(*told, strict=True), "--", color=colour, label=f"{name}, published")
