"""Rows whose settings depend on runs: their trials, or the run of another row.

In FedCMD's Fig. 2, the least accurate fifth of the clients gets another personal layer. So row

    worst = { row = "fc2", share = 0.2, key = "fedcmd.other-clients" }

runs after row `fc2` in the same column and with the same seed, and lists these clients in that key.
The clients are chosen on test samples, so use this only to repeat a paper that does the same.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from experiments.papers.table import Cell, Job, Table
from experiments.run import tuning
from experiments.run.store import Run, Store


def settled(store: Store, table: Table, scale: str, only: str = "*") -> Iterator[Cell]:
    """Yield the cells of a table with the settings that runs have chosen so far.

    It omits cells with trials to run. `waits` tells for which seeds settings are still missing.
    """
    seeds = sorted({run.seed for run in store.runs() if run.scale == scale})
    for cell in table.cells(scale, only):
        if cell.row.search:
            if (chosen := tuning.chosen(store, cell)) is None:
                continue
            cell = replace(cell, extra=chosen)
        if cell.row.worst:
            found = ((seed, store.find(_other(cell), seed)) for seed in seeds)
            cell = replace(cell, of_seed={seed: worst(cell, run) for seed, run in found if run})
        yield cell


def waits(cell: Cell, seed: int) -> bool:
    """Tell whether a settled cell lacks settings for a seed."""
    return cell.row.worst is not None and seed not in cell.of_seed


def needed(store: Store, cell: Cell, seed: int) -> list[Job]:
    """Return the runs that are still missing for the settings of a cell."""
    jobs = [Job(trial, tuning.first_seed(trial)) for trial in tuning.untried(store, cell)]
    if cell.row.worst and not store.find(_other(cell), seed):
        jobs.append(Job(_other(cell), seed))
    return jobs


def worst(cell: Cell, run: Run) -> str:
    """Return the setting of a cell that names the least accurate clients of a run."""
    wanted = cell.row.worst
    assert wanted
    ranked = sorted(zip(run.clients["accuracy_personalized"], run.clients["client"], strict=True))
    count = max(1, round(wanted.share * len(ranked)))
    named = ",".join(str(int(client)) for client in sorted(client for _, client in ranked[:count]))
    return f'{wanted.key}="{named}"'


def _other(cell: Cell) -> Cell:
    """Return the cell whose run chooses the clients."""
    name = cell.row.worst.row if cell.row.worst else ""
    row = next(row for row in cell.table.rows if row.name == name)
    return replace(cell, row=row, extra="", of_seed={})


def split(
    store: Store, tables: Iterable[tuple[Table, list[int]]], scale: str, only: str
) -> tuple[list[Job], list[Job]]:
    """Return what can run now (with what other rows need), and the rows that wait for that."""
    first, ready, waiting = dict[str, Job](), list[Job](), list[Job]()
    for table, seeds in tables:
        known = {cell.name: cell for cell in settled(store, table, scale, only)}
        for seed in seeds:
            for cell in table.cells(scale, only):
                now = known.get(cell.name)
                if now and not waits(now, seed):
                    ready.append(Job(now, seed))
                else:
                    waiting.append(Job(cell, seed))
                    first |= {job.name: job for job in needed(store, cell, seed)}
    done = {job.name for job in ready}
    return [job for name, job in first.items() if name not in done] + ready, waiting
