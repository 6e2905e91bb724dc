"""Pictures drawn with matplotlib: their common look, their axes and marks; and saving them."""

import io
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import matplotlib as mpl
import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import ArrayLike

from fedapps.core.files import write_whole
from fedapps.tasks import Metric

# Colors of Okabe and Ito, which color-blind readers can distinguish.
BLUE, RED, GREEN = "#0072b2", "#d55e00", "#009e73"
OTHERS = ("#cc79a7", "#e69f00", "#56b4e9", "#f0e442")
PALETTE = (BLUE, RED, GREEN, *OTHERS)
INK, PALE, GREY = "#333333", "#c8c8c8", "#8a8a8a"
WIDTH, HEIGHT = 6.8, 4.0  # inches: 1020 x 600 pixels
WIDEST = 11.5
FEW = 25  # up to this many points, every point of a line is marked
STYLE = {
    "figure.dpi": 150,
    "figure.figsize": (WIDTH, HEIGHT),
    "figure.constrained_layout.use": True,
    "font.size": 9,
    "text.color": INK,
    "text.parse_math": False,  # names and settings can contain dollars
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.8,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e8e8e8",
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "lines.markersize": 4,
    "pdf.fonttype": 42,  # embeds whole fonts, which publishers ask for
    "svg.hashsalt": "fedapps",  # so that the same picture gives the same file
}
# Metadata without which two files of the same picture are equal.
_UNDATED = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


Bounds = tuple["pd.Series[float]", "pd.Series[float]"]
TOP = 0.01  # share of the range that an axis leaves for a mark at its top


def around(metric: Metric, mean: "pd.Series[float]", std: "pd.Series[float]") -> Bounds:
    """Return mean - std and mean + std in the unit of a metric, both within its bounds."""
    low, high = (metric.factor * bound for bound in metric.bounds)
    mean, std = metric.factor * mean, metric.factor * std
    return (mean - std).clip(low, high), (mean + std).clip(low, high)


def limits(metric: Metric, low: float, high: float, narrowest: float = 0.0) -> tuple[float, float]:
    """Return limits of an axis within the bounds of a metric, with room for a mark at their top.

    They are at least the share `narrowest` of the bounds apart, if both bounds are finite.
    """
    least, most = (metric.factor * bound for bound in metric.bounds)
    span = most - least
    if not math.isfinite(span):
        return max(low, least), high
    top = most + TOP * span
    low, high = max(low, least), min(high, top)
    if high - low >= narrowest * span:
        return low, high
    width = narrowest * span
    low = min(max((low + high - width) / 2, least), top - width)
    return low, low + width


def styled() -> AbstractContextManager[None]:
    """Return a context in which pictures have the common look."""
    return matplotlib.style.context(["default", STYLE])


class Picture(Figure):
    """A figure that notebooks show without pyplot."""

    def _repr_png_(self) -> bytes:
        png = io.BytesIO()
        self.savefig(png, format="png")
        return png.getvalue()


def new_axes(
    xlabel: str, ylabel: str = "", size: tuple[float, float] | None = None
) -> tuple[Figure, Axes]:
    """Return an empty plot and its axes."""
    figure = Picture(figsize=size)
    return figure, figure.add_subplot(xlabel=xlabel, ylabel=ylabel)


def new_pair(
    size: tuple[float, float] = (WIDTH, 5.4), heights: Sequence[float] = (1, 1)
) -> tuple[Figure, Axes, Axes]:
    """Return an empty plot and two axes, one above the other, with a common x axis."""
    figure = Picture(figsize=size)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    upper.xaxis.set_visible(False)  # the lower axes show it
    return figure, upper, lower


def new_panels(count: int, size: tuple[float, float]) -> tuple[Figure, list[Axes]]:
    """Return an empty plot and `count` axes side by side, with a common y axis."""
    figure = Picture(figsize=size)
    axes = figure.subplots(1, count, sharey=True, squeeze=False)
    return figure, list(axes[0])


def whole_ticks(axis: Axis, most: int) -> None:
    """Put about `most` ticks on an axis, at whole numbers."""
    axis.set_major_locator(MaxNLocator(most, integer=True, steps=[1, 2, 5, 10], min_n_ticks=1))


def title(figure: Figure, text: str) -> None:
    """Write the title of the picture at its top."""
    if text:
        figure.suptitle(text, x=0.012, ha="left", fontsize=10, fontweight="bold")


def legend(
    axes: Axes, subject: str = "", signs: Sequence[Artist] | None = None, columns: int = 4
) -> None:
    """Write the subject and the legend above the axes, where they never hide a curve."""
    axes.legend(
        handles=axes.get_legend_handles_labels()[0] if signs is None else signs,
        loc="lower left",
        bbox_to_anchor=(-0.01, 1),
        ncols=columns,
        borderaxespad=0.2,
        columnspacing=1.4,
        handlelength=1.5,
        handletextpad=0.6,
        title=subject or None,
        alignment="left",
    )
    axes.yaxis.get_offset_text().set(x=-0.02, ha="right")  # such as 1e10, beside the legend


def draw_line(
    axes: Axes,
    values: "pd.Series[float]",
    colour: str,
    name: str,
    band: Bounds | None,
    stroke: str = "-",
    band_name: str | None = None,
) -> None:
    """Draw values over their index, and a band around them if there is one."""
    mark = "o" if len(values) <= FEW else ""
    axes.plot(values.index, values, stroke, color=colour, marker=mark, label=name)
    if band:
        axes.fill_between(
            values.index, *band, color=colour, alpha=0.14, linewidth=0, label=band_name
        )


def stack(
    axes: Axes,
    places: Sequence[str] | np.ndarray,
    parts: Iterable[tuple[str, ArrayLike, str]],
    flat: bool = False,
) -> np.ndarray:
    """Stack bars at places: a name, values and a colour for each part; return the sums."""
    total: np.ndarray = np.zeros(len(places), np.int64)
    for name, values, colour in parts:
        if flat:
            axes.barh(places, values, left=total, color=colour, label=name)
        else:
            axes.bar(places, values, bottom=total, color=colour, label=name)
        total = total + np.asarray(values)
    return total


def save(figure: Figure, path: Path) -> None:
    """Write a plot as PNG, SVG or PDF, as the suffix says; raises `RunError`.

    The file is written completely or not at all. Signs that the font lacks are boxes.
    """
    picture, kind = io.BytesIO(), path.suffix[1:]
    style = mpl.rc_context({key: STYLE[key] for key in ("pdf.fonttype", "svg.hashsalt")})
    with style, warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph .* missing from")
        figure.savefig(picture, format=kind, metadata=_UNDATED[kind])
    write_whole(path, picture.getvalue())


def write(draw: Callable[[], Figure], path: Path) -> None:
    """Draw a picture in the common look and save it; raises `RunError`."""
    with styled():
        save(draw(), path)
