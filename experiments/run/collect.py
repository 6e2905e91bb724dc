"""Read what a finished run has come to from its directory."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.papers import readings
from experiments.papers.table import Cell
from experiments.run.store import Config, Run, nothing_of
from fedapps.report import directory

COSTS = ("bytes_up", "bytes_down", "bytes_eval", "train_macs", "cost_paper", "failures")
PER_ROUND = (
    "accuracy_initial", "accuracy_personalized", "accuracy_initial_weighted",
    "accuracy_personalized_weighted", "accuracy_without_head", "train_loss",
)  # fmt: skip
PER_CLIENT = ("client", "num_train", "num_test", "accuracy_initial", "accuracy_personalized")


def collect(cell: Cell, seed: int, folder: Path, reads: Collection[str] = ()) -> Run:
    """Read a run directory; `reads` are readings of other tables to store as well."""
    own = {reading.reads for reading in cell.row.readings}
    found = measured(folder, cell.config(seed), own, reads)
    rounds = directory.lines(folder / "rounds.csv")
    seconds = sorted(float(line["seconds"]) for line in rounds)
    summary, median = directory.summary(folder), seconds[len(seconds) // 2]
    before_last = [line for line in rounds if line["round"] != rounds[-1]["round"]]
    paused = sum(max(float(line["seconds"]) - 2 * median, 0.0) for line in before_last)
    spent = {
        "seconds": round(summary["seconds"], 1),
        "seconds_per_round": round(median, 3),
        "seconds_at_work": round(summary["seconds"] - paused, 1),
    }
    return replace(nothing_of(cell, seed), **found, **spent, versions=summary["versions"])


def measured(
    folder: Path, flat: Config, own: Collection[str], reads: Collection[str] = ()
) -> dict[str, Any]:
    """Return what a run's seed and config determine, by the fields of `Run`.

    `own` are the readings that the run must allow, `reads` those that it may.
    """
    rounds = directory.lines(folder / "rounds.csv")
    clients = directory.lines(folder / "clients.csv")
    last = [line for line in clients if line["round"] == clients[-1]["round"]]
    summary = directory.summary(folder)
    shown = [line for line in rounds if line["accuracy_initial"]]
    curves = {name: [_number(line.get(name)) for line in shown] for name in PER_ROUND}
    # A round's first line is that of training; a second one is that of fine-tuning.
    losses = {line["round"]: line.get("train_loss") for line in reversed(rounds)}
    curves["train_loss"] = [_number(losses[line["round"]]) for line in shown]
    events = Counter(
        f"{line['kind']} {line['detail']}"
        for line in directory.lines(folder / "events.csv")
        if line["detail"].isidentifier()
    )
    return {
        "figures": readings.figures(folder, flat, own, reads),
        "costs": {name: summary[f"total_{name}"] for name in COSTS},
        "rounds": {"round": [_number(line["round"]) for line in shown]}
        | {name: values for name, values in curves.items() if any(v is not None for v in values)},
        "clients": client_columns(last),
        "events": dict(events),
    }


def client_columns(lines: Sequence[Mapping[str, str]]) -> dict[str, list[float]]:
    """Return the stored columns of the clients of one evaluation."""
    return {name: [_number(line[name]) or 0 for line in lines] for name in PER_CLIENT}


def _number(text: str | None) -> float | None:
    """Return the number in a cell of a table; None if it is empty."""
    value = float(text) if text else None
    return int(value) if value is not None and value.is_integer() and abs(value) > 1 else value
