"""FedPAC: Xu, Tong, Huang, Personalized FL with Feature Alignment and Classifier Collaboration."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np
import torch

from fedapps.method import (
    FINETUNING,
    Arrays,
    AtLeastZero,
    ClientUpdate,
    Count,
    MethodSettings,
    Mixing,
    Plan,
    Prototypes,
    Stage,
    class_counts,
    doc,
    replace,
)

LEAST = 1e-3  # weights alpha_ij below it are 0, as in the authors' code


class Settings(MethodSettings, frozen=True):
    """FedPAC's own keys."""

    lambda_: Annotated[AtLeastZero, doc("lambda: how strongly features are pulled to centroids")]
    head_epochs: Annotated[Count, doc("epochs of the head alone, before those of the body")]


class FedPAC(Mixing):
    """The body is averaged, with features near global centroids; heads are mixed (Algorithm 1).

    Symbols: m `num-clients`, T `num-rounds`, E `local-epochs` of the body, eta `lr`.
    Our choices: both stages have the same learning rate; a class that nobody has in a round keeps
    its centroid. An evaluation trains the received head, as a round begins.
    A newcomer trains the mean head for `head-epochs` on the body.
    State: `last/<key>` [N], the head that each client gets next, `sent` [N], `centroids/mean`
    [C, d], `centroids/count` [C].
    """

    citation = "Xu et al. 2023"
    exchanges = "everything; centroids"
    unused = FINETUNING
    needs_classes = True
    sends_its_model = False  # each client gets its own head
    needs_cut = True
    in_eval_mode = ("train",)
    options: Settings

    def setup(self) -> None:
        """Give all clients the initial head; no class has a centroid yet."""
        super().setup()
        self.centroids = Prototypes(self, "centroids")

    @property
    def mixed_keys(self) -> tuple[str, ...]:
        """The keys of the head that travel."""
        return self.layout.shared(self.layout.head)

    def plan(self, round_: int, client: int) -> Plan:
        """Train the head, then the body; send both, and the statistics of the features."""
        names, body = self.layout.names, self.stage(round_, self.layout.body)
        plan = self.exchange(round_, names, *self.finetuning(round_), body)
        mean, count = self.centroids.shapes.values()
        sends = {"first/mean": mean, "first/v": (1,), "own/mean": mean, "own/count": count}
        return replace(plan, receives=self.centroids.shapes, sends=sends)

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """Train the head on the frozen body."""
        return (self.stage(round_, self.layout.head, self.options.head_epochs),)

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send the shared body, the client's own mixture of heads and, in training, centroids."""
        return super().download(round_, client, plan) | self.last_of(client, self.mixed_keys)

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Average bodies, and for newcomers heads; update centroids (Eq. 6); mix heads (Eq. 9)."""
        whole = list(updates)
        count = np.stack([class_counts(u, "own/count") for u in whole]).astype(np.float64)
        own = [u.extras["own/mean"] for u in whole]
        self.centroids.average(zip(own, count, strict=True))
        p = count / count.sum(1, keepdims=True).clip(1)
        h = np.stack([u.extras["first/mean"] for u in whole]) * p[..., None]
        v = np.array([float(u.extras["first/v"][0]) for u in whole])
        h = shortened(h.reshape(len(h), -1))
        alpha = [head_weights(h, v, i) for i in range(len(h))]
        means = super().aggregate(round_, iter(whole))
        self.mix_last([u.client for u in whole], np.stack(alpha))
        return means


def shortened(h: np.ndarray) -> np.ndarray:
    """Return rows of at most m values that are as far from each other as those of h [m, C d].

    H^T = Q R, and Q changes no distance. The bits depend on `threads` only, not on those of NumPy.
    """
    rest: torch.Tensor = torch.linalg.qr(torch.from_numpy(h.T), mode="r").R
    return rest.T.numpy()


def head_weights(h: np.ndarray, v: np.ndarray, i: int) -> np.ndarray:
    """Return alpha_i [m]: the least sum_j a_j^2 v_j + ||sum_j a_j (h_i - h_j)||^2 (Eq. 9).

    The a_j are at least 0, and their sum is 1. h is [m, C d], or `shortened`. If (sum - 1)^2 is
    added in place of the last condition, the least squares with a >= 0 are the same but for a
    factor.
    """
    from scipy.optimize import nnls

    matrix = np.vstack([np.diag(np.sqrt(np.maximum(v, 0))), (h[i] - h).T, np.ones(len(v))])
    alpha = nnls(matrix, np.append(np.zeros(len(matrix) - 1), 1.0))[0]
    alpha = alpha / alpha.sum()
    alpha[alpha < min(LEAST, 0.5 / len(alpha))] = 0  # of 1000 clients, each can have less
    return alpha / alpha.sum()
