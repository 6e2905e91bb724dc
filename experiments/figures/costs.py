"""FedSeq's parameters and costs (its Tables 5 and 6, Fig. 8), for any model and data shape.

    fedapps experiments costs --plot costs.png
    fedapps experiments costs --model lenet5 --shape 3,32,32 --classes 100 --csv costs.csv

The cost of a round is the number of parameters that it trains, times the batches of a client. The
paper sums it over all 100 clients, which it has train in each of 300 rounds (Section 5.2).
"""

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from experiments.figures.output import add_plot, print_table, save_plot
from experiments.run.store import Store
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.data import Dataset
from fedapps.data.spec import Normalization, image_spec, label_spec
from fedapps.drawing.pictures import PALETTE, legend, new_axes
from fedapps.report.cells import csv_text
from fedapps.training.plan import Plan
from fedapps.training.run_data import RunData
from fedapps.training.workspace import Workspace

ROWS = (
    ("FedAvg", 'strategy="fedavg"'),
    ("FedBABU", 'strategy="fedbabu"'),
    ("FedSeq vanilla", 'strategy="fedseq" fedseq.schedule="vanilla" fedseq.groups=3'),
    ("FedSeq anti", 'strategy="fedseq" fedseq.schedule="anti" fedseq.groups=3'),
)
UNFREEZE_ROUNDS = ("0,100,200", "0,50,100")
HEADS = ("figure", "unfreeze rounds", "ours", "published", "difference")
# The published figures, all in FedSeq's Section 5.2, which refers to its Tables 5 and 6 for them.
ALL, BODY = "parameters of all layers", "parameters of the body"
PUBLISHED = {
    (ALL, ""): 582_026,
    (BODY, ""): 576_896,
    ("cost of FedAvg", ""): 873_039_000_000,
    ("cost of FedBABU", ""): 865_344_000_000,
    ("cost of FedSeq vanilla", "0,100,200"): 314_912_000_000,
    ("cost of FedSeq anti", "0,100,200"): 838_880_000_000,
}


@dataclass(frozen=True)
class Setting:
    """What the costs are computed for; the defaults are the setting of FedSeq's Section 5.2."""

    model: str = "cnn"
    shape: str = "1,28,28"
    classes: int = 10
    clients: int = 100
    batches: int = 50  # of a client in a round
    rounds: int = 300


PAPER = Setting()


@dataclass(frozen=True)
class Cost:
    """What a method costs a client in each round, and all clients in all rounds (`total`)."""

    method: str
    unfreeze_rounds: str
    by_round: tuple[int, ...]
    total: int

    def corners(self) -> list[tuple[float, float]]:
        """Return the points of the curve in which its value begins or ends, in millions."""
        by_round = self.by_round
        ends = (1, len(by_round))
        return [
            (round_, cost / 1e6)
            for round_, cost in enumerate(by_round, start=1)
            if round_ in ends or not by_round[round_ - 2] == cost == by_round[round_]
        ]


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `fedapps experiments costs`; defaults are the paper's setting."""
    parser.add_argument("--model", default=PAPER.model)
    parser.add_argument("--shape", default=PAPER.shape, help="channels, height, width [1,28,28]")
    parser.add_argument("--classes", type=int, default=PAPER.classes)
    parser.add_argument("--clients", type=int, default=PAPER.clients)
    parser.add_argument(
        "--batches", type=int, default=PAPER.batches, help="batches per client and round [50]"
    )
    parser.add_argument("--rounds", type=int, default=PAPER.rounds)
    parser.add_argument(
        "--unfreeze-rounds", action="append", metavar="T1,T2,..", help="[0,100,200 and 0,50,100]"
    )
    parser.add_argument("--csv", type=Path, help="also write the costs to this file")
    add_plot(parser)


def workspace(setting: Setting, run_config: str) -> Workspace:
    """Return a workspace for the given model and data shape, without data."""
    try:
        channels, height, width = (int(word) for word in setting.shape.split(","))
    except ValueError:
        raise RunError(f"--shape {setting.shape}: must be channels,height,width") from None
    settings = config.read(
        config.parse(
            [
                f'model="{setting.model}" num-clients={setting.clients} '
                f'num-rounds={setting.rounds} fraction-train=1.0 device="cpu"',
                run_config,
            ]
        )
    )
    labels = np.zeros(0, np.int64)
    inputs, targets = image_spec((channels, height, width)), label_spec(setting.classes)
    dataset = Dataset("none", inputs, targets, labels, 0, Normalization())
    return Workspace(settings, RunData(settings, dataset))


def costs(setting: Setting, lists: Sequence[str] = UNFREEZE_ROUNDS) -> list[Cost]:
    """Return the cost of each method; FedSeq has one for each list of unfreeze rounds."""
    found = []
    for method, run_config in ROWS:
        for rounds in lists if "fedseq" in run_config else [""]:
            space = workspace(setting, f'{run_config} fedseq.unfreeze-rounds="{rounds}"')
            strategy = registry.strategy_class(space.settings.strategy)(space)
            plans = (strategy.plan(round_, 0) for round_ in range(1, setting.rounds + 1))
            by_round = tuple(setting.batches * active(space, plan) for plan in plans)
            found.append(Cost(method, rounds, by_round, sum(by_round) * setting.clients))
    return found


def active(space: Workspace, plan: Plan) -> int:
    """Return the number of parameters that a plan trains."""
    return sum(space.layout.count(stage.layers) for stage in plan.stages)


def lines(setting: Setting, found: Sequence[Cost]) -> Iterator[list[str]]:
    """Yield the cells under `HEADS`: the parameters, then the costs of all clients and rounds."""
    layout = workspace(setting, 'strategy="fedavg"').layout
    ours = {(f"parameters of {name}", ""): layout.count([name]) for name in layout.names}
    ours |= {(BODY, ""): layout.count(layout.body), (ALL, ""): layout.count(layout.names)}
    ours |= {(f"cost of {cost.method}", cost.unfreeze_rounds): cost.total for cost in found}
    for key, value in ours.items():
        published = PUBLISHED.get(key) if setting == PAPER else None
        beside = ("", "") if published is None else (f"{published:,}", f"{value - published:+,}")
        yield [*key, f"{value:,}", *beside]


def show(store: Store, options: Namespace) -> None:
    """Print the table; write the CSV file and draw the figure if asked to."""
    setting = Setting(**{field.name: getattr(options, field.name) for field in fields(Setting)})
    found = costs(setting, options.unfreeze_rounds or UNFREEZE_ROUNDS)
    if options.csv:
        rows = [(cost.method, cost.unfreeze_rounds, cost.total) for cost in found]
        text = csv_text([("method", "unfreeze_rounds", "cost"), *rows])
        write_whole(options.csv, text.encode())
    print_table(HEADS, lines(setting, found), texts=2)
    save_plot(lambda: draw(found), options.plot)


def with_first_list(found: Sequence[Cost]) -> dict[str, Cost]:
    """Return the cost of each method; of FedSeq, that with the first list of unfreeze rounds."""
    first: dict[str, Cost] = {}
    for cost in found:
        first.setdefault(cost.method, cost)
    return first


def draw(found: Sequence[Cost]) -> Figure:
    """Draw the cost of each method in every round (Fig. 8)."""
    figure, axes = new_axes("round", "parameters x batches of a client, in millions")
    styles = zip(PALETTE, ("-", "-", "--", ":"), strict=False)  # some curves end on another one
    for (name, cost), (color, style) in zip(with_first_list(found).items(), styles, strict=True):
        rounds, millions = zip(*cost.corners(), strict=True)
        axes.plot(rounds, millions, style, color=color, linewidth=2, label=name)
    axes.set_ylim(bottom=-0.02 * axes.get_ylim()[1])  # a cost near 0 is not hidden by the axis
    legend(axes)
    return figure
