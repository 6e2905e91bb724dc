"""Read run directories, finished or not, and evaluations of them, for a comparison."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedapps.core import changes, config, registry
from fedapps.core.errors import RunError
from fedapps.core.options import parse_option
from fedapps.core.schema import Scalar
from fedapps.engine.fingerprints import model_code
from fedapps.report import directory, frames
from fedapps.report.about import Fingerprints, fingerprints_of, task_of
from fedapps.report.columns import SPREAD
from fedapps.report.rows import NEWCOMERS
from fedapps.report.summary import TOTALS, unseen, unseen_columns
from fedapps.tasks import AUTO, CLASSIFICATION, Metric, Task

SEED = "seed"
NO_FIGURES = {"round", "phase", "clients", "seconds", "evaluated", *TOTALS}  # other columns


@dataclass(frozen=True)
class Run:
    """A run: the settings that its results depend on, its rounds, and its summary if it has one.

    `folder` is its directory, or the table of an evaluation. `name` is its name in messages.
    """

    folder: Path
    name: str
    settings: Mapping[str, Scalar]
    rounds: pd.DataFrame
    summary: Mapping[str, Any]
    task: Task = CLASSIFICATION
    fingerprints: Fingerprints = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        """The metric by which the run is compared with others."""
        return self.task.lead

    @property
    def finished(self) -> bool:
        """Tell whether the run has finished."""
        return directory.is_final(self.summary)

    @property
    def seed(self) -> int:
        """The run's seed."""
        return int(self.settings[SEED])

    def digest(self, what: str) -> str:
        """Return that of its data, of its method's or its model's code; "" if it is not known."""
        known = self.fingerprints
        return model_code(known) if what == "model" else known.get(what, "")

    @cached_property  # because it is used very often
    def scored(self) -> pd.DataFrame:
        """The figures of the rounds in which clients were personalized and scored, by round."""
        figures = self._by_round.drop(columns=NO_FIGURES, errors="ignore")
        figures = figures.dropna(subset=[self.metric.personalized])
        for name in _newcomers(self.metric):  # scored after the last round
            if self.summary.get(name) is not None:
                figures.loc[figures.index[-1:], name] = self.summary[name]
        return figures

    def evaluated(self, round_: int) -> frozenset[int]:
        """Return the clients scored in a round; the first ones if a run has only their number."""
        table = self.folder if is_table(self.folder) else self.folder / "clients.csv"
        rows = frames.of_round(table, round_)
        count = int(self._by_round["evaluated"].fillna(0)[round_])
        return frozenset(map(int, rows["client"])) if len(rows) else frozenset(range(count))

    def curve(self, figure: str) -> pd.Series:
        """Return a figure by round, for the rounds that have it."""
        return self._by_round[figure].dropna()

    @cached_property
    def _by_round(self) -> pd.DataFrame:
        """One row per round; of a round with two phases, the last one.

        In that of newcomers, their training loss makes room for that of the clients that trained.
        """
        found = self.rounds.drop_duplicates("round", keep="last").set_index("round")
        come = self.rounds["phase"] == NEWCOMERS
        if come.any():
            trained = self.rounds[~come]
            losses = trained.drop_duplicates("round", keep="last").set_index("round")["train_loss"]
            found = found.assign(train_loss=losses.reindex(found.index))
        return found

    def costs(self, round_: int) -> dict[str, float]:
        """Return the costs of the rounds up to and including `round_`, with their seconds."""
        until = frames.counted(self.rounds[self.rounds["round"] <= round_])
        whole = self.finished and len(until) == len(self.rounds)
        seconds = self.summary["seconds"] if whole else until["seconds"].sum()
        return {name: float(until[name].sum()) for name in TOTALS} | {"seconds": float(seconds)}


def read(folder: Path, metric: str = AUTO) -> Run:
    """Read a run directory, for a comparison by a metric; `auto` is the one that leads in the run.

    Raises `RunError` if it is no run directory, or if its task or its table has no such metric.
    """
    flat = config.defaults() | config.stored(folder)
    if directory.whole(folder) != folder:
        raise RunError(
            f"{folder} is the best round of a run and has no curves: score it with"
            " `fedapps evaluate`, and compare the table that it writes there,"
            f" {directory.evaluation(folder, 1).name}"
        )
    try:
        rounds = pd.read_csv(folder / "rounds.csv")
        summary = directory.summary(folder)
        own = task_of(folder)
        task = own.leading(metric)
        lead = (task.lead.initial, task.lead.personalized)
        needed = ("round", "evaluated", "seconds", *lead, *TOTALS)
        if missing := [name for name in ("phase", *needed) if name not in rounds.columns]:
            raise RunError(
                f"{folder}: rounds.csv has no column {missing[0]}; it is of an earlier version, or"
                " of another task: leave it out, or name another metric"
            )
        rounds = rounds.dropna(subset=["seconds"])  # drop a line that is not yet complete
        rounds = rounds.astype({"phase": str} | dict.fromkeys(needed, float))
        if task.lead.name != own.lead.name:  # of which these columns are
            rounds = rounds.drop(columns=[*SPREAD], errors="ignore")
        if metric != AUTO:  # the summary has the newcomers' means of the metric that leads
            seen = rounds[task.lead.personalized].dropna()
            if len(seen) and (folder / directory.UNSEEN).exists():
                come = directory.lines(folder / directory.UNSEEN)
                summary = summary | unseen(come, float(seen.iloc[-1]), task.lead)
    except (OSError, ValueError, KeyError) as error:  # ValueError: bad CSV, JSON or number
        reason = getattr(error, "strerror", None) or error
        raise RunError(
            f"{folder} is not a run directory: rounds.csv, summary.json: {reason}"
        ) from error
    settings, rounds = _read_by_method(flat), rounds.astype({"round": int})
    found = fingerprints_of(folder)
    return Run(folder, folder.name, settings, rounds, summary, task, found)


def _read_by_method(flat: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Return the settings that a run's results depend on, without those that its method ignores."""
    counting = changes.counting(flat)
    unused = registry.unused(str(counting["strategy"]), flat)
    return {key: value for key, value in counting.items() if key not in unused}


def found(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield run directories in order: each given one, or those inside a folder that is none.

    Folders into which this user may not look are not inside. Raises `RunError` for a given one.
    """
    seen = set[Path]()
    for folder in folders:
        there = {path.parent for path in folder.glob("*/config.toml")}
        try:
            inside = sorted(filter(directory.is_run, there))
            itself = directory.is_run(folder) or not inside  # the latter raises when read
        except OSError as error:
            raise RunError(f"{folder}: cannot be read ({error.strerror})") from error
        for run in [folder] if itself else inside:
            if run.resolve() not in seen:
                seen.add(run.resolve())
                yield run


def is_table(path: Path) -> bool:
    """Tell whether a path is the table of an evaluation instead of a run directory."""
    return path.suffix == ".csv"


def read_evaluation(table: Path, metric: str = AUTO) -> Run:
    """Read an evaluation, for example `evaluation-1.csv`, of a run or of its best round.

    The result is a run that ends after the evaluated round: it has the costs up to this round, and
    only the scores of this evaluation. `metric` is that of `read`. Raises `RunError` if the file is
    not such a table.
    """
    scored, line = directory.lines(table), directory.line_about(table)
    try:
        round_, settings = int(line.pop("round")), parse_option(line.pop("settings"))
        figures = {name: float(value) for name, value in line.items() if value}
    except (KeyError, ValueError) as error:
        raise RunError(f"{table} is not a table of an evaluation: {error}") from error
    folder = table.parent
    run = read(folder.parent if folder.name == directory.BEST else folder, metric)
    if round_ not in run.rounds["round"].to_numpy():
        raise RunError(f"{table}: {run.folder} has no round {round_}")
    rounds = run.rounds[run.rounds["round"] <= round_].reset_index(drop=True)
    rounds[rounds.columns.difference([*NO_FIGURES])] = np.nan
    figures["evaluated"] = len(scored)
    for name in dict.fromkeys([*rounds.columns, *_newcomers(run.metric)]):  # in this order
        if name in figures:
            rounds.loc[len(rounds) - 1, name] = figures[name]
    counting = _read_by_method(config.defaults() | config.stored(folder) | settings)
    if folder != run.folder:  # to distinguish it from an evaluation of the last round
        counting["keep-best"] = True
    about = {"finished": True, "versions": run.summary.get("versions", {})}
    about |= {"cpu": run.summary["cpu"]} if "cpu" in run.summary else {}
    summary = about | {"seconds": float(rounds["seconds"].sum())}
    name = f"{run.name}/{table.relative_to(run.folder)}"
    return Run(table, name, counting, rounds, summary, run.task, run.fingerprints)


def _newcomers(metric: Metric) -> tuple[str, ...]:
    """Return the scores of newcomers that are compared."""
    return unseen_columns(metric)[2:]
