"""Train once for rows that differ only in their personalization, and score the model for each.

If a run is scored only at its end, its training does not depend on what clients do afterwards:
whether they fine-tune for one epoch or for twenty, the head or all layers. So FedBABU's table of
fine-tuning speed needs one trained model for each method and column, as in the paper. The model
can come from an earlier call, as long as its run directory and its result still exist.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from experiments.papers.readings import OF_CLIENTS
from experiments.papers.table import Cell
from experiments.run.collect import PER_ROUND, client_columns, collect
from experiments.run.store import Run, numeric, same
from fedapps.core import config
from fedapps.core.changes import PERSONAL
from fedapps.core.schema import Scalar
from fedapps.report import directory
from fedapps.report.columns import columns_of
from fedapps.report.summary import versions
from fedapps.tasks import CLASSIFICATION

NOT_TRAINED = "not trained: "  # begins the note of a run without a training of its own
NOTE = f"{NOT_TRAINED}the model of a run with the same training was scored"


def is_trained(run: Run) -> bool:
    """Tell whether a run was trained, instead of scored with the model of another one."""
    return not run.note.startswith(NOT_TRAINED)


def training(flat: Mapping[str, Scalar]) -> str:
    """Return a text that is the same for run-configs that can share one training.

    A run needs a training of its own if it is scored before its end, is scored on only some
    clients, scores newcomers after its end, or keeps no checkpoint of its end.
    """
    own = numeric(flat)
    early = flat["evaluate-every"] or flat["evaluate-rounds"] or flat["evaluate-clients"]
    alone = early or flat["unseen-clients"] or not flat["checkpoint-every"]
    return json.dumps({key: own[key] for key in own if alone or key not in PERSONAL})


def model(wanted: str, runs: Iterable[Run], runs_dir: Path) -> Path | None:
    """Return the newest run directory below a folder with a `training` that can be used again.

    Only directories of `runs` count, so that a run whose result is deleted is trained anew, and
    only those made with the current versions of the libraries.
    """
    finished = [(path.stat().st_mtime_ns, path) for path in runs_dir.glob("*/summary.json")]
    known, defaults = [run.config for run in runs if not run.note], config.defaults()
    for changed, path in sorted(finished, reverse=True):
        if _training(path, changed) == wanted:
            flat = numeric(defaults | config.stored(path.parent))
            if any(same(older, flat, config.resolved(defaults)) for older in known):
                return path.parent
    return None


@cache
def _training(summary: Path, changed: int) -> str:
    """Return the `training` of a finished run; empty if unfinished or of other versions."""
    found = json.loads(summary.read_text("utf-8"))
    if not directory.is_final(found) or found.get("versions") != versions():
        return ""
    return training(config.defaults() | config.stored(summary.parent))


def can_be_scored_again(base: Path, flat: Mapping[str, Scalar]) -> bool:
    """Tell whether a finished run has rows for its rounds only, so its costs are of training."""
    return directory.row_count(base / "rounds.csv") == flat["num-rounds"]


def score(base: Path, flat: Mapping[str, Scalar]) -> Path:
    """Score a run's clients with the personalization of a run-config; return their table."""
    from fedapps.engine import again  # loads torch

    before = config.defaults() | config.stored(base)
    return again.evaluate(base, {key: flat[key] for key in PERSONAL if flat[key] != before[key]})


def rescored(cell: Cell, seed: int, base: Path, clients: Path) -> Run:
    """Return the run of a cell: the training of `base` with the scores of table `clients`."""
    run, line = collect(cell, seed, base), directory.line_about(clients)
    found = {name: float(text) for name, text in line.items() if text and name != "settings"}
    told = {reading.reads for reading in cell.row.readings} | set(OF_CLIENTS)
    figures = {n: v for n, v in run.figures.items() if n.removeprefix("best ") not in line}
    figures |= {n: v for n, v in found.items() if "accuracy_" in n or n in told}
    best = {n for n in columns_of(CLASSIFICATION).of_lead if n in found}
    figures |= {f"best {name}": found[name] for name in best}
    curves = {n: v for n, v in run.rounds.items() if n not in line or n == "round"}
    curves |= {name: [found[name]] for name in PER_ROUND if name in found}
    scored = client_columns(directory.lines(clients))
    return replace(run, figures=figures, rounds=curves, clients=scored, note=NOTE)
