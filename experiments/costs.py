"""FedSeq's tables of parameters and of its paper's cost, for any model and data shape.

    python -m experiments costs
    python -m experiments costs --model lenet5 --shape 3,32,32 --classes 100 --csv costs.csv

Cost = active parameters x batches x clients, summed over the rounds (FedSeq, Section 5.2). The
paper's own table counts all 100 clients, with 50 batches each, in each of 300 rounds.
"""

import csv
from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich import box
from rich.table import Table

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.data import Dataset
from fedapps.report.console import console
from fedapps.training.plan import Plan
from fedapps.training.workspace import Workspace

ROWS = (
    ("FedAvg", 'strategy="fedavg"'),
    ("FedBABU", 'strategy="fedbabu"'),
    ("FedSeq vanilla", 'strategy="fedseq" fedseq.schedule="vanilla" fedseq.groups=3'),
    ("FedSeq anti", 'strategy="fedseq" fedseq.schedule="anti" fedseq.groups=3'),
)


@dataclass(frozen=True)
class Cost:
    """A line of the cost table; `cost` is in parameters times batches."""

    method: str
    unfreeze_rounds: str
    cost: int


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options of `python -m experiments costs`; defaults are the paper's setting."""
    parser.add_argument("--model", default="cnn")
    parser.add_argument("--shape", default="1,28,28", help="channels, height, width [1,28,28]")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--batches", type=int, default=50, help="batches per client and round [50]")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument(
        "--unfreeze-rounds", action="append", metavar="T1,T2,..", help="[0,100,200 and 0,50,100]"
    )
    parser.add_argument("--csv", type=Path, help="also write the cost table to this file")


def workspace(options: Namespace, run_config: str) -> Workspace:
    """Return a workspace for the given model and data shape, without data."""
    try:
        channels, height, width = (int(word) for word in options.shape.split(","))
    except ValueError:
        raise RunError(f"--shape {options.shape}: must be channels,height,width") from None
    settings = config.read(
        config.parse(
            [
                f'model="{options.model}" num-clients={options.clients} '
                f'num-rounds={options.rounds} fraction-train=1.0 device="cpu"',
                run_config,
            ]
        )
    )
    labels = np.zeros(0, np.int64)
    shape, one = (channels, height, width), (0.5,) * channels
    none = Dataset("none", options.classes, shape, labels, 0, one, one, images=None)
    return Workspace(settings, none)


def costs(options: Namespace) -> list[Cost]:
    """Return the cost of each method; FedSeq has one for each list of unfreeze rounds."""
    found = []
    for method, run_config in ROWS:
        lists = options.unfreeze_rounds or ["0,100,200", "0,50,100"]
        for rounds in lists if "fedseq" in run_config else [""]:
            change = f'{run_config} fedseq.unfreeze-rounds="{rounds}"'
            space = workspace(options, change)
            strategy = registry.strategy_class(space.settings.strategy)(space)
            per_batch = sum(
                active(space, strategy.plan(round_, 0)) for round_ in range(1, options.rounds + 1)
            )
            found.append(Cost(method, rounds, per_batch * options.batches * options.clients))
    return found


def active(space: Workspace, plan: Plan) -> int:
    """Return the number of parameters that a plan trains."""
    return sum(space.layout.count(stage.layers) for stage in plan.stages)


def show(options: Namespace) -> None:
    """Print both tables, and write the CSV file if one is given."""
    layout = workspace(options, 'strategy="fedavg"').layout
    parameters = Table(
        "layer", "parameters", box=box.SIMPLE, title=f"{options.model}, {options.shape}"
    )
    for name in layout.names:
        parameters.add_row(name, f"{layout.count([name]):,}")
    parameters.add_row("total", f"{layout.count(layout.names):,}")
    table = Table("method", "unfreeze rounds", "cost / 1e9", box=box.SIMPLE)
    found = costs(options)
    for cost in found:
        table.add_row(cost.method, cost.unfreeze_rounds, f"{cost.cost / 1e9:.3f}")
    screen = console()
    screen.print(parameters)
    screen.print(table)
    if options.csv:
        with options.csv.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(("method", "unfreeze_rounds", "cost"))
            writer.writerows((cost.method, cost.unfreeze_rounds, cost.cost) for cost in found)
