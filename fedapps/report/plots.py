"""Draw the plots of a run from the tables in its directory, at its end or at any later time."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure as Picture

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.core.files import writing
from fedapps.core.schema import Scalar
from fedapps.drawing.pictures import save, styled, title
from fedapps.drawing.quantiles import MOST
from fedapps.report import directory, frames
from fedapps.report.about import task_of
from fedapps.report.accuracy_plots import (
    draw_communication,
    draw_scores,
    draw_time,
    evaluated_rounds,
)
from fedapps.report.caption import Caption
from fedapps.report.columns import VIRTUAL, columns_of
from fedapps.report.event_plots import draw_categories, read_categories
from fedapps.report.part_plots import draw_classes, draw_clients, draw_holdings


def draw_all(folder: Path, kind: str = "png") -> list[Path]:
    """Draw `plots/*` from the tables of a run as PNG, SVG or PDF; return the files.

    A plot without data is left out. Raises `RunError` if the folder is not a run directory, if a
    table is damaged, or if a file cannot be written.
    """
    flat = config.stored(folder)
    for name in ("rounds.csv", "clients.csv", "events.csv"):
        if not (folder / name).is_file():
            raise RunError(f"{folder} is not a run directory: it has no {name}")
    with writing(folder / "plots"):
        (folder / "plots").mkdir(exist_ok=True)
    files = []
    with styled():
        for name, picture in _pictures(folder, config.defaults() | flat).items():
            files.append(folder / f"plots/{name}.{kind}")
            save(picture, files[-1])
    return files


def read_holdings(folder: Path) -> np.ndarray | None:
    """Read the numbers of training samples, [clients, classes]; None if the run has not them.

    Row i is client i; but of more than `MOST` clients, only those that the table lists have rows.
    """
    path = folder / directory.SAMPLES
    if not path.is_file():
        return None
    held = frames.read(path)
    if held.empty:
        return None
    classes = 1 + held["class"].max()
    if (folder / "classes.csv").is_file():  # the last classes may have test samples only
        classes = max(classes, len(frames.read(folder / "classes.csv")))
    listed, rows = np.unique(held["client"], return_inverse=True)
    if len(listed) <= MOST:
        listed, rows = np.arange(1 + held["client"].max()), held["client"].to_numpy()
    counts = np.zeros((len(listed), classes), np.int64)
    counts[rows, held["class"]] = held["num_train"]
    return counts


def _pictures(folder: Path, flat: Mapping[str, Scalar]) -> dict[str, Picture]:
    """Draw the pictures for which there are data, by name."""
    columns = columns_of(task_of(folder))
    figures, lead = columns.figures, columns.lead
    rounds = frames.read(folder / "rounds.csv")
    evaluated = evaluated_rounds(rounds, lead)
    clients = frames.last(folder / "clients.csv", lead.personalized)  # of a personalization
    done = int(rounds["round"].max()) if len(rounds) else 0
    caption = Caption.of(flat, done, len(clients), lead)
    found: dict[str, Picture] = {}
    if len(evaluated):
        found[lead.name] = draw_scores(evaluated, figures, caption)
    if len(evaluated) > 1 and evaluated["bytes"].iloc[-1]:
        found["communication"] = draw_communication(evaluated, figures, caption)
    if len(evaluated) > 1 and VIRTUAL in evaluated:
        found["virtual-time"] = draw_time(evaluated, figures, caption)
    if len(clients):
        found[f"client-{lead.name}"] = draw_clients(clients, caption, directory.names(folder))
    if (folder / "classes.csv").is_file():
        metric = columns.of_class
        both = [metric.initial, metric.personalized]
        classes = frames.read(folder / "classes.csv").dropna(subset=both)
        if len(classes):
            named = directory.names(folder, directory.CLASS_NAMES)
            found["classes"] = draw_classes(classes, replace(caption, metric=metric), named)
    for plot in registry.plots(flat["strategy"]):
        events = read_categories(folder, plot)
        if len(events):
            found[plot.name] = draw_categories(events, plot)
    holdings = read_holdings(folder)
    if holdings is not None:
        called = (directory.names(folder, kind) for kind in directory.NAMED)
        found["clients"] = draw_holdings(holdings, *called)
    for picture in found.values():
        title(picture, caption.title)
    return found
