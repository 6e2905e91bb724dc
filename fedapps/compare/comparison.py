"""Compare groups of runs: their differences, and notes on what limits the comparison."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedapps.compare.groups import Group, differing, grouped, shown
from fedapps.compare.pairs import Pair, data_of, pairs
from fedapps.compare.runs import Run, found, is_table, read, read_evaluation
from fedapps.core.errors import RunError
from fedapps.core.words import number, shortened, spans
from fedapps.tasks import AUTO, Metric

MOST_DRAWN = 12  # groups; the lines of more look alike, and their legend is larger than the plot
MOST_LETTERS = 40  # of the clients that a group has scored and others have not
PACKAGES = ("torch", "numpy", "fedapps")


@dataclass(frozen=True)
class Comparison:
    """Groups, the keys in which they differ, their paired differences, and notes for the reader.

    All runs have the same task, and are compared by one `metric` of it.
    """

    groups: list[Group]
    keys: list[str]
    pairs: list[Pair]
    notes: list[str]
    metric: Metric

    @cached_property
    def scores(self) -> list[str]:
        """The columns with means of the metric that some run has, except those by samples."""
        names = dict.fromkeys(
            str(name)
            for group in self.groups
            for name, column in group.figures.items()
            if column.notna().any()
        )
        return self.metric.means(names)

    @cached_property
    def drawn(self) -> list[Group]:
        """The groups in the plot, in the order of `groups`: all, or the best of many."""
        if len(self.groups) <= MOST_DRAWN:
            return self.groups
        name = self.metric.personalized
        means = pd.Series([group.figures[name].mean() for group in self.groups])
        best = means.sort_values(ascending=not self.metric.more_is_better, kind="stable")
        return [self.groups[place] for place in sorted(best.index[:MOST_DRAWN])]

    @property
    def several(self) -> bool:
        """Whether a group has several seeds, over which there is a standard deviation."""
        return any(len(group.runs) > 1 for group in self.groups)


def compare(folders: Iterable[Path], metric: str = AUTO) -> Comparison:
    """Compare run directories, folders with run directories, or tables of evaluations.

    They are compared by a metric of their task; `auto` is the one that leads in them. Raises
    `RunError` if a folder has no run, if there are fewer than two runs to compare, or if different
    metrics lead in them.
    """
    runs = [
        read_evaluation(path, metric) if is_table(path) else read(path, metric)
        for path in found(folders)
    ]
    if len(runs) < 2:
        raise RunError("nothing to compare: give at least two run directories")
    return compared(runs)


def compared(runs: Sequence[Run]) -> Comparison:
    """Compare runs.

    Raises `RunError` if none has scored a round, or if they have different tasks, or different
    metrics that lead.
    """
    groups, metric = grouped(runs), runs[0].metric
    if not groups:
        raise RunError("nothing to compare: no run has scored a round yet")
    tasks = {run.task.name: run for run in runs}
    if len(tasks) > 1:
        told = ", ".join(f"{run.name} is a {name}" for name, run in tasks.items())
        raise RunError(f"nothing to compare: {told}; compare runs of the same task")
    metrics = {run.metric.name: run for run in runs}
    if len(metrics) > 1:
        told = ", ".join(f"{name} leads in {run.name}" for name, run in metrics.items())
        raise RunError(f"by which metric? {told}; choose one: --metric {runs[0].metric.name}")
    notes = [*_notes(runs, groups)]
    return Comparison(groups, differing(groups), pairs(groups, metric), notes, metric)


def _notes(runs: Sequence[Run], groups: Sequence[Group]) -> Iterator[str]:
    if len(groups) > MOST_DRAWN:
        yield f"the plot has the best {MOST_DRAWN} of {len(groups)} groups; groups.csv has all"
    yield from _different_samples(groups)
    seeds = {group.name: spans(group.seeds) for group in groups}
    if len({*seeds.values()}) > 1:
        yield f"different seeds: {_listed(seeds)}; other seeds can mean other samples"
    yield from _different_clients(groups)
    rounds = {g.name: g.settings["num-rounds"] if g.finished else g.rounds[0] for g in groups}
    lengths = {name: number(int(count), "round") for name, count in rounds.items()}
    if len(set(lengths.values())) > 1:
        yield f"not equally long: {_listed(lengths)}"
    for group in groups:
        if not group.finished:
            wanted = group.settings["num-rounds"]
            yield f"* {group.name} has not finished: figures of round {group.rounds[0]} of {wanted}"
        for run in group.left_out:
            yield f"{group.name} is without {run.name}: {_why_left_out(run, group)}"
    for run in runs:
        if not len(run.scored):
            why = "none of its rounds was scored" if run.finished else "it has scored no round yet"
            yield f"{run.name} is left out: {why}"
    used = [run for group in groups for run in group.runs]
    for what, key in (("data", "dataset"), ("code", "strategy")):
        yield from _changed(used, what, key)
    yield from _changed(runs, "model", "model")  # of `used`, each code has a name of its own
    yield from _versions(used)


def _why_left_out(run: Run, group: Group) -> str:
    if group.finished and not run.finished:
        return "not finished"
    return "another run has that seed" if run.seed in group.seeds else "no scored round in common"


def _different_samples(groups: Sequence[Group]) -> Iterator[str]:
    """Say which settings make groups score different samples, and what each group has there."""
    data = {group.name: data_of(group) for group in groups}
    keys = dict.fromkeys(key for values in data.values() for key in values)
    by_name = {group.name: group for group in groups}
    for key in keys:
        known = {name: values[key] for name, values in data.items() if key in values}
        if len({*known.values()}) > 1:
            values = {name: shown(by_name[name], key) for name in known}
            if len({*values.values()}) == 1:  # files of one name
                values = {name: str(value) for name, value in known.items()}
            yield f"not the same samples: {key} is {_listed(values)}"


def _different_clients(groups: Sequence[Group]) -> Iterator[str]:
    """Say for which seeds groups with the same data are means over different clients."""
    by_data: dict[tuple[tuple[str, object], ...], list[Group]] = {}
    for group in groups:
        by_data.setdefault(tuple(data_of(group).items()), []).append(group)
    for alike in by_data.values():
        for seed in sorted({seed for group in alike for seed in group.evaluated}):
            known = {g.name: g.evaluated[seed] for g in alike if seed in g.evaluated}
            if len({*known.values()}) > 1:
                yield f"not the same clients: seed {seed} is scored on {_listed(_told(known))}"


def _told(scored: dict[str, frozenset[int]]) -> dict[str, str]:
    """Say how many clients each group has scored; of equally many, those that not all have."""
    counts = {name: str(len(clients)) for name, clients in scored.items()}
    if len({*counts.values()}) == len({*scored.values()}):
        return counts
    common = frozenset.intersection(*scored.values())
    own = {name: shortened(spans(those - common), MOST_LETTERS) for name, those in scored.items()}
    return {name: counts[name] + f" with {only}" * bool(only) for name, only in own.items()}


def _listed(values: dict[str, str]) -> str:
    """Write each value with the names that have it, for example `20 (A, B), 10 (C)`."""
    names = {value: [name for name in values if values[name] == value] for value in values.values()}
    return ", ".join(f"{value} ({', '.join(those)})" for value, those in names.items())


def _changed(runs: Sequence[Run], what: str, key: str) -> Iterator[str]:
    """Say which data, methods, or models of the same name were not the same in all runs."""
    known: dict[str, dict[str, list[str]]] = {}
    for run in runs:
        if found := run.digest(what):
            known.setdefault(str(run.settings[key]), {}).setdefault(found, []).append(run.name)
    for name, of in known.items():
        if len(of) > 1:
            told = " than in ".join(", ".join(names) for names in of.values())
            yield f"not the same {what}: {name} was other in {told}"


def _versions(runs: Sequence[Run]) -> Iterator[str]:
    for package in PACKAGES:
        known = {run.summary["versions"].get(package) for run in runs if "versions" in run.summary}
        if len(known) > 1:
            yield f"made with different versions of {package}: {', '.join(sorted(map(str, known)))}"
    types = {run.summary["cpu"] for run in runs if "cpu" in run.summary}
    if len(types) > 1:
        yield f"made on different types of processors: {'; '.join(sorted(types))}"
