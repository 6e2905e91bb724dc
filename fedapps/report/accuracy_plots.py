"""Plots of the leading metric over rounds and traffic; bars if a run was evaluated only once."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from fedapps.drawing.pictures import (
    BLUE,
    GREEN,
    INK,
    OTHERS,
    RED,
    Bounds,
    around,
    draw_line,
    legend,
    limits,
    new_axes,
    whole_ticks,
)
from fedapps.method.figures import Figure
from fedapps.report import frames
from fedapps.report.caption import Caption
from fedapps.report.columns import VIRTUAL
from fedapps.report.units import byte_unit, human, human_bytes, time_unit
from fedapps.tasks import Metric

INITIAL, PERSONALIZED = RED, BLUE
FURTHER = (GREEN, *OTHERS)  # colors of further figures, in their order
BAND = "± std over clients, personalized"
COSTS = ["bytes_down", "bytes_up", "train_macs"]


def evaluated_rounds(rounds: pd.DataFrame, metric: Metric) -> pd.DataFrame:
    """Return the evaluated rounds of rounds.csv, with the training costs summed up to each.

    The columns of sums are `bytes_down`, `bytes_up`, `train_macs`, and `bytes` (the first two).
    """
    costs = frames.counted(rounds)[COSTS].cumsum()
    costs["bytes"] = costs["bytes_down"] + costs["bytes_up"]
    so_far = rounds.assign(**{str(name): costs[name] for name in costs})
    return so_far.dropna(subset=[metric.initial, metric.personalized])


def draw_scores(evaluated: pd.DataFrame, figures: Sequence[Figure], caption: Caption) -> Picture:
    """Draw the metric's means over rounds, with the spread of the personalized one over clients.

    A single evaluation is drawn as bars instead of lines.
    """
    if len(evaluated) == 1:
        return _draw_once(evaluated, figures, caption)
    picture, axes = new_axes("round", _axis(caption))
    _draw_lines(axes, evaluated, caption, evaluated["round"], figures, True)
    whole_ticks(axes.xaxis, 12)
    legend(axes, f"Mean over {caption.scored}")
    return picture


def draw_communication(
    evaluated: pd.DataFrame, figures: Sequence[Figure], caption: Caption
) -> Picture:
    """Draw the means of the metric over the bytes that training has sent up and down so far."""
    last = evaluated.iloc[-1]
    size, unit = byte_unit(last["bytes"])
    picture, axes = new_axes(
        f"sent in training, up and down, by all clients ({unit})", _axis(caption)
    )
    _draw_lines(axes, evaluated, caption, evaluated["bytes"] / size, figures)
    axes.set_xlim(left=0)
    down, up = human_bytes(last["bytes_down"]), human_bytes(last["bytes_up"])
    macs = human(last["train_macs"])
    legend(axes, f"In all {down} down, {up} up, {macs} multiply-accumulates of training")
    return picture


def draw_time(evaluated: pd.DataFrame, figures: Sequence[Figure], caption: Caption) -> Picture:
    """Draw the means of the metric over virtual time."""
    size, unit = time_unit(evaluated[VIRTUAL].iloc[-1])
    picture, axes = new_axes(f"virtual time ({unit})", _axis(caption))
    _draw_lines(axes, evaluated, caption, evaluated[VIRTUAL] / size, figures)
    axes.set_xlim(left=0)
    legend(axes, f"Mean over {caption.scored}")
    return picture


def _draw_once(evaluated: pd.DataFrame, figures: Sequence[Figure], caption: Caption) -> Picture:
    picture, axes = new_axes("", _axis(caption))
    metric = caption.metric
    curves = _curves(evaluated, metric, figures)
    for place, (values, colour) in enumerate(curves.values()):
        axes.bar(place, values.iloc[0], 0.5, color=colour)
    (values, _), last = list(curves.values())[-1], len(curves) - 1
    spread = [[abs(values.iloc[0] - bound.iloc[0])] for bound in _spread(evaluated, metric)]
    axes.errorbar(last, values.iloc[0], spread, color=INK, capsize=4, linewidth=1, label=BAND)
    shown = [
        f"{name}\n{metric.shown(values.iloc[0] / metric.factor)}"
        for name, (values, _) in curves.items()
    ]
    axes.set_xticks(range(len(curves)), shown)
    axes.set_xlim(-1, len(curves))
    low, high = axes.get_ylim()
    axes.set_ylim(*limits(metric, low, 101.0 if metric.unit else high))
    legend(axes, f"Mean over {caption.scored}, after round {evaluated['round'].iloc[0]}")
    return picture


def _axis(caption: Caption) -> str:
    label = caption.metric.title
    return label if label.startswith("mean ") else f"mean {label}"


def _curves(
    evaluated: pd.DataFrame, metric: Metric, figures: Sequence[Figure]
) -> dict[str, tuple[pd.Series, str]]:
    """Return the curves by label: values in the unit, and color; the personalized one is last."""
    initial, personalized = (
        metric.factor * evaluated[name] for name in (metric.initial, metric.personalized)
    )
    same = bool((initial == personalized).all())
    curves = {} if same else {"initial": (initial, INITIAL)}
    # a run lacks the columns of methods that were added after it
    there = [f for f in figures if f.label and f.name in evaluated]
    shown = [f for f in there if evaluated[f.name].notna().any()]
    for figure, colour in zip(shown, FURTHER * len(shown), strict=False):
        curves[figure.label] = (metric.factor * evaluated[figure.name], colour)
    return curves | {
        "initial = personalized" if same else "personalized": (personalized, PERSONALIZED)
    }


def _draw_lines(
    axes: Axes,
    evaluated: pd.DataFrame,
    caption: Caption,
    x: pd.Series,
    figures: Sequence[Figure],
    with_band: bool = False,
) -> None:
    """Draw the curves over x, and the spread of the personalized one, which is last."""
    metric = caption.metric
    for name, (values, colour) in _curves(evaluated, metric, figures).items():
        band = _spread(evaluated, metric) if with_band and colour == PERSONALIZED else None
        draw_line(axes, values.set_axis(x), colour, name, band, band_name=BAND)
    axes.set_ylim(*limits(metric, *axes.get_ylim()))


def _spread(evaluated: pd.DataFrame, metric: Metric) -> Bounds:
    """Return the lower and the upper bound of the personalized value's spread, in the unit."""
    mean, std = (evaluated[f"{metric.personalized}{end}"] for end in ("", "_std"))
    return around(metric, mean, std)
