"""Plots of the events in events.csv, as methods declare them."""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from fedapps.core.words import number
from fedapps.drawing.pictures import PALETTE, legend, new_pair, stack, whole_ticks
from fedapps.method.figures import EventPlot
from fedapps.report import frames

FEW = 12  # up to this many rounds, each has a tick
ROUNDS = 6  # the x axis is at least as long as for this many rounds


def read_categories(folder: Path, plot: EventPlot) -> pd.DataFrame:
    """Read the events of a plot: round, kind, category, and value (NaN if there is none)."""
    events = frames.read(folder / "events.csv")
    events = events[events["kind"].isin([plot.counted, plot.valued])]
    parts = events["detail"].astype(str).str.split(" ", n=1, expand=True).reindex(columns=[0, 1])
    value = pd.to_numeric(parts[1], errors="coerce")
    return events[["round", "kind"]].assign(category=parts[0], value=value)


def draw_categories(events: pd.DataFrame, plot: EventPlot) -> Figure:
    """Draw counts per category and round (bars), and each category's mean value (lines)."""
    figure, upper, lower = new_pair()
    valued = events[events["kind"] == plot.valued]
    counted = events[events["kind"] == plot.counted]
    counts = counted.groupby(["round", "category"]).size().unstack(fill_value=0)
    categories = list(dict.fromkeys([*valued["category"], *counted["category"]]))
    colours = dict(zip(categories, PALETTE * len(categories), strict=False))
    parts = ((name, counts[name], colours[name]) for name in categories if name in counts)
    heights = stack(upper, counts.index.to_numpy(), parts)
    signs, rounds = [], sorted(set(events["round"]))
    for category, colour in colours.items():
        means = valued[valued["category"] == category].groupby("round")["value"].mean()
        lower.plot(means.index, means, color=colour, marker="o", label=category)
        signs.append(Patch(color=colour, label=category))
    first, last = min(rounds), max(rounds)
    spare = max(0, ROUNDS - (last - first)) / 2  # a single bar does not fill the width
    lower.set_xlim(first - spare - 0.6, last + spare + 0.6)
    upper.set_ylabel(plot.count_label)
    upper.set_ylim(0, 1.05 * max(heights, default=1))
    whole_ticks(upper.yaxis, 6)
    lower.set_ylabel(plot.value_label)
    lower.set_xlabel("round")
    if not (valued["value"] < 0).any():
        lower.set_ylim(bottom=0)
    if len(rounds) <= FEW:
        lower.set_xticks(rounds)
    else:
        whole_ticks(lower.xaxis, 12)
    told = f"{len(counted)} {plot.count_label} in {number(counts.shape[0], 'round')}"
    legend(upper, told, signs, columns=6)
    return figure
