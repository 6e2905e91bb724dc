"""FedDBE: Zhang et al., Eliminating Domain Bias for FL in Representation Space, NeurIPS 2023."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from fedapps.method import (
    FINETUNING,
    Arrays,
    AtLeastZero,
    BaseStrategy,
    ClientUpdate,
    MethodSettings,
    Plan,
    Share,
    doc,
    log,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """FedDBE's own keys."""

    kappa: Annotated[AtLeastZero, doc("kappa: weight of the mean regularization")]
    mean_momentum: Annotated[Share, doc("mu: weight of a batch in the running mean of features")]


class FedDBE(BaseStrategy):
    """FedAvg; a client adds its own vector to its features, whose mean stays near a shared one.

    Symbols: N `num-clients`, T `num-rounds`, rho `fraction-train`, eta `lr`, kappa `kappa`,
    mu `mean-momentum`. The first round that any client answers, usually round 1, is the paper's
    initialization: all clients train an epoch on their own, and send the mean of their features.
    docs/papers/feddbe.md says what the paper leaves open.
    A newcomer trains the shared model and its own vector for one round.
    State: `z/mean` [features], the consensual mean; `z/round`, in which it was found, at first 0.
    """

    citation = "Zhang et al. 2023"
    exchanges = "everything; once, mean features"
    sends_its_model = False  # each client adds its own vector to the features
    needs_cut = True
    clips_by_sample = False
    unused = FINETUNING
    newcomers_train = True
    options: Settings

    def setup(self) -> None:
        """There is no consensual mean yet; its round trains nothing that lasts."""
        if self.settings.num_rounds == 1:
            log.warning("feddbe: the only round finds the mean of features, so nothing is trained")
        self.state["z/mean"] = np.zeros(self.workspace.feature_shape, np.float32)
        self.state["z/round"] = np.zeros(1, np.int64)

    def initializes(self, round_: int) -> bool:
        """Tell whether a round is the one in which the consensual mean is found."""
        return self.state["z/round"].item() in (0, round_)

    def select(self, round_: int) -> list[int]:
        """Select all clients for the initialization."""
        return [*self.clients] if self.initializes(round_) else super().select(round_)

    def phase(self, round_: int) -> str:
        """Name the initialization."""
        return "initialize" if self.initializes(round_) else "train"

    def plan(self, round_: int, client: int) -> Plan:
        """Train and exchange all layers, with the mean; at first send only the own mean."""
        names, mean = self.layout.names, {"z/mean": self.state["z/mean"].shape}
        if self.initializes(round_):
            alone = self.exchange(round_, names, self.stage(round_, names, epochs=1))
            return replace(alone, upload=(), sends=mean)
        return replace(self.exchange(round_, names, self.stage(round_, names)), receives=mean)

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Average the models, or at first the clients' means, with weights n_i."""
        arrays = self.averaged(updates)
        if self.initializes(round_):
            self.state["z/round"][:] = round_
        return arrays
