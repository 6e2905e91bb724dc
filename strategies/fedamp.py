"""FedAMP: Huang et al., Personalized Cross-Silo Federated Learning on Non-IID Data, AAAI 2021."""

from typing import Annotated, Literal

import numpy as np

from fedapps.method import (
    FINETUNING,
    Arrays,
    AtLeastZero,
    Fraction,
    MethodSettings,
    Mixing,
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


class FedAMP(Mixing):
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
    newcomers_train = True
    options: Settings

    @property
    def weighs_by_count(self) -> bool:
        """Only the mean that newcomers get has weights n_i; those of a mixture are xi_ij."""
        return bool(self.settings.unseen_clients)

    @property
    def unused(self) -> tuple[str, ...]:
        """mu has another meaning; xi_ii follows from the distances."""
        always = (*FINETUNING, "prox-mu")
        return always if self.options.similarity == "cosine" else (*always, "fedamp.own-weight")

    def plan(self, round_: int, client: int) -> Plan:
        """Download u_i, train w_i, send and keep it; mu of the proximal term is lambda / alpha."""
        names, mu = self.layout.names, self.options.lambda_ / self.options.step
        plan = self.exchange(round_, names, replace(self.stage(round_, names), prox_mu=mu))
        return replace(plan, also_keep=names)

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """Download nothing: w_i is on the client."""
        return Plan(round=round_, download=(), stages=(), upload=())

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send u_i = sum_j xi_ij w_j (Eq. 5)."""
        return self.mixture(self.weights(client)) if plan.download else {}

    def weights(self, client: int) -> np.ndarray:
        """Row xi_i [N] (float64): Eq. 6 with A'(x) = exp(-x / sigma) / sigma, or HeurFedAMP's."""
        o, row = self.options, np.zeros(self.settings.num_clients)
        others = [j for j in np.flatnonzero(self.state["sent"]).tolist() if j != client]
        own, them = self.vector(client), map(self.vector, others)
        if others and o.similarity == "cosine":
            square = (own * own).sum()  # not by BLAS: its last digits depend on its threads
            # a model of zeros resembles no other one
            cosines = [(w * own).sum() / (np.sqrt((w * w).sum() * square) or 1.0) for w in them]
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
        keys = sorted(self.layout.parameters & set(self.mixed_keys))
        parts = self.last_of(client, keys).values()
        return np.concatenate([part.ravel() for part in parts]).astype(np.float64)
