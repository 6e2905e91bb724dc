"""Plots of accuracy over rounds and over traffic; bars if a run was evaluated only once."""

from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Picture

from fedapps.drawing import pictures
from fedapps.drawing.pictures import ACCURACY
from fedapps.method.figures import Figure
from fedapps.report.caption import Caption
from fedapps.report.units import byte_unit, human, human_bytes

INITIAL, PERSONALIZED = pictures.RED, pictures.BLUE
FURTHER = (pictures.GREEN, *pictures.OTHERS)  # colors of further figures, in their order
AXIS = f"mean {ACCURACY.label}"
BAND = "± std over clients, personalized"
COSTS = ["bytes_down", "bytes_up", "train_macs"]


def evaluated_rounds(rounds: pd.DataFrame) -> pd.DataFrame:
    """Return the evaluated rounds of rounds.csv, with the training costs summed up to each.

    The columns of sums are `bytes_down`, `bytes_up`, `train_macs`, and `bytes` (the first two).
    """
    costs = rounds[COSTS].cumsum()
    costs["bytes"] = costs["bytes_down"] + costs["bytes_up"]
    so_far = rounds.assign(**{str(name): costs[name] for name in costs})
    return so_far.dropna(subset=["accuracy_initial", "accuracy_personalized"])


def draw_accuracy(evaluated: pd.DataFrame, figures: Sequence[Figure], caption: Caption) -> Picture:
    """Draw the mean accuracies over rounds, with the spread of the personalized one over clients.

    A single evaluation is drawn as bars instead of lines.
    """
    if len(evaluated) == 1:
        return _draw_once(evaluated, figures, caption)
    picture, axes = pictures.new_axes("round", AXIS)
    _draw_lines(axes, evaluated, evaluated["round"], figures, _spread(evaluated))
    pictures.whole_ticks(axes.xaxis, 12)
    pictures.legend(axes, f"Mean over {caption.scored}")
    return picture


def draw_communication(evaluated: pd.DataFrame, figures: Sequence[Figure]) -> Picture:
    """Draw the mean accuracies over the bytes that training has sent up and down so far."""
    last = evaluated.iloc[-1]
    size, unit = byte_unit(last["bytes"])
    text = f"sent in training, up and down, by all clients ({unit})"
    picture, axes = pictures.new_axes(text, AXIS)
    _draw_lines(axes, evaluated, evaluated["bytes"] / size, figures)
    axes.set_xlim(left=0)
    down, up = human_bytes(last["bytes_down"]), human_bytes(last["bytes_up"])
    macs = human(last["train_macs"])
    pictures.legend(axes, f"In all {down} down, {up} up, {macs} multiply-accumulates of training")
    return picture


def _draw_once(evaluated: pd.DataFrame, figures: Sequence[Figure], caption: Caption) -> Picture:
    picture, axes = pictures.new_axes("", AXIS)
    curves = _curves(evaluated, figures)
    for place, (values, colour) in enumerate(curves.values()):
        axes.bar(place, values.iloc[0], 0.5, color=colour)
    mean, last = list(curves.values())[-1][0].iloc[0], len(curves) - 1
    spread = [[abs(mean - bound.iloc[0])] for bound in _spread(evaluated)]
    ink = pictures.INK
    axes.errorbar(last, mean, spread, color=ink, capsize=4, linewidth=1, label=BAND)
    shown = [f"{name}\n{ACCURACY.text(values.iloc[0])}" for name, (values, _) in curves.items()]
    axes.set_xticks(range(len(curves)), shown)
    axes.set_xlim(-1, len(curves))
    axes.set_ylim(*ACCURACY.limits(0, 101))
    pictures.legend(axes, f"Mean over {caption.scored}, after round {evaluated['round'].iloc[0]}")
    return picture


def _curves(evaluated: pd.DataFrame, figures: Sequence[Figure]) -> dict[str, tuple[pd.Series, str]]:
    """Return the curves by label: values in percent, and color; the personalized one is last."""
    initial, personalized = (
        ACCURACY.shown(evaluated[f"accuracy_{n}"]) for n in ("initial", "personalized")
    )
    same = bool((initial == personalized).all())
    curves = {} if same else {"initial": (initial, INITIAL)}
    # runs of earlier versions lack the columns of newer methods
    there = [f for f in figures if f.label and f.name in evaluated]
    shown = [f for f in there if evaluated[f.name].notna().any()]
    for figure, colour in zip(shown, FURTHER * len(shown), strict=False):
        curves[figure.label] = (ACCURACY.shown(evaluated[figure.name]), colour)
    return curves | {
        "initial = personalized" if same else "personalized": (personalized, PERSONALIZED)
    }


def _draw_lines(
    axes: Axes,
    evaluated: pd.DataFrame,
    x: pd.Series,
    figures: Sequence[Figure],
    band: pictures.Bounds | None = None,
) -> None:
    """Draw the curves over x; the band is that of the personalized one, which is last."""
    for name, (values, colour) in _curves(evaluated, figures).items():
        around = band if colour == PERSONALIZED else None
        pictures.draw_line(axes, values.set_axis(x), colour, name, band=around, band_name=BAND)
    axes.set_ylim(*ACCURACY.limits(*axes.get_ylim()))


def _spread(evaluated: pd.DataFrame) -> pictures.Bounds:
    """Return the lower and the upper bound of the personalized accuracy's spread, in percent."""
    mean, std = (evaluated[f"accuracy_personalized{end}"] for end in ("", "_std"))
    return ACCURACY.around(mean, std)
