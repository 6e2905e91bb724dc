"""Read an evaluation of a saved run (`fedapps evaluate`) like a run that was scored once."""

from pathlib import Path

import numpy as np

from fedapps.compare.runs import NO_FIGURES, Run, read
from fedapps.core import changes, config
from fedapps.core.errors import RunError
from fedapps.core.options import parse_option
from fedapps.report import directory


def is_table(path: Path) -> bool:
    """Tell whether a path is the table of an evaluation instead of a run directory."""
    return path.suffix == ".csv"


def read_evaluation(table: Path) -> Run:
    """Read an evaluation, for example `evaluation-1.csv`, of a run or of its best round.

    The result is a run that ends after the evaluated round: it has the costs up to this round, and
    only the scores of this evaluation. Raises `RunError` if the file is not such a table.
    """
    scored, line = directory.lines(table), _line(table)
    try:
        round_, settings = int(line.pop("round")), parse_option(line.pop("settings"))
        figures = {name: float(value) for name, value in line.items() if value}
    except (KeyError, ValueError) as error:
        raise RunError(f"{table} is not a table of an evaluation: {error}") from error
    folder = table.parent
    run = read(folder.parent if folder.name == directory.BEST else folder)
    if round_ not in run.rounds["round"].to_numpy():
        raise RunError(f"{table}: {run.folder} has no round {round_}")
    rounds = run.rounds[run.rounds["round"] <= round_].reset_index(drop=True)
    rounds[rounds.columns.difference([*NO_FIGURES])] = np.nan
    figures["evaluated"] = len(scored)
    for name, value in figures.items():
        rounds.loc[len(rounds) - 1, name] = value
    counting = changes.counting(config.defaults() | config.stored(folder) | settings)
    if folder != run.folder:  # to distinguish it from an evaluation of the last round
        counting["keep-best"] = True
    about = {"finished": True, "versions": run.summary.get("versions", {})}
    summary = about | {"seconds": float(rounds["seconds"].sum())}
    name = f"{run.name}/{table.relative_to(run.folder)}"
    return Run(table, name, counting, rounds, summary, run.task)


def _line(table: Path) -> dict[str, str]:
    """Return the line of an evaluation in evaluations.csv; raises `RunError` if it has none."""
    name, number = "evaluation", directory.number_of(table)
    for line in directory.lines(table.with_name(directory.EVALUATIONS)):
        if line.get(name) == number:
            return {key: value for key, value in line.items() if key != name}
    raise RunError(f"{table}: {directory.EVALUATIONS} next to it has no evaluation {number}")
