"""FedAP: Lu et al., Personalized FL with Adaptive Batchnorm for Healthcare, 2022."""

import math
from typing import Annotated

import numpy as np

from fedapps.method import ClientUpdate, Fraction, LateMixing, MethodSettings, Plan, doc


class Settings(MethodSettings, frozen=True):
    """FedAP's own keys."""

    lambda_: Annotated[Fraction, doc("lambda: weight of a client's own model in its mixture")]
    warmup: Annotated[
        Fraction, doc("share of the rounds that FedAvg takes at the beginning (pretraining)")
    ]


class FedAP(LateMixing):
    """FedAvg first; then BatchNorms are personal, and other layers are mixed by similarity.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`, B `batch-size`,
    eta `lr`, lambda `lambda`; the pretraining, FedAvg by our choice, takes the share `warmup` of T.
    Two clients are similar if the inputs of their BatchNorms have similar statistics, measured in
    the pretrained model on each client's training data. This is done once: the first round after
    the warm-up asks all N clients, and later rounds ask those that have not answered. Every client
    starts from the pretrained model, which some libraries discard.
    A newcomer gets the mean of the last round and the pretrained BatchNorms, and fine-tunes.
    State: `inputs/<BatchNorm>` [N, 2, channels], `known` [N], and `last/<key>` with
    `last_trained` [N].
    """

    citation = "Lu et al. 2022"
    exchanges = "all but BatchNorm"
    sends_its_model = False
    needs_norms = True
    in_eval_mode = ("train",)
    by_client = ("known", "inputs/")
    options: Settings

    def setup(self) -> None:
        """Allocate the statistics of all clients."""
        super().setup()
        self.drawn = {*self.clients}
        clients = self.settings.num_clients
        self.state["known"] = np.zeros(clients, bool)
        for name, shape in self.statistics.items():
            self.state[name] = np.zeros((clients, *shape), np.float32)

    def state_bytes(self) -> int:
        """The size of every client's last model and statistics."""
        values = sum(map(math.prod, self.statistics.values()))
        return super().state_bytes() + 4 * values * self.settings.num_clients

    def select(self, round_: int) -> list[int]:
        """Draw who trains; the first round after the warm-up asks all, for their statistics."""
        self.drawn = {*super().select(round_)}
        return [*self.clients] if round_ == self.warmup + 1 else sorted(self.drawn)

    def personal_plan(self, round_: int, client: int) -> Plan:
        """Train all layers, exchange all but BatchNorms; send statistics that the server lacks."""
        names = self.layout.names
        sends = {} if self.state["known"][client] else self.statistics
        shared = self.layout.without_norms(names)
        if round_ == self.warmup + 1 and client not in self.drawn:
            return Plan(round=round_, download=shared, stages=(), upload=(), sends=sends)
        stages = (self.stage(round_, names),)
        return Plan(round=round_, download=shared, stages=stages, upload=shared, sends=sends)

    def observe(self, round_: int, update: ClientUpdate) -> None:
        """Store a client's statistics and its model."""
        super().observe(round_, update)
        if update.extras:
            self.state["known"][update.client] = True
        for name, value in update.extras.items():
            self.state[name][update.client] = value

    def weights(self, client: int) -> np.ndarray:
        """Row W_i [N] (float64); other clients with unknown statistics have weight 0."""
        known, own = self.state["known"], np.arange(self.settings.num_clients) == client
        closeness = known[client] * known * ~own / np.maximum(self.distances(client), 1e-12)
        if not closeness.any():
            return own.astype(float)
        lambda_ = self.options.lambda_
        return np.where(own, lambda_, (1 - lambda_) * closeness / closeness.sum())

    def distances(self, client: int) -> np.ndarray:
        """d_ij = sum_l sqrt(||mu_i - mu_j||^2 + ||sigma_i - sigma_j||^2) [N]."""
        stacks = (self.state[name].astype(np.float64) for name in self.statistics)
        by_layer = [np.sqrt(((x - x[client]) ** 2).sum((1, 2))) for x in stacks]
        return np.sum(by_layer, axis=0)

    @property
    def statistics(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes [2, channels] of what a client sends: means and standard deviations."""
        norms = sorted(self.layout.norms)  # of each BatchNorm some of four arrays [channels]
        return {f"inputs/{k.rpartition('.')[0]}": (2, *self.layout.shapes[k]) for k in norms}

    @property
    def mixed_keys(self) -> tuple[str, ...]:
        """The keys that travel after the warm-up."""
        return self.layout.shared(self.layout.without_norms(self.layout.names))
