"""Rows that differ in their personalization only are trained once and scored for each.

A run that is scored at its end alone has the same training whatever its clients do after it:
fine-tuning for one epoch or for twenty, of the head or of all. FedBABU's table of fine-tuning speed
is so made of one trained model, as in the paper.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from experiments.papers import Cell
from experiments.readings import table_of
from experiments.store import PER_CLIENT, PER_ROUND, Run, collect, number, numeric
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar

# Those of `fedapps.engine.again.ALLOWED` that numbers depend on.
PERSONAL = ("evaluate-on", "finetune-epochs", "finetune-lr", "finetune-part", "score-without-head")
NOTE = "trained once with rows that differ in their personalization"


def training(flat: Mapping[str, Scalar]) -> str:
    """Return a text that is the same for run-configs with the same training.

    A run that is also scored before its end has one of its own: its curves depend on all keys.
    """
    own, early = numeric(flat), _is_scored_early(flat)
    return json.dumps({key: own[key] for key in own if early or key not in PERSONAL})


def trained(flat: Mapping[str, Scalar], runs_dir: Path) -> Path | None:
    """Return a finished run directory below `runs_dir` with the training of a run-config.

    It has the versions that a new one would have, a checkpoint of its end, and a row for each round
    and none beside them: its costs are those of training.
    """
    from fedapps.report.summary import versions  # takes a moment, and only runs need it

    if _is_scored_early(flat) or not flat["checkpoint-every"]:
        return None
    wanted = training(flat)
    for path in sorted(runs_dir.glob("*/summary.json")):
        try:
            known = json.loads(path.read_text("utf-8"))
            same = training(config.defaults() | config.stored(path.parent)) == wanted
        except (OSError, ValueError, RunError):
            continue  # another's, of an earlier version, or half written
        rows = table_of(path.parent / "rounds.csv") if same else []
        if len(rows) == flat["num-rounds"] and known.get("versions") == versions():
            return path.parent
    return None


def score(base: Path, flat: Mapping[str, Scalar]) -> Path:
    """Score the clients of a run as a run-config personalizes them; return the table of clients."""
    from fedapps.engine import again  # loads torch

    before = config.defaults() | config.stored(base)
    return again.evaluate(base, {key: flat[key] for key in PERSONAL if flat[key] != before[key]})


def rescored(cell: Cell, seed: int, base: Path, clients: Path) -> Run:
    """Return the run of a cell: the training of `base`, scored as the table `clients` says."""
    run = collect(cell, seed, base)
    evaluation = clients.stem.partition("-")[2]
    lines = table_of(base / "evaluations.csv")
    line = next(line for line in lines if line["evaluation"] == evaluation)
    found = {name: float(text) for name, text in line.items() if text and name != "settings"}
    told = {name for name in found if "accuracy_" in name or name in run.figures}
    figures = {name: found[name] for name in told}
    figures |= {f"best {name}": figures[name] for name in told if f"best {name}" in run.figures}
    curves: dict[str, list[float | None]] = {n: [found[n]] for n in PER_ROUND if n in found}
    columns = {name: [number(row[name]) or 0 for row in table_of(clients)] for name in PER_CLIENT}
    return replace(run, figures=figures, rounds=run.rounds | curves, clients=columns, note=NOTE)


def _is_scored_early(flat: Mapping[str, Scalar]) -> bool:
    return bool(flat["evaluate-every"] or flat["evaluate-rounds"])
