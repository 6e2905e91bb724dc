"""What a comparison reads of a run directory, finished or not."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from fedapps.core import changes, config
from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar

TOTALS = ("failures", "bytes_down", "bytes_up", "bytes_eval", "train_macs", "cost_paper")
SEED = "seed"


@dataclass(frozen=True)
class Run:
    """A run: what its numbers depend on, its rounds, and its summary (empty: not finished)."""

    folder: Path
    settings: Mapping[str, Scalar]
    rounds: pd.DataFrame
    summary: Mapping[str, Any]

    @property
    def finished(self) -> bool:
        """Tell whether the run came to its end."""
        return bool(self.summary)

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.settings[SEED])

    @property
    def scored(self) -> pd.DataFrame:
        """The accuracies of the evaluated rounds, by round."""
        names = [name for name in self.rounds if str(name).startswith("accuracy_")]
        return self.rounds.set_index("round")[names].dropna(subset=["accuracy_personalized"])

    def costs(self, round_: int) -> dict[str, float]:
        """Return what the rounds up to and with `round_` have cost, seconds too."""
        until = self.rounds[self.rounds["round"] <= round_]
        whole = self.finished and len(until) == len(self.rounds)
        seconds = self.summary["seconds"] if whole else until["seconds"].sum()
        return {name: float(until[name].sum()) for name in TOTALS} | {"seconds": float(seconds)}


def read(folder: Path) -> Run:
    """Read a run directory; raises `RunError` if it is none."""
    flat = config.defaults() | config.stored(folder)
    try:
        rounds = pd.read_csv(folder / "rounds.csv")
        path = folder / "summary.json"
        summary = json.loads(path.read_text("utf-8")) if path.exists() else {}
        needed = ["round", "seconds", "accuracy_initial", "accuracy_personalized", *TOTALS]
        rounds = rounds.dropna(subset=["seconds"])  # the line that a run is about to write
        rounds[needed] = rounds[needed].astype(float)
    except (OSError, ValueError, KeyError) as error:  # ValueError: no CSV, no JSON, no number
        raise RunError(f"{folder} is no run directory: {error}") from error
    return Run(folder, changes.counting(flat), rounds.astype({"round": int}), summary)


def found(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield run directories, in their order: those given, and those in folders that are none."""
    seen = set[Path]()
    for folder in folders:
        inside = sorted(path.parent for path in folder.glob("*/config.toml"))
        is_run = (folder / "config.toml").exists() or not inside  # or it is named in the error
        for run in [folder] if is_run else inside:
            if run.resolve() not in seen:
                seen.add(run.resolve())
                yield run
