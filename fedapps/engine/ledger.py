"""The ledger of a federation: all its runs, the epsilon that they have spent, and the next start.

It is the file `ledger.json` in the folder of the federation (key `federation`). A run is entered
before any client hears of it, with all releases that it could make; so a run that is killed counts
as if it had made them.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from fedapps.core.errors import RunError
from fedapps.core.files import in_turn, read_json, write_json, writing
from fedapps.core.privacy_settings import PrivacySettings
from fedapps.core.words import number
from fedapps.engine.accounting import Mechanism, composed
from fedapps.report import directory

FILE = "ledger.json"


class Night(msgspec.Struct, frozen=True, kw_only=True):
    """A run in the ledger, of id `run`, which has its directory `folder`.

    It began with the model of the run `parent`, or of none; if it is `pretrained`, with weights
    from elsewhere. It has made so many `releases` of its `mechanism`; a run without privacy has
    none, and its rounds are releases. If its noise is `seeded`, whoever knows the seed can subtract
    it. `delta` is that of its settings, `round` its last round. Its draws of clients go on after
    so many rounds `before`, which earlier runs had begun.
    """

    run: str
    folder: str
    started: str
    strategy: str
    parent: str = ""
    pretrained: bool = False
    before: int = 0
    round: int = 0
    finished: bool = False
    mechanism: Mechanism | None = None
    seeded: bool = False
    releases: int = 0
    delta: float

    @property
    def noisy(self) -> bool:
        """Whether something was released with noise."""
        return self.mechanism is not None and bool(self.mechanism.noise and self.releases)


class Ledger(msgspec.Struct, kw_only=True):
    """All runs of a federation, oldest first; the next one starts from the model of `start`."""

    runs: list[Night] = []
    start: str = ""

    def run(self, run: str) -> Night | None:
        """Return the run with this id, if there is one."""
        return next((night for night in self.runs if night.run == run), None)

    def others(self, run: str) -> list[Night]:
        """Return all runs but the one with this id."""
        return [night for night in self.runs if night.run != run]

    def enter(self, night: Night) -> None:
        """Add a run, or replace what is known of it."""
        known = [other.run for other in self.runs]
        if night.run in known:
            self.runs[known.index(night.run)] = night
        else:
            self.runs.append(night)

    def before(self, run: str) -> int:
        """Return how many rounds earlier runs had begun, at most, when this one was entered."""
        known = self.run(run)
        return known.before if known else sum(max(n.round, n.releases) for n in self.runs)

    def holder(self, model: Path, federation: Path) -> str:
        """Return the id of the run whose model this file is; empty if it is none of them."""
        found = (n.run for n in self.runs if federation / n.folder / directory.MODEL == model)
        return next(found, "")


def read(federation: Path) -> Ledger:
    """Read the ledger of a federation, which is empty at first; raises `RunError`."""
    return read_json(federation / FILE, Ledger, "epsilon is unknown", Ledger())


@contextmanager
def editing(federation: Path) -> Iterator[Ledger]:
    """Read the ledger, and write it whole at the end of this context; other processes wait.

    Nothing is written after an error. Raises `RunError`.
    """
    with writing(federation):
        federation.mkdir(mode=0o700, parents=True, exist_ok=True)
    with in_turn(federation / f".{FILE}.lock"):
        ledger = read(federation)
        yield ledger
        write_json(federation / FILE, ledger)


def epsilon(runs: Sequence[Night], delta: float) -> float | None:
    """Return epsilon of all these runs together; None if none of them has privacy.

    Noise from the seed counts as if it were secret, so that budgets can be simulated. It is
    infinite if only some of them have privacy, or secret noise. Raises `RunError` if their kinds do
    not add up.
    """
    if all(night.mechanism is None for night in runs):
        return None
    if any(night.mechanism is None and night.releases for night in runs):
        return math.inf
    parts = [(n.mechanism, n.releases) for n in runs if n.mechanism is not None]
    total = composed(parts, delta)
    return math.inf if len({night.seeded for night in runs if night.releases}) > 1 else total


def guaranteed(runs: Sequence[Night], delta: float) -> float | None:
    """Return `epsilon` if it holds; None if none of these runs has released secret noise."""
    secret = any(n.mechanism is not None and not n.seeded and n.releases for n in runs)
    return epsilon(runs, delta) if secret else None


def check_budget(dp: PrivacySettings, earlier: Sequence[Night], night: Night) -> None:
    """Raise `RunError` if epsilon could exceed `dp.budget` with this run, or has no sum.

    Epsilon is that at the smallest delta of all runs: a larger one would stretch the budget.
    """
    delta = min([dp.delta, *(other.delta for other in earlier if other.noisy)])
    total = epsilon([*earlier, night], delta)
    if not dp.budget or (total is not None and total <= dp.budget):
        return
    if night.mechanism is None or not night.mechanism.noise:
        raise RunError(
            f'dp.budget = {dp.budget:g}: without noise epsilon has no limit; use dp.mode="central"'
            ' or "local" and dp.noise-multiplier above 0, or dp.budget=0'
        )
    if plain := [n for n in earlier if n.mechanism is None and n.releases]:
        raise RunError(
            f"dp.budget = {dp.budget:g}: epsilon has no limit any more, because the run"
            f" {plain[0].folder} had no differential privacy; begin another federation, with data"
            " that it has not used"
        )
    if other := [n for n in earlier if n.noisy and n.seeded != night.seeded]:
        raise RunError(
            f"dp.budget = {dp.budget:g}: epsilon has no limit, because the run"
            f" {other[0].folder} has another dp.secret-noise, and noise from the seed is none;"
            " use the same, or begin another federation, with data that it has not used"
        )
    spent, rounds = epsilon(earlier, delta) or 0.0, number(night.releases, "round")
    told = f"{rounds} would spend an epsilon of {total:.4g}"
    if earlier:
        told = (
            f"the earlier runs ({len(earlier)}) have spent an epsilon of {spent:.4g}, and"
            f" {night.releases} more rounds would make it {total:.4g}"
        )
    raise RunError(
        f"dp.budget = {dp.budget:g}: {told} (delta {delta:g}); use fewer rounds, more noise, or"
        " a smaller fraction-train"
    )
