"""Strategies that begin with FedAvg and then leave a part of the model to each client."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from fedapps.core import log
from fedapps.core.settings import Settings
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import ClientUpdate, replace
from fedapps.models.layers import Arrays
from fedapps.training.costs import TrainingStats
from fedapps.training.plan import Plan


def rounds_of(settings: Settings, fraction: float) -> int:
    """Return a fraction of a run's number of rounds, rounded down."""
    return int(fraction * settings.num_rounds + 1e-9)


class WarmUp(BaseStrategy):
    """FedAvg on the whole model for `self.warmup` rounds (phase `train-warmup`), then another plan.

    After the warm-up, each client's personal layers start from the server's model as it was at the
    end of the warm-up. A client gets this model in its first round after the warm-up, and in every
    evaluation before that. From the updates that arrive, the server learns which clients have it:
    if a client's first update is lost, the client gets the model again. A client that has lost its
    state (event `state-lost`) continues from initial values.
    """

    by_client: ClassVar[tuple[str, ...]] = ("last_trained",)

    def setup(self) -> None:
        """Begin with the warm-up; a method with more to set up calls this method first."""
        self.warmup = self.warmup_rounds()
        self.state["last_trained"] = np.zeros(self.settings.num_clients, int)  # last round; 0: none
        if self.warmup >= self.settings.num_rounds:
            rounds = self.settings.num_rounds
            log.warning("all %s rounds are warm-up: nothing is personal", rounds)
        if not self.warmup:
            self.end_warmup()

    def warmup_rounds(self) -> int:
        """Return how many rounds FedAvg takes: by default the share of the method's `warmup`."""
        return self.rounds_of(self.settings.method.warmup)

    def rounds_of(self, fraction: float) -> int:
        """Return a fraction of the number of rounds, as the function `rounds_of` does."""
        return rounds_of(self.settings, fraction)

    def warmup_plan(self, round_: int, client: int) -> Plan:
        """Return what `client` does in a round of the warm-up: train and exchange everything."""
        return super().plan(round_, client)

    @abstractmethod
    def personal_plan(self, round_: int, client: int) -> Plan:
        """Return what `client` does in a round after the warm-up."""

    def end_warmup(self) -> None:
        """Prepare the server's state for the rounds after the warm-up (by default, nothing)."""

    def observe(self, round_: int, update: ClientUpdate) -> None:
        """Take from an update what the method keeps on the server (by default, nothing)."""

    def plan(self, round_: int, client: int) -> Plan:
        """Return the warm-up's plan or, later, the personal one.

        In its first round after the warm-up, a client downloads all layers.
        """
        if round_ <= self.warmup:
            return self.warmup_plan(round_, client)
        plan = self.personal_plan(round_, client)
        known = self.state["last_trained"][client]
        if not self.warmup or known:  # without a warm-up, clients build the initial model
            return plan
        return replace(plan, download=self.layout.names)

    def newcomer_download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Return the server's layers: means for all, since nothing is known of a newcomer."""
        return self.shown(self.arrays, self.layout.shared(plan.download))

    def phase(self, round_: int) -> str:
        """Return the word that stands for this round in rounds.csv."""
        return "train-warmup" if round_ <= self.warmup else "train"

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Return means with weights n_i; `observe` sees each update."""
        return super().aggregate(round_, self._observed(round_, updates))

    def after_round(self, round_: int) -> TrainingStats:
        """End the warm-up in its last round."""
        done = super().after_round(round_)
        if round_ == self.warmup:
            self.end_warmup()
        return done

    def _observed(self, round_: int, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        for update in updates:
            if round_ > self.warmup and update.arrays:  # without arrays it did not train
                self.state["last_trained"][update.client] = round_
            self.observe(round_, update)
            yield update
