"""Draw the probability density of the accuracies of all classes (FedCMD, Fig. 6).

    fedapps experiments classes RUN RUN --plot classes.png

RUN is a run directory, whose classes.csv has the accuracy of each class, over the test samples of
all clients together. A histogram stands behind each density.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from experiments.figures.output import add_plot, print_table, save_plot
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.drawing.pictures import PALETTE, legend, new_axes
from fedapps.report import directory

ACCURACIES = ("initial", "personalized")
GRID = np.linspace(0, 100, 401)
BINS = [*range(0, 101, 5)]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `fedapps experiments classes`."""
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="run directories")
    parser.add_argument(
        "--accuracy",
        choices=ACCURACIES,
        default=ACCURACIES[0],
        help="before or after personalization [initial, which FedCMD's figures are]",
    )
    add_plot(parser)


def accuracies(run: Path, which: str) -> np.ndarray:
    """Return the accuracy of each class in percent; a class without test samples is left out.

    Raises `RunError` if there are no two different accuracies, of which a density can be drawn.
    """
    rows = directory.lines(run / "classes.csv")
    texts = [row[f"accuracy_{which}"] for row in rows]
    values = np.array([100 * float(text) for text in texts if text])
    if len(np.unique(values)) < 2:
        raise RunError(f"{run}: a density needs classes of different accuracy in classes.csv")
    return values


def show(store: Store, options: Namespace) -> None:
    """Print the spread of the accuracies of each run, and draw it if `--plot` is given."""
    names = [run.resolve().name for run in options.runs]
    found = {
        name if names.count(name) == 1 else str(run): accuracies(run, options.accuracy)
        for name, run in zip(names, options.runs, strict=True)
    }
    rows = []
    for name, values in found.items():
        figures = (values.min(), np.median(values), values.mean(), values.max())
        rows.append([name, str(len(values)), *(f"{figure:.2f}" for figure in figures)])
    print_table(("run", "classes", "lowest", "median", "mean", "highest"), rows)
    save_plot(lambda: draw(found, options.accuracy), options.plot)


def draw(found: Mapping[str, np.ndarray], which: str) -> Figure:
    """Draw a density and a histogram for each run, between 0 and 100 %."""
    figure, axes = new_axes(f"{which} accuracy of a class, %", "probability density")
    for index, (name, values) in enumerate(found.items()):
        color = PALETTE[index % len(PALETTE)]
        axes.hist(values, BINS, density=True, color=color, alpha=0.25)
        axes.plot(GRID, stats.gaussian_kde(values)(GRID), color=color, label=name)
    legend(axes, columns=1)
    return figure
