"""Group runs that differ only in their seed, and find the settings that distinguish groups."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count, product
from string import ascii_uppercase

import pandas as pd

from fedapps.compare.runs import SEED, Run
from fedapps.core import changes
from fedapps.core.schema import Scalar, literal

MANY = 4  # with more differing keys, defaults are left out of labels


@dataclass(frozen=True)
class Group:
    """Runs with the same settings: one per seed in `runs` (sorted by seed), others in `left_out`.

    `rounds` says for each of `runs` which round is compared. It is the last round of finished runs.
    For unfinished runs it is the last round that all of them have scored; if there is none, only
    the run that got furthest counts.
    """

    name: str  # a letter
    settings: Mapping[str, Scalar]  # without the seed
    runs: tuple[Run, ...]
    rounds: tuple[int, ...]
    left_out: tuple[Run, ...]

    @property
    def finished(self) -> bool:
        """Tell whether the runs that count have finished."""
        return all(run.finished for run in self.runs)

    @property
    def seeds(self) -> list[int]:
        """The seeds of the runs that count, in the order of `runs`."""
        return [run.seed for run in self.runs]

    @cached_property
    def figures(self) -> pd.DataFrame:
        """The figures of each run, by seed."""
        return pd.DataFrame({run.seed: run.scored.loc[at] for run, at in self._looked_at()}).T

    @cached_property
    def evaluated(self) -> dict[int, frozenset[int]]:
        """The clients that each run's figures are means over, by seed."""
        return {run.seed: run.evaluated(at) for run, at in self._looked_at()}

    @cached_property
    def costs(self) -> pd.DataFrame:
        """The costs of each run up to the compared round, by seed."""
        return pd.DataFrame({run.seed: run.costs(at) for run, at in self._looked_at()}).T

    def curve(self, figure: str) -> pd.DataFrame:
        """Return `mean` and `std` (ddof=1) over seeds, for the rounds that all runs have scored."""
        values = pd.concat([run.curve(figure) for run in self.runs], axis=1, join="inner")
        return pd.DataFrame({"mean": values.mean(axis=1), "std": values.std(axis=1, ddof=1)})

    def _looked_at(self) -> Iterator[tuple[Run, int]]:
        return zip(self.runs, self.rounds, strict=True)


def grouped(runs: Sequence[Run]) -> list[Group]:
    """Group runs that differ only in the seed; groups are in the order of their first runs.

    If a group has finished runs, only these count. Of several runs with the same seed, only the
    first counts. Runs that have not scored a round yet are in no group. The same data count as one
    data set, whatever their paths, and an edited file of a model as another model.
    """
    by_settings: dict[frozenset[tuple[str, Scalar]], list[Run]] = {}
    for run in _named_by_content(runs):
        if len(run.scored):
            rest = {key: value for key, value in run.settings.items() if key != SEED}
            by_settings.setdefault(frozenset(rest.items()), []).append(run)
    return [
        _group(name, members) for name, members in zip(_names(), by_settings.values(), strict=False)
    ]


def _named_by_content(runs: Sequence[Run]) -> Iterator[Run]:
    """Yield the runs: the same samples have their first name, other code of a model has a number.

    `m.py (2)` is the second code of the file `m.py`; runs that do not tell theirs have the first.
    """
    names: dict[str, Scalar] = {}
    models: dict[Scalar, list[str]] = {}
    for run in runs:
        name, digest = run.settings["dataset"], run.digest("data")
        named = {"dataset": names.setdefault(digest, name) if digest else name}
        model, code = run.settings["model"], run.digest("model")
        codes = models.setdefault(model, [])
        if code and code not in codes:
            codes.append(code)
        if code and code != codes[0]:
            named["model"] = f"{model} ({codes.index(code) + 1})"
        settings = {**run.settings, **named}
        yield run if settings == run.settings else replace(run, settings=settings)


def differing(groups: Sequence[Group]) -> list[str]:
    """Return the keys in which groups differ.

    A key is left out if every group has its method's default, except for the keys that names of
    runs always show.
    """
    methods = {str(group.settings["strategy"]) for group in groups}
    usual = {method: changes.usual(method) for method in methods}
    keys = dict.fromkeys(key for group in groups for key in group.settings)
    found = []
    for key in keys:
        values = {group.settings.get(key) for group in groups}
        by_default = all(
            group.settings[key] == usual[str(group.settings["strategy"])].get(key)
            for group in groups
            if key in group.settings
        )
        if len(values) > 1 and (key in changes.NAMED or not by_default):
            found.append(key)
    return found


def shown(group: Group, key: str) -> str:
    """Return a setting of a group for display, or "" if its method has no such key."""
    value = group.settings.get(key)
    if value is None:
        return ""
    return changes.data_name(value) if key == "dataset" else literal(value).strip('"')


def label(group: Group, keys: Sequence[str]) -> str:
    """Return the settings that distinguish a group from others, for example `fedper, lr=0.01`.

    If groups differ in more than `MANY` keys, default values are left out.
    """
    by_default = changes.usual(str(group.settings["strategy"])) if len(keys) > MANY else {}
    words = []
    for key in keys:
        text = shown(group, key)
        if key in changes.NAMED:
            words.append(text)
        elif text and (key, group.settings[key]) not in by_default.items():
            words.append(f"{key}={text}")
    return ", ".join(words) or str(group.settings["strategy"])


def _group(name: str, members: Sequence[Run]) -> Group:
    finished = [run for run in members if run.finished]
    counted: dict[int, Run] = {}
    for run in finished or members:
        counted.setdefault(run.seed, run)
    runs = tuple(sorted(counted.values(), key=lambda run: run.seed))
    if not finished and not _common_rounds(runs):
        runs = (max(runs, key=lambda run: run.scored.index[-1]),)
    left_out = tuple(run for run in members if not any(run is other for other in runs))
    ends = tuple(int(run.scored.index[-1]) for run in runs)
    rounds = ends if finished else (max(_common_rounds(runs)),) * len(runs)
    settings = {key: value for key, value in runs[0].settings.items() if key != SEED}
    return Group(name, settings, runs, rounds, left_out)


def _common_rounds(runs: Sequence[Run]) -> set[int]:
    """Return the rounds that all runs have scored."""
    return set.intersection(*({int(round_) for round_ in run.scored.index} for run in runs))


def _names() -> Iterator[str]:
    """Yield A, B, ..., Z, AA, AB, ..."""
    for length in count(1):
        yield from map("".join, product(ascii_uppercase, repeat=length))
