"""Plot how far each method is ahead of the yardstick, in each of several tables side by side.

Of several tables, methods that are in a single one are printed, but not plotted.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from statistics import fmean

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from experiments.figures.output import add_plot, print_table, save_plot
from experiments.outcomes.cells import outcomes
from experiments.outcomes.significance import LEVEL
from experiments.outcomes.yardstick import BETTER, WORSE, Comparison, Line, compare
from experiments.papers.files import pick
from experiments.papers.table import SCALES
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.drawing.pictures import BLUE, GREY, INK, RED, WIDEST, new_panels

TABLES = ("benchmark-cifar10", "benchmark-digits", "watch", "heart", "shakespeare")
# Points. A mean outside is an arrow at the edge, with its figure; an interval ends in a small one.
LOW, HIGH = -10.0, 5.0
X_LABEL = (
    "Points ahead of that figure, which is the line at 0. Methods are ordered by their mean place "
    "in these tables, the best first; those in fewer than half of them come last."
)
COLOURS = {BETTER: BLUE, WORSE: RED}
Found = Mapping[str, Comparison]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `fedapps experiments leads`."""
    parser.add_argument("tables", nargs="*", default=TABLES, metavar="TABLE")
    parser.add_argument("--scale", choices=SCALES, default="cpu")
    add_plot(parser)


def found(store: Store, options: Namespace) -> dict[str, Comparison]:
    """Return the comparison of each table that has run; raises `RunError` if none has."""
    comparisons = {}
    for table in pick(options.tables):
        if not table.yardstick:
            raise RunError(f"table {table.name} has no yardstick; {', '.join(TABLES)} have one")
        done = [o for o in outcomes(store, table, options.scale) if o.runs]
        if comparison := compare(done, table.yardstick, table.alone):
            comparisons[table.name] = comparison
    if not comparisons:
        raise RunError(f"no yardstick of {', '.join(options.tables)} has run at {options.scale}")
    return comparisons


def by_method(comparisons: Found) -> dict[str, dict[str, Line]]:
    """Return each method's line by table, the method with the best mean place first.

    A place is counted from 0 (best) to 1 within a table; those in few tables come last.
    """
    lines: dict[str, dict[str, Line]] = {}
    places: dict[str, list[float]] = {}
    for table, comparison in comparisons.items():
        for place, line in enumerate(comparison.lines):
            places.setdefault(line.name, []).append(place / max(1, len(comparison.lines) - 1))
            if line.name != comparison.yardstick:
                lines.setdefault(line.name, {})[table] = line
    few = len(comparisons) / 2
    order = sorted(lines, key=lambda name: (len(lines[name]) < few, fmean(places[name])))
    return {name: lines[name] for name in order}


def show(store: Store, options: Namespace) -> None:
    """Print the differences from the yardstick, and draw them if `--plot` is given."""
    comparisons = found(store, options)
    methods = by_method(comparisons)
    rows = [
        [name, *(line[t].gap.text("+", digits=1) if t in line else "" for t in comparisons)]
        for name, line in methods.items()
    ]
    print_table(("method", *comparisons), rows)
    least = min(2, len(comparisons))
    plotted = {name: line for name, line in methods.items() if len(line) >= least}
    if options.plot and not plotted:
        where = "two of " * (least > 1) + ", ".join(comparisons)
        raise RunError(f"--plot: no method but the yardstick has run in {where}; run more first")
    words = {
        t.name: (t.short or t.name, t.yardstick_is or t.yardstick) for t in pick(options.tables)
    }
    save_plot(lambda: draw(comparisons, plotted, words), options.plot)


def draw(
    comparisons: Found,
    methods: Mapping[str, Mapping[str, Line]],
    words: Mapping[str, tuple[str, str]],
) -> Figure:
    """Draw a panel for each table: a dot for each method's difference, and its 95 % interval.

    `words` names each table, and what its yardstick is.
    """
    size = (WIDEST, 1.4 + 0.21 * len(methods))
    figure, panels = new_panels(len(comparisons), size)
    names = list(methods)
    for axes, (table, comparison) in zip(panels, comparisons.items(), strict=True):
        for place, name in enumerate(names):
            if table in methods[name]:
                _mark(axes, place, methods[name][table])
        base = next(line for line in comparison.lines if line.name == comparison.yardstick)
        axes.axvline(0, color=INK, linewidth=0.8)
        axes.set(xlim=(LOW, HIGH), ylim=(len(names) - 0.5, -0.5))
        title, reference = words[table]
        axes.set_title(title, size=9)
        axes.set_xlabel(f"{reference}: {base.accuracy.mean:.1f} %")
        axes.grid(axis="both")
    panels[0].set_yticks(range(len(names)), names)
    figure.legend(handles=_signs(), loc="outside upper left", ncols=len(_signs()), alignment="left")
    figure.supxlabel(X_LABEL, size=9)
    return figure


def _mark(axes: Axes, place: int, line: Line) -> None:
    mean = line.gap.mean
    colour = COLOURS.get(line.verdict, GREY)
    sure = line.corrected is not None and line.corrected <= LEVEL
    inside = colour if sure else "white"
    if not LOW < mean < HIGH:
        end, side = (LOW, "left") if mean <= LOW else (HIGH, "right")
        marker = "<" if mean <= LOW else ">"
        axes.plot(end, place, marker, color=colour, markerfacecolor=inside, clip_on=False)
        shift = 0.9 if mean <= LOW else -0.9
        axes.text(end + shift, place, f"{mean:+.0f}", va="center", ha=side, size=8, color=colour)
        return
    low, high = line.gap.span
    axes.plot((low, high), [place, place], color=colour, linewidth=1.4)
    for beyond, end, marker in ((low < LOW, LOW, "<"), (high > HIGH, HIGH, ">")):
        if beyond:  # the interval goes on there
            axes.plot(end, place, marker, color=colour, markersize=3, clip_on=False)
    axes.plot(mean, place, "o", color=colour, markerfacecolor=inside)


def _signs() -> list[Line2D]:
    """Return what the legend shows."""
    names = {BLUE: "ahead", RED: "behind", GREY: "inconclusive"}
    signs = [
        Line2D([], [], color=c, label=f"{name}, with 95 % interval") for c, name in names.items()
    ]
    sure = Line2D([], [], color=INK, marker="o", linestyle="", label="also after Holm's correction")
    return [*signs, sure]
