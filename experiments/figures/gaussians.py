"""Draw the Gaussians of each layer's features, as FedCMD's clients see them (FedCMD, Fig. 4).

    fedapps experiments gaussians RUN --clients 0 3 --plot gaussians.png

RUN is the directory of a finished run of FedCMD. A client's vote compares these Gaussians: of its
images (x), of the outputs of each layer, and of its labels (y). Each is given by the mean and the
standard deviation of values, which are scaled to [0, 1] first unless `fedcmd.scaling="none"`. The
model is that of the client's last evaluation, on its training samples.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from scipy import stats

from experiments.figures.output import add_plot, print_table, save_plot
from experiments.run.store import Store
from fedapps.core.errors import RunError
from fedapps.drawing.pictures import GREY, INK, WIDEST, new_panels

AROUND = np.linspace(-3.5, 3.5, 401)  # in standard deviations


@dataclass(frozen=True)
class Gaussian:
    """The normal distribution of the outputs of a layer, or of the images x or the labels y."""

    name: str
    mean: float
    deviation: float


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `fedapps experiments gaussians`."""
    parser.add_argument("run", type=Path, metavar="RUN", help="directory of a run of FedCMD")
    parser.add_argument(
        "--clients", type=int, nargs="+", default=[0], metavar="N", help="clients to draw [0]"
    )
    add_plot(parser)


def gaussians_of(run: Path, clients: Sequence[int]) -> dict[int, list[Gaussian]]:
    """Return the Gaussians of each client; raises `RunError` if the run is not one of FedCMD."""
    from clients.fedcmd import FedCMDClient
    from fedapps.engine.finished import FinishedRun

    opened, found = FinishedRun.open(run), {}
    for number in clients:
        client = opened.client(number)
        if not isinstance(client, FedCMDClient):
            name = opened.space.settings.strategy
            raise RunError(f"{run}: this is a run of {name}; only those of fedcmd have Gaussians")
        names = ("x", *client.layout.names, "y")
        pairs = (*client.gaussians().tolist(), client.label_gaussian().tolist())
        found[number] = [Gaussian(n, *pair) for n, pair in zip(names, pairs, strict=True)]
    return found


def show(store: Store, options: Namespace) -> None:
    """Print the means and deviations, and draw the Gaussians if `--plot` is given."""
    found = gaussians_of(options.run, options.clients)
    rows = (
        (str(client), one.name, f"{one.mean:.3f}", f"{one.deviation:.3f}")
        for client, gaussians in found.items()
        for one in gaussians
    )
    print_table(("client", "layer", "mean", "deviation"), rows, texts=4)
    save_plot(lambda: draw(found), options.plot)


def draw(found: Mapping[int, Sequence[Gaussian]]) -> Figure:
    """Draw a panel for each client, with a curve for each Gaussian."""
    figure, panels = new_panels(len(found), (min(WIDEST, 3 + 3.4 * len(found)), 3.8))
    for axes, (client, gaussians) in zip(panels, found.items(), strict=True):
        axes.set(title=f"client {client}", xlabel="value")
        shades = mpl.colormaps["viridis"](np.linspace(0, 0.9, len(gaussians) - 2))
        for one, color in zip(gaussians, [GREY, *shades, INK], strict=True):
            style = "--" if one.name in "xy" else "-"
            look: dict[str, Any] = {"color": color, "linestyle": style, "label": one.name}
            if one.deviation > 0:
                values = one.mean + one.deviation * AROUND
                axes.plot(values, stats.norm.pdf(values, one.mean, one.deviation), **look)
            else:  # all values are the same, as the labels can be
                axes.axvline(one.mean, **look)
    panels[0].set_ylabel("density")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    return figure
