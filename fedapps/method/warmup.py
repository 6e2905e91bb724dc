"""Strategies that begin as FedAvg and then leave a part of the model to each client."""

from abc import abstractmethod
from collections.abc import Iterator

import msgspec
import numpy as np

from fedapps.core import log
from fedapps.method.mixtures import LastSent
from fedapps.method.strategy import BaseStrategy
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays
from fedapps.training.costs import TrainingStats
from fedapps.training.plan import Plan


class WarmUp(BaseStrategy):
    """FedAvg on the whole model for `self.warmup` rounds (phase `train-warmup`), then another plan.

    What is personal then starts from the server's model at the end of the warm-up: a client gets
    it with its first round after that, and with its evaluations until then. Who gets it is known
    from the updates that arrive: a client whose first one was lost gets it again, and one that has
    lost its state (event `state-lost`) goes on from initial values.
    """

    def setup(self) -> None:
        """Begin with the warm-up; a method that has more to set up calls this first."""
        self.warmup = self.warmup_rounds()
        self.state["last_trained"] = np.zeros(self.settings.num_clients, int)  # last, 0: never
        if self.warmup >= self.settings.num_rounds:
            rounds = self.settings.num_rounds
            log.warning("all %s rounds are warm-up: nothing is personal", rounds)
        if not self.warmup:
            self.end_warmup()

    @property
    def last(self) -> LastSent:
        """What every client sent last, for methods that mix it; it lives in the state."""
        return LastSent(self.state)

    @abstractmethod
    def warmup_rounds(self) -> int:
        """Return the number of rounds of FedAvg."""

    def warmup_plan(self, round_: int, client: int) -> Plan:
        """Return what `client` does in a round of the warm-up: train and exchange everything."""
        names = self.layout.names
        return self.exchange(round_, names, self.stage(round_, names))

    @abstractmethod
    def personal_plan(self, round_: int, client: int) -> Plan:
        """Return what `client` does in a round after the warm-up."""

    def end_warmup(self) -> None:
        """Prepare the server's state for the rounds after the warm-up (nothing)."""

    def observe(self, round_: int, update: ClientUpdate) -> None:
        """Take from an update what the method keeps on the server (nothing)."""

    def plan(self, round_: int, client: int) -> Plan:
        """The warm-up's plan, then the personal one; a newcomer to that downloads all layers."""
        if round_ <= self.warmup:
            return self.warmup_plan(round_, client)
        plan = self.personal_plan(round_, client)
        known = self.state["last_trained"][client]
        if not self.warmup or known:  # without a warm-up it makes the initial model itself
            return plan
        return msgspec.structs.replace(plan, download=self.layout.names)

    def phase(self, round_: int) -> str:
        """Return the word for this round in rounds.csv."""
        return "train-warmup" if round_ <= self.warmup else "train"

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Mean with weights n_i, each update shown to `observe`."""
        return super().aggregate(round_, self._observed(round_, updates))

    def after_round(self, round_: int) -> TrainingStats:
        """End the warm-up in its last round."""
        done = super().after_round(round_)
        if round_ == self.warmup:
            self.end_warmup()
        return done

    def _observed(self, round_: int, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        for update in updates:
            if round_ > self.warmup and update.arrays:  # without arrays it was only asked
                self.state["last_trained"][update.client] = round_
            self.observe(round_, update)
            yield update


def rounds_of(fraction: float, num_rounds: int) -> int:
    """Return a fraction of the rounds, rounded down."""
    return int(fraction * num_rounds + 1e-9)
