"""FedFC's Section 4.4 and Fig. 9: the virtual seconds of a round on four unequal devices.

    fedapps experiments times
    fedapps experiments times --model vgg-tiny --epochs 10

VGG16 on CIFAR-10, with the class-imbalance case of the paper and the devices of `devices =
"desktops"`. Nothing is trained: a round's bytes and multiply-accumulates follow from the layers and
the numbers of samples. They are those that a run counts, so its `virtual_seconds` are the same.
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from experiments.figures.costs import Setting, workspace
from experiments.figures.output import print_table
from experiments.run.store import Store
from fedapps.engine.profiles import Profiles, read
from fedapps.training.workspace import Workspace

SAMPLES = (12_500, 10_000, 12_500, 15_000)  # of classes 0-2, 2-4, 4-6, 7-9
WHOLE = 0  # the cut of FL (FedAvg): the clients have all layers
CUTS = {
    "FL (`fedavg`)": (WHOLE,) * 4,
    "FedFC, cut 2": (2,) * 4,
    "FedFC, cut 4": (4,) * 4,
    "FedFC, cut 7": (7,) * 4,
    "FedFC, cut 10": (10,) * 4,
    "FedFC, cuts 2, 4, 7, 10": (2, 4, 7, 10),
}
HEADS = ("system", *(f"client {k}" for k in range(4)), "server", "round", "FL / it")


@dataclass(frozen=True)
class Times:
    """The virtual seconds of a round: of each client, and of the server's own training."""

    clients: tuple[float, ...]
    server: float

    @property
    def round(self) -> float:
        """The seconds of the whole round: the server's training comes after the slowest client."""
        return max(self.clients) + self.server


def times(
    space: Workspace, devices: Profiles, cuts: Sequence[int], samples: Sequence[int], epochs: int
) -> Times:
    """Return the times of FedFC with a cut for each client, or of FedAvg if the cuts are `WHOLE`.

    `samples` are the clients' numbers of training samples. A client downloads and uploads its
    layers; with FedFC, it uploads features and labels, and downloads gradients, for each sample.
    """
    profile, layout, names = space.trainer.profile, space.layout, space.layout.names
    whole = profile.step_macs(names, names[0])
    of_layer = {name: profile.layer_macs(name) for name in names}
    clients, server = [], 0
    for client, (cut, count) in enumerate(zip(cuts, samples, strict=True)):
        split, trained = cut != WHOLE, epochs * count
        own = names[:cut] if split else names
        rest = sum(of_layer[name] for name in names[len(own) :])
        weights = 4 * sum(prod(layout.shapes[key]) for key in layout.keys_of(own))
        features = 4 * prod(profile.shapes[names[cut]]) if split else 0
        down = weights + trained * features
        up = weights + trained * (features + 8 * split)
        clients.append(devices.seconds(client, trained * (whole - rest), down, up))
        server += trained * rest
    return Times(tuple(clients), server / devices.server)


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `fedapps experiments times`; defaults are the paper's setting."""
    parser.add_argument("--model", default="vgg16")
    parser.add_argument("--epochs", type=int, default=5, help="local epochs of a round [5]")


def show(store: Store, options: Namespace) -> None:
    """Print the table."""
    print_table(HEADS, lines(options.model, options.epochs))


def lines(model: str = "vgg16", epochs: int = 5) -> Iterator[list[str]]:
    """Yield the cells under `HEADS`."""
    setting = Setting(model=model, shape="3,32,32", clients=len(SAMPLES))
    space, devices = workspace(setting, 'strategy="fedavg"'), read("desktops", len(SAMPLES), 0)
    found = {name: times(space, devices, cuts, SAMPLES, epochs) for name, cuts in CUTS.items()}
    of_fl = next(iter(found.values())).round
    for name, took in found.items():
        seconds = [f"{value:.1f}" for value in (*took.clients, took.server, took.round)]
        yield [name, *seconds, f"{of_fl / took.round:.2f}"]
