"""The files of a comparison: two tables and a plot."""

import itertools
from pathlib import Path
from typing import Any

from fedapps.compare.comparison import Comparison
from fedapps.compare.groups import Group
from fedapps.core.files import write_whole, writing
from fedapps.core.words import spans
from fedapps.report.cells import csv_text
from fedapps.report.directory import lines

ALWAYS = ("strategy", "dataset", "evaluate-on")


def write(comparison: Comparison, folder: Path, kind: str) -> list[Path]:
    """Write runs.csv, groups.csv and curves.<kind>; return their paths. Raises `RunError`."""
    from fedapps.compare import curves  # imported here, because loading matplotlib takes a second
    from fedapps.drawing import pictures

    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    tables = {"runs.csv": runs_table(comparison), "groups.csv": groups_table(comparison)}
    for name, rows in tables.items():
        write_whole(folder / name, _csv(rows).encode())
    picture = folder / f"curves.{kind}"
    pictures.write(lambda: curves.draw(comparison), picture)
    return [*(folder / name for name in tables), picture]


def free(folder: Path, comparison: Comparison) -> Path:
    """Return the first of `folder`, `folder-2`, ... that has no comparison of other runs.

    A folder with a comparison of some of the same runs is used again. Raises `RunError` if its
    table cannot be read.
    """
    runs = [run for group in comparison.groups for run in (*group.runs, *group.left_out)]
    mine = {str(run.folder) for run in runs}
    others = (folder.with_name(f"{folder.name}-{number}") for number in itertools.count(2))
    return next(
        place
        for place in itertools.chain([folder], others)
        if not (table := place / "runs.csv").exists()
        or {line.get("run") for line in lines(table)} <= mine
    )


def runs_table(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row for each run that has scored a round; `counts` says if its group uses it."""
    rows = []
    for group in comparison.groups:
        looked_at = dict(zip((run.folder for run in group.runs), group.rounds, strict=True))
        for run in (*group.runs, *group.left_out):
            round_ = looked_at.get(run.folder, int(run.scored.index[-1]))
            told = {"group": group.name, "run": run.folder, **_settings(comparison, group)}
            state = {"seed": run.seed, "finished": run.finished, "counts": run.folder in looked_at}
            figures = run.scored.loc[round_]
            rows.append(told | state | {"round": round_} | dict(figures) | run.costs(round_))
    return rows


def groups_table(comparison: Comparison) -> list[dict[str, Any]]:
    """Return a row for each group: n, and the mean and std (ddof=1) of each figure and cost."""
    rows = []
    for group in comparison.groups:
        about = {"group": group.name, **_settings(comparison, group)}
        about |= {"n": len(group.runs), "seeds": spans(group.seeds)}
        about |= {"finished": group.finished, "round": spans(set(group.rounds))}
        for name, values in [*group.figures.items(), *group.costs.items()]:
            about |= {f"{name}_mean": values.mean(), f"{name}_std": values.std(ddof=1)}
        rows.append(about)
    return rows


def _settings(comparison: Comparison, group: Group) -> dict[str, Any]:
    return {key: group.settings.get(key) for key in dict.fromkeys([*ALWAYS, *comparison.keys])}


def _csv(rows: list[dict[str, Any]]) -> str:
    """Return rows as CSV; missing values and NaN are empty cells."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    known = [{k: v for k, v in row.items() if v == v} for row in rows]  # NaN is not equal to itself
    return csv_text([columns, *([row.get(name) for name in columns] for row in known)])
