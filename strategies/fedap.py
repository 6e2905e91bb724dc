"""FedAP: Lu et al., Personalized FL with Adaptive Batchnorm for Healthcare, 2022."""

import math
from typing import Annotated

import numpy as np

from fedapps.method import (
    Arrays,
    ClientUpdate,
    Fraction,
    LastSent,
    MethodSettings,
    Plan,
    WarmUp,
    doc,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """FedAP's own keys."""

    lambda_: Annotated[Fraction, doc("lambda: weight of a client's own model in its mixture")]
    warmup: Annotated[
        Fraction, doc("share of the rounds that FedAvg takes at the beginning (pretraining)")
    ]


class FedAP(WarmUp):
    """FedAvg first; then BatchNorms are personal, and other layers are mixed by similarity.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`, B `batch-size`,
    eta `lr`, lambda `lambda`; the pretraining takes the share `warmup` of T.
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
    by_client = (*WarmUp.by_client, "known", "inputs/")
    options: Settings

    def setup(self) -> None:
        """Allocate the statistics of all clients."""
        super().setup()
        self.drawn: tuple[tuple[int, int], set[int]] = ((0, 0), set())
        clients = self.settings.num_clients
        self.state["known"] = np.zeros(clients, bool)
        for name, shape in self.statistics.items():
            self.state[name] = np.zeros((clients, *shape), np.float32)

    def state_bytes(self) -> int:
        """The size of every client's last model and statistics."""
        clients = self.settings.num_clients
        models = LastSent.nbytes(self.arrays, self.mixed_keys, clients)
        return models + clients * 4 * sum(map(math.prod, self.statistics.values()))

    def end_warmup(self) -> None:
        """Set every client's last model to the pretrained one."""
        start = {key: self.arrays[key] for key in self.mixed_keys}
        self.last.start(start, self.settings.num_clients)

    def select(self, round_: int) -> list[int]:
        """Select all clients in the first round after the warm-up, for their statistics."""
        return [*self.clients] if round_ == self.warmup + 1 else super().select(round_)

    def personal_plan(self, round_: int, client: int) -> Plan:
        """Train all layers, exchange all but BatchNorms; send statistics that the server lacks."""
        names, sends = self.layout.names, {}
        if not self.state["known"][client]:
            sends = self.statistics
        shared = self.layout.without_norms(names)
        plan = self.exchange(round_, shared, self.stage(round_, names))
        if round_ == self.warmup + 1 and not self.trains(round_, client):
            plan = Plan(round=round_, download=shared, stages=(), upload=())
        return replace(plan, sends=sends)

    def trains(self, round_: int, client: int) -> bool:
        """Whether a client is drawn to train; drawn once per round, and again among devices."""
        when = (round_, len(self.devices))
        if self.drawn[0] != when:
            self.drawn = (when, {*super().select(round_)})
        return client in self.drawn[1]

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send the client its own mixture of last models, and once the pretrained BatchNorms."""
        arrays = super().download(round_, client, plan)
        if round_ <= self.warmup:
            return arrays
        return arrays | self.last.mixture(self.weights(client), self.mixed_keys)

    def observe(self, round_: int, update: ClientUpdate) -> None:
        """Store a client's statistics and its model."""
        if round_ <= self.warmup:
            return
        if update.extras:
            self.state["known"][update.client] = True
        for name, value in update.extras.items():
            self.state[name][update.client] = value
        self.last.keep(update.client, update.arrays)

    def weights(self, client: int) -> np.ndarray:
        """Row W_i [N] (float64); other clients with unknown statistics have weight 0."""
        known = self.state["known"].copy()
        others = np.flatnonzero(known & (np.arange(len(known)) != client))
        row = np.zeros(len(known))
        row[client] = 1.0
        if known[client] and len(others):
            closeness = 1 / np.maximum(self.distances(client)[others], 1e-12)
            row[client] = self.options.lambda_
            row[others] = (1 - self.options.lambda_) * closeness / closeness.sum()
        return row

    def distances(self, client: int) -> np.ndarray:
        """d_ij = sum_l sqrt(||mu_i - mu_j||^2 + ||sigma_i - sigma_j||^2) [N]."""
        total = np.zeros(self.settings.num_clients)
        for name in self.statistics:
            values = self.state[name].astype(np.float64)
            total += np.sqrt(((values - values[client]) ** 2).sum((1, 2)))
        return total

    @property
    def statistics(self) -> dict[str, tuple[int, ...]]:
        """Names and shapes [2, channels] of what a client sends: means and standard deviations."""
        norms = sorted(key for key in self.layout.norms if key.endswith(".weight"))
        return {
            f"inputs/{key.removesuffix('.weight')}": (2, *self.layout.shapes[key]) for key in norms
        }

    @property
    def mixed_keys(self) -> tuple[str, ...]:
        """The keys that travel after the warm-up."""
        return self.layout.shared(self.layout.without_norms(self.layout.names))
