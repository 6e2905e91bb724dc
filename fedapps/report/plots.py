"""Draw the plots of a run from the tables in its directory, at its end or at any later time."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure as Picture

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.drawing.pictures import save, styled, title
from fedapps.method.figures import EventPlot
from fedapps.report import directory
from fedapps.report.about import task_of
from fedapps.report.accuracy_plots import draw_communication, draw_scores, evaluated_rounds
from fedapps.report.caption import Caption
from fedapps.report.columns import Columns, columns_of
from fedapps.report.event_plots import draw_categories, read_categories
from fedapps.report.part_plots import draw_classes, draw_clients, draw_holdings


def draw_all(
    folder: Path,
    columns: Columns,
    event_plots: Sequence[EventPlot],
    formats: Sequence[str] = ("png",),
) -> list[Path]:
    """Draw `plots/*` from the tables in `folder`, in each of `formats`; return the files.

    A plot without data is left out. Raises `RunError` if a file cannot be written.
    """
    (folder / "plots").mkdir(exist_ok=True)
    files = []
    with styled():
        for name, picture in _pictures(folder, columns, event_plots).items():
            for kind in formats:
                files.append(folder / f"plots/{name}.{kind}")
                save(picture, files[-1])
    return files


def redraw(folder: Path, formats: Sequence[str]) -> list[Path]:
    """Draw the plots of a run again; raises `RunError` if the folder is not a run directory."""
    flat = config.stored(folder)
    for name in ("rounds.csv", "clients.csv", "events.csv"):
        if not (folder / name).is_file():
            raise RunError(f"{folder} is not a run directory: it has no {name}")
    method = registry.strategy_class(str(flat.get("strategy", "")))
    return draw_all(folder, columns_of(task_of(folder)), method.plots, formats)


def read_holdings(folder: Path) -> np.ndarray | None:
    """Read the numbers of training samples, [clients, classes]; None if the run has not them."""
    path = folder / directory.SAMPLES
    if not path.is_file():
        return None
    held = pd.read_csv(path)
    if held.empty:
        return None
    classes = 1 + held["class"].max()
    if (folder / "classes.csv").is_file():  # the last classes may have test samples only
        classes = max(classes, len(pd.read_csv(folder / "classes.csv")))
    counts = np.zeros((1 + held["client"].max(), classes), np.int64)
    counts[held["client"], held["class"]] = held["num_train"]
    return counts


def _pictures(
    folder: Path, columns: Columns, event_plots: Sequence[EventPlot]
) -> dict[str, Picture]:
    """Draw the pictures for which there are data, by name."""
    figures, lead = columns.figures, columns.lead
    rounds, clients = (pd.read_csv(folder / name) for name in ("rounds.csv", "clients.csv"))
    evaluated = evaluated_rounds(rounds, lead)
    clients = clients.dropna(subset=[lead.personalized])  # rounds with personalization
    clients = clients[clients["round"] == clients["round"].max()]
    caption = Caption.read(folder, int(rounds["round"].max()) if len(rounds) else 0, len(clients))
    found: dict[str, Picture] = {}
    if len(evaluated):
        found[lead.name] = draw_scores(evaluated, figures, caption)
    if len(evaluated) > 1 and evaluated["bytes"].iloc[-1]:
        found["communication"] = draw_communication(evaluated, figures, caption)
    if len(clients):
        found[f"client-{lead.name}"] = draw_clients(clients, caption)
    if (folder / "classes.csv").is_file():
        classes = pd.read_csv(folder / "classes.csv").dropna()
        if len(classes):
            found["classes"] = draw_classes(classes, caption)
    for plot in event_plots:
        events = read_categories(folder, plot)
        if len(events):
            found[plot.name] = draw_categories(events, plot)
    holdings = read_holdings(folder)
    if holdings is not None:
        found["clients"] = draw_holdings(holdings)
    for picture in found.values():
        title(picture, caption.title)
    return found
