"""FedDyn: Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from fedapps.method import (
    Arrays,
    BaseStrategy,
    ClientUpdate,
    MethodSettings,
    Plan,
    Positive,
    doc,
    plain_mean,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """FedDyn's own keys."""

    strength: Annotated[Positive, doc("alpha: weight of the quadratic term")]


class FedDyn(BaseStrategy):
    """Clients minimize L_i(theta) - <g_i, theta> + (alpha/2)||theta - w||^2 (Algorithm 1).

    Symbols: N (m in the paper) the number of clients that train, T `num-rounds`,
    r `fraction-train`, E `local-epochs`, B `batch-size`, eta `lr`, alpha `strength`; `max-norm`
    clips gradients.
    We keep the quadratic term, which some libraries drop. It is the trainer's proximal term
    (`add_proximal` in fedapps/training/stage_run.py); `prox-mu` adds to its weight.
    The authors' code scores the plain mean of the round's models, not w, and divides alpha by a
    client's share of the samples, and clips before it adds alpha theta; ours is the paper's
    algorithm. On devices, N is the number of ids that train, also of those that never come.
    BatchNorm statistics are averaged.
    A newcomer gets the shared model, and fine-tunes it without g_i.
    State: `hbar/<key>` (float64), the mean of all clients' g_i. It is exact unless a client loses
    its g_i, or a reply is lost after its client has stored the new g_i.
    """

    citation = "Acar et al. 2021"
    exchanges = "everything"
    by_mean = ("hbar/",)
    weighs_by_count = False
    options: Settings

    def setup(self) -> None:
        """Start with hbar = 0."""
        for key in self.layout.shared(self.layout.names):
            if key in self.layout.parameters:
                self.state[f"hbar/{key}"] = np.zeros(self.layout.shapes[key])

    def plan(self, round_: int, client: int) -> Plan:
        """Train and exchange everything; the quadratic term is a proximal term with mu = alpha."""
        names = self.layout.names
        stage = self.stage(round_, names)
        mu = stage.prox_mu + self.options.strength
        return self.exchange(round_, names, replace(stage, prox_mu=mu))

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """hbar -= alpha (1/N) sum_{P_t} (theta_i - w); w = mean_{P_t} theta_i - hbar / alpha."""
        mean, count = plain_mean(updates)
        alpha, share = self.options.strength, count / len(self.workspace.population.training)
        new = dict(mean)
        for name in [key for key in self.state if key.startswith("hbar/")]:
            key = name.removeprefix("hbar/")
            self.state[name] -= alpha * share * (mean[key] - self.arrays[key].astype(np.float64))
            new[key] = mean[key] - self.state[name] / alpha
        return {key: value.astype(np.float32) for key, value in new.items()}
