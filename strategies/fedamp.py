"""FedAMP: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021."""

from collections.abc import Iterator
from typing import Annotated, Literal

import numpy as np

from fedapps.method import (
    FINETUNING,
    Arrays,
    AtLeastZero,
    BaseStrategy,
    ClientUpdate,
    Fraction,
    LastSent,
    MethodSettings,
    Plan,
    Positive,
    doc,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """FedAMP's own keys."""

    similarity: Annotated[
        Literal["distance", "cosine"], doc("of models: distance (FedAMP) or cosine (HeurFedAMP)")
    ]
    step: Annotated[Positive, doc("alpha_k: step of the server; w_i is pulled by lambda / alpha")]
    lambda_: Annotated[AtLeastZero, doc("lambda: how strongly w_i is pulled towards u_i")]
    sigma: Annotated[Positive, doc("sigma: scale of distances, or factor of cosines")]
    own_weight: Annotated[Fraction, doc("xi_ii: weight of the own model (cosine only)")]


class FedAMP(BaseStrategy):
    """Client i trains near u_i, its own mixture of all models; similar ones weigh more (Alg. 1).

    Symbols: m `num-clients`, K `num-rounds`, and those of `Settings`.
    Our choices: clients that have never sent a model are in no mixture. xi_ii cannot be negative: a
    client for which alpha_k is too large takes the largest step that is allowed. w_i starts at u_i.
    A newcomer trains for one round near the mean of the last round's models.
    State: `sent` [N], and `last/<key>`.
    """

    citation = "Huang et al. 2021"
    exchanges = "everything"
    sends_its_model = False
    unused = (*FINETUNING, "prox-mu")
    by_client = ("last/", "sent")
    options: Settings

    def setup(self) -> None:
        """No client has sent a model."""
        clients, self.last = self.settings.num_clients, LastSent(self.state)
        self.last.start({key: self.arrays[key] for key in self.keys}, clients)
        self.state["sent"] = np.zeros(clients, bool)

    def state_bytes(self) -> int:
        """The size of every client's last model."""
        return LastSent.nbytes(self.arrays, self.keys, self.settings.num_clients)

    def plan(self, round_: int, client: int) -> Plan:
        """Download u_i, train w_i, send and keep it; mu of the proximal term is lambda / alpha."""
        names, mu = self.layout.names, self.options.lambda_ / self.options.step
        plan = self.exchange(round_, names, replace(self.stage(round_, names), prox_mu=mu))
        return replace(plan, also_keep=names)

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """Download nothing: w_i is on the client."""
        return Plan(round=round_, download=(), stages=(), upload=())

    def newcomer_plan(self, round_: int, client: int) -> Plan:
        """Train near the mean model."""
        return self.alone(self.plan(round_, client))

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send u_i = sum_j xi_ij w_j (Eq. 5)."""
        return self.last.mixture(self.weights(client), self.keys) if plan.download else {}

    def newcomer_download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send the mean of the last round's models."""
        return super().download(round_, client, plan)

    def weights(self, client: int) -> np.ndarray:
        """Row xi_i [N] (float64): Eq. 6 with A'(x) = exp(-x / sigma) / sigma, or HeurFedAMP's."""
        o, row = self.options, np.zeros(self.settings.num_clients)
        others = [j for j in np.flatnonzero(self.state["sent"]).tolist() if j != client]
        own, them = self.vector(client), map(self.vector, others)
        if others and o.similarity == "cosine":
            cosines = [w @ own / np.sqrt((w @ w) * (own @ own)) for w in them]
            e = np.exp(o.sigma * (np.array(cosines) - max(cosines)))
            row[others] = (1 - o.own_weight) * e / e.sum()
        elif others:
            x = np.array([((w - own) ** 2).sum() for w in them])
            row[others] = o.step * np.exp(-x / o.sigma) / o.sigma
            row /= max(1.0, row.sum())
        row[client] = 1 - row.sum()
        return row

    def vector(self, client: int) -> np.ndarray:
        """Return all parameters of the model that a client sent last (float64)."""
        keys = sorted(self.layout.parameters & set(self.keys))
        parts = self.last.of(client, keys).values()
        return np.concatenate([part.ravel() for part in parts]).astype(np.float64)

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Store every model. The server's own model is their mean; only newcomers get it."""
        return super().aggregate(round_, self.observed(updates))

    def observed(self, updates: Iterator[ClientUpdate]) -> Iterator[ClientUpdate]:
        """Yield the updates, and store their models."""
        for update in updates:
            self.last.keep(update.client, update.arrays)
            self.state["sent"][update.client] = True
            yield update

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of a model that travel."""
        return self.layout.shared(self.layout.names)
