"""FedDBE: Zhang et al., Eliminating Domain Bias for FL in Representation Space, NeurIPS 2023."""

from collections.abc import Iterable
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
    Stage,
    doc,
    replace,
    weighted_mean,
)


class Settings(MethodSettings, frozen=True):
    """FedDBE's own keys."""

    kappa: Annotated[AtLeastZero, doc("kappa: weight of the mean regularization")]
    mean_momentum: Annotated[Share, doc("mu: weight of a batch in the running mean of features")]


class FedDBE(BaseStrategy):
    """FedAvg; a client adds its own vector to its features, whose mean stays near a shared one.

    Symbols: N `num-clients`, T `num-rounds`, rho `fraction-train`, eta `lr`, kappa `kappa`,
    mu `mean-momentum`. Round 1 is the paper's
    initialization: all clients train an epoch on their own, and send the mean of their features.
    docs/papers/feddbe.md says what the paper leaves open.
    A newcomer trains the shared model and its own vector for one round.
    State: `z/mean` [features], the consensual mean.
    """

    citation = "Zhang et al. 2023"
    exchanges = "everything; once, mean features"
    needs_cut = True
    clips_by_sample = False
    unused = FINETUNING
    options: Settings

    def setup(self) -> None:
        """There is no consensual mean yet."""
        shape = self.workspace.trainer.profile.shapes.get(self.layout.head[0], ())
        self.state["z/mean"] = np.zeros(shape, np.float32)

    def select(self, round_: int) -> list[int]:
        """Select all clients in round 1."""
        return [*self.clients] if round_ == 1 else super().select(round_)

    def phase(self, round_: int) -> str:
        """Name the initialization."""
        return "initialize" if round_ == 1 else "train"

    def plan(self, round_: int, client: int) -> Plan:
        """Train and exchange all layers, with the mean; in round 1 send only the own mean."""
        names, mean = self.layout.names, {"z/mean": self.state["z/mean"].shape}
        if round_ == 1:
            alone = self.exchange(round_, names, self.stage(round_, names, epochs=1))
            return replace(alone, upload=(), sends=mean)
        return replace(self.exchange(round_, names, self.stage(round_, names)), receives=mean)

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send the model and, in training, the consensual mean."""
        mean = {name: self.state[name] for name in plan.receives}
        return super().download(round_, client, plan) | mean

    def newcomer_plan(self, round_: int, client: int) -> Plan:
        """Train as in a round."""
        return self.alone(self.plan(round_, client))

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """No stages: the client's vector is the personalization."""
        return ()

    def aggregate(self, round_: int, updates: Iterable[ClientUpdate]) -> Arrays:
        """Average the models, or in round 1 the clients' means, with weights n_i."""
        if round_ > 1:
            return weighted_mean(updates)[0]
        means = (replace(update, arrays=update.extras) for update in updates)
        self.state["z/mean"] = weighted_mean(means)[0]["z/mean"].astype(np.float32)
        return {}
