"""Plots of the leading metric per client and class, and of the samples that clients hold."""

from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.container import BarContainer
from matplotlib.figure import Figure as Picture

from fedapps.core.words import shortened
from fedapps.drawing.pictures import (
    BLUE,
    GREY,
    HEIGHT,
    PALE,
    RED,
    WIDEST,
    WIDTH,
    legend,
    limits,
    new_pair,
    stack,
    whole_ticks,
)
from fedapps.drawing.quantiles import HUNDRED, MOST, percentiles
from fedapps.report.caption import Caption
from fedapps.tasks import Metric

INITIAL, PERSONALIZED = RED, BLUE
FEW = 25  # up to this many clients or classes, names are upright, and classes keep their order
NAMED = 110  # up to this many, every client and class is named
LETTERS = 80  # up to this many characters in all, sums are above their bars, and names are upright
NAME = 20  # characters of the name of a client or class, at most
MANY = 300  # up to this many, a line connects the two values of a client or class


def draw_clients(clients: pd.DataFrame, caption: Caption, names: Sequence[str] = ()) -> Picture:
    """Draw every client's values before and after personalization, and its samples.

    `names` are what the data call clients 0, 1, ..., if they do. Of more than `MOST` clients, means
    of each hundredth are drawn, from the worst to the best.
    """
    metric, count = caption.metric, len(clients)
    ordered = _worst_first(clients, metric, "client")
    if many := count > MOST:
        ordered = ordered.groupby(np.arange(count) * HUNDRED // count).mean(numeric_only=True)
    picture, upper, lower = _new_parts(len(ordered))
    _draw_changes(upper, ordered, metric)
    mean = metric.factor * ordered[metric.personalized].mean()
    upper.axhline(mean, color=PERSONALIZED, linewidth=0.9, linestyle=(0, (5, 4)), label="mean")
    sizes = {"training": ordered["num_train"], caption.samples: ordered["num_test"]}
    _draw_samples(lower, sizes)
    order, round_ = f"personalized {metric.label}", clients["round"].iloc[0]
    if many:
        _name_percent(lower, f"{count:,} clients, sorted by {order}, in percent")
        lower.set_ylabel("samples (mean)")
        legend(upper, f"Mean of every hundredth of the clients, round {round_}")
    else:
        _name_places(lower, _called(ordered["client"], names), "client", order)
        legend(upper, f"Each client on its {caption.samples} samples, round {round_}")
    legend(lower)
    return picture


def draw_classes(classes: pd.DataFrame, caption: Caption, names: Sequence[str] = ()) -> Picture:
    """Draw the values per class, in label order if there are few classes, else sorted.

    `names` are what the data call classes 0, 1, ..., if they do.
    """
    few, metric = len(classes) <= FEW, caption.metric
    ordered = classes if few else _worst_first(classes, metric, "class")
    picture, upper, lower = _new_parts(len(ordered))
    _draw_changes(upper, ordered, metric)
    _draw_samples(lower, {caption.samples: ordered["num_test"]})
    lower.set_ylabel(f"{caption.samples} samples")
    called = _called(ordered["class"], names)
    _name_places(lower, called, "class", "" if few else f"personalized {metric.label}")
    legend(upper, f"Each class, over the {caption.samples} samples of all clients together")
    return picture


def draw_holdings(
    class_counts: np.ndarray, names: Sequence[str] = (), class_names: Sequence[str] = ()
) -> Picture:
    """Draw how many training samples of each class each client holds.

    `class_counts` is [clients, classes]; `names` are what the data call clients 0, 1, ..., and
    `class_names` what they call classes, which few classes are labelled with. Of more than `MOST`
    clients, percentiles are drawn: of their samples, and of their samples of each class by itself.
    """
    sizes, told = class_counts.sum(axis=1), f"{class_counts.sum():,} in all"
    subject, name = "Training samples of each client and class", ""
    if (count := len(sizes)) > MOST:
        sizes, class_counts = percentiles(sizes), percentiles(class_counts)
        subject, name = "Training samples of clients", f"percentile of {count:,} clients"
        subject += ", and of each class by itself"
    clients, classes = class_counts.shape
    height = max(HEIGHT + 0.8, min(0.085 * classes + 1.4, WIDEST))
    picture, upper, lower = new_pair((_width(clients), height), heights=(0.8, height - 1.6))
    _draw_samples(upper, {"training": sizes})
    lower.grid(False)
    # The square root keeps a handful of samples visible next to hundreds.
    norm = PowerNorm(0.5, vmin=0, vmax=max(class_counts.max(), 1))
    image = lower.pcolormesh(
        np.arange(clients), np.arange(classes), class_counts.T, cmap="Blues", norm=norm,
        edgecolors="face", linewidth=0.05,  # otherwise a PDF shows fine white lines
    )  # fmt: skip
    lower.set_ylabel("class")
    if class_names and classes <= FEW:
        lower.set_yticks(range(classes), _called(range(classes), class_names))
    else:
        whole_ticks(lower.yaxis, 20 if classes <= FEW else 10)
    if name:
        _name_percent(lower, name)
    else:
        _name_places(lower, _called(range(clients), names), "client")
    bar = picture.colorbar(image, ax=[upper, lower], label="samples", pad=0.02, aspect=40)
    bar.outline.set_visible(False)
    upper.set_title(f"{subject}, {told}", loc="left", fontsize=9)
    return picture


def _new_parts(count: int) -> tuple[Picture, Axes, Axes]:
    """Return a plot for `count` clients or classes: values above, samples below."""
    return new_pair((_width(count), HEIGHT + 1), heights=(3, 1))


def _width(count: int) -> float:
    return min(max(WIDTH, 0.1 * count + 1.2), WIDEST) if FEW < count <= NAMED else WIDTH


def _worst_first(table: pd.DataFrame, metric: Metric, name: str) -> pd.DataFrame:
    return table.sort_values([metric.personalized, name], ascending=[metric.more_is_better, True])


def _draw_changes(axes: Axes, table: pd.DataFrame, metric: Metric) -> None:
    names = (metric.initial, metric.personalized)
    initial, personalized = (metric.factor * table[name] for name in names)
    x = np.arange(len(table))
    size = min(5.0, 60 / len(x) ** 0.6)
    same = bool((initial == personalized).all())
    if not same:
        if len(x) <= MANY:
            axes.vlines(x, initial, personalized, color=PALE, linewidth=min(1.4, 150 / len(x)))
        _draw_dots(axes, initial, INITIAL, "initial", size)
    label = "initial = personalized" if same else "personalized"
    _draw_dots(axes, personalized, PERSONALIZED, label, size)
    axes.set_ylabel(metric.title)
    axes.set_ylim(*limits(metric, *axes.get_ylim()))


def _draw_dots(axes: Axes, values: pd.Series, colour: str, label: str, size: float) -> None:
    x = np.arange(len(values))  # clip_on=False shows dots at 0 and 100 % completely, too
    axes.plot(x, values, "o", color=colour, markersize=size, label=label, clip_on=False, zorder=3)


def _draw_samples(axes: Axes, sizes: Mapping[str, pd.Series | np.ndarray]) -> None:
    """Stack bars of the samples of each client or class, with their sum if there is room."""
    places = np.arange(len(next(iter(sizes.values()))))
    parts = zip(sizes, sizes.values(), (PALE, GREY), strict=False)
    total = stack(axes, places, parts)
    axes.set_ylabel("samples")
    if len(total) * (1 + len(str(max(total)))) <= LETTERS:
        axes.bar_label(cast(BarContainer, axes.containers[-1]), total, fontsize=7, padding=1)
        axes.margins(y=0.3)


def _name_percent(axes: Axes, label: str) -> None:
    """Make the x axis one of percent instead of names."""
    axes.set_xlim(-1.5, HUNDRED + 1.5)
    whole_ticks(axes.xaxis, 10)
    axes.set_xlabel(label)


def _called(numbers: Sequence[int] | pd.Series, names: Sequence[str]) -> list[str]:
    """Return the names of clients or classes, the beginnings of long ones; without names numbers.

    Classes that have no name, at the end, are numbers, too.
    """
    return [shortened(names[n] if n < len(names) else str(n), NAME) for n in numbers]


def _name_places(axes: Axes, names: list[str], what: str, sorted_by: str = "") -> None:
    """Write the names of clients or classes on the x axis, as far as they fit."""
    count = len(names)
    axes.set_xlim(-0.6 - 0.01 * count, count - 0.4 + 0.01 * count)
    how = f", sorted by {sorted_by}" if sorted_by else ""
    axes.set_xlabel(what + how)
    if count <= NAMED:
        axes.set_xticks(range(count), names)
        if count > FEW:
            axes.tick_params("x", labelrotation=90, labelsize=6, length=2, pad=1.5)
        elif count * max(map(len, names)) > LETTERS:  # each has the same room
            axes.tick_params("x", labelrotation=90, labelsize=7)
    elif not sorted_by:
        whole_ticks(axes.xaxis, 12)
    else:  # too many to name; their table has the names
        axes.set_xticks([])
        axes.set_xlabel(f"{count} {what}{'es' if what == 'class' else 's'}{how}")
