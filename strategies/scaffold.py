"""SCAFFOLD: Karimireddy et al., Stochastic Controlled Averaging for Federated Learning, ICML
2020."""

from collections.abc import Iterable
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
)


class Settings(MethodSettings, frozen=True):
    """SCAFFOLD's own keys."""

    global_lr: Annotated[Positive, doc("eta_g: the server's step from x towards the mean y_i")]


class Scaffold(BaseStrategy):
    """Clients add c - c_i to their gradients; the server averages models and changes of c_i.

    Symbols: N (clients that train) `num-clients`, S (clients of a round) `fraction-train`, K steps
    in `local-epochs` of batches of `batch-size`, eta_l `lr`, eta_g `global-lr` (Algorithm 1,
    option II).
    BatchNorm statistics are averaged. docs/papers/scaffold.md says what the paper leaves open.
    A newcomer gets the shared model, and fine-tunes it without c and c_i.
    State: `c/<key>` (float64), the mean of all clients' c_i. It is exact unless a client loses its
    c_i, or a reply is lost after its client has stored the new c_i.
    """

    citation = "Karimireddy et al. 2020"
    exchanges = "everything, and control variates"
    by_mean = ("c/",)
    weighs_by_count = False
    options: Settings

    def setup(self) -> None:
        """Start with c = 0."""
        for key in self.layout.shared(self.layout.names):
            if key in self.layout.parameters:
                self.state[f"c/{key}"] = np.zeros(self.layout.shapes[key])

    def plan(self, round_: int, client: int) -> Plan:
        """Train and exchange everything; c travels down, and the change of c_i travels up."""
        return self.both_ways(super().plan(round_, client), "c/")

    def aggregate(self, round_: int, updates: Iterable[ClientUpdate]) -> Arrays:
        """x += eta_g mean_S (y_i - x), and c += (1/N) sum_S (c_i+ - c_i) (lines 16 and 17)."""
        updates = list(updates)
        mean, _ = plain_mean(updates)
        for name in [name for name in self.state if name.startswith("c/")]:
            change = sum(update.extras[name].astype(np.float64) for update in updates)
            self.state[name] += change / len(self.workspace.population.training)
            key, beyond = name.removeprefix("c/"), self.options.global_lr - 1
            mean[key] = mean[key] + beyond * (mean[key] - self.arrays[key])
        return {key: value.astype(np.float32) for key, value in mean.items()}
