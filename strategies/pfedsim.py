"""pFedSim: Tan et al., Similarity-Aware Model Aggregation Towards Personalized FL, 2023."""

from collections.abc import Iterator
from typing import Annotated

import numpy as np

from fedapps.method import (
    Arrays,
    ClientUpdate,
    Fraction,
    LateMixing,
    MethodSettings,
    Plan,
    RunError,
    doc,
)

CLAMP = 0.9999  # largest similarity, so that the logarithm is finite


class Settings(MethodSettings, frozen=True):
    """pFedSim's own keys."""

    warmup: Annotated[Fraction, doc("share of the rounds that FedAvg takes at the beginning")]


class PFedSim(LateMixing):
    """FedAvg first; then heads are personal, and bodies are mixed by the similarity of heads.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`,
    B `batch-size`, eta `lr`; FedAvg takes the share `warmup` of T.
    A client uploads its head only for the similarity. Similarities are updated only after the
    warm-up, as in FL-bench. That scores each client's model as its last training left it, which
    `score-last` does here.
    A newcomer gets the mean body of the last round and the warm-up's head, and fine-tunes.
    State: `similarity` [N, N] (the identity at first, updated for pairs that train in the same
    round), and `last/<key>`, what each client sent last.
    """

    citation = "Tan et al. 2023"
    exchanges = "all; body down"
    sends_its_model = False
    by_pair = ("similarity",)
    options: Settings

    def setup(self) -> None:
        """Prepare for the heads of a round."""
        if not matrices({key: self.arrays[key] for key in self.layout.shared(self.layout.head)}):
            raise RunError(
                f"head-layers = {len(self.layout.head)}: pfedsim compares the weight matrices of "
                f"heads, and {', '.join(self.layout.head)} has none; use more head-layers"
            )
        super().setup()
        self.heads: dict[int, Arrays] = {}  # of this round

    def grow(self, before: int) -> None:
        """Let new clients be similar only to themselves."""
        super().grow(before)
        if "similarity" in self.state:
            np.fill_diagonal(self.state["similarity"], 1)

    def end_warmup(self) -> None:
        """Set every client's last body to the server's; each client is similar only to itself."""
        super().end_warmup()
        np.fill_diagonal(self.state["similarity"], 1)

    def personal_plan(self, round_: int, client: int) -> Plan:
        """Train all layers; download a mixed body; keep the head, but upload it, too."""
        names, layout = self.layout.names, self.layout
        stages = (self.stage(round_, names),)
        return Plan(
            round=round_, download=layout.body, stages=stages, upload=names, also_keep=layout.head
        )

    def weights(self, client: int) -> np.ndarray:
        """body_i = sum_j a_ij body_j over last bodies; a_ij = -ln(1 - s_ij), normalized over j."""
        a: np.ndarray = -np.log(1 - np.minimum(self.state["similarity"][client], CLAMP))
        return a / a.sum()

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Store bodies, compare heads and average bodies; the server's head does not change."""
        self.heads = {}
        mean = super().aggregate(round_, updates)
        if round_ <= self.warmup:
            return mean
        for i, head in self.heads.items():
            for j, other in self.heads.items():
                if i < j:
                    self.state["similarity"][[i, j], [j, i]] = similarity(head, other)
        body = set(self.mixed_keys)
        return {key: value for key, value in mean.items() if key in body}

    def observe(self, round_: int, update: ClientUpdate) -> None:
        """Store the client's body, and its head for this round only."""
        super().observe(round_, update)
        head = self.layout.shared(self.layout.head)
        self.heads[update.client] = {key: update.arrays[key] for key in head}

    @property
    def mixed_keys(self) -> tuple[str, ...]:
        """The keys of the body that travel."""
        return self.layout.shared(self.layout.body)


def matrices(head: Arrays) -> list[str]:
    """Return the keys of the weights that have rows."""
    return [key for key, value in head.items() if value.ndim > 1]


def similarity(head: Arrays, other: Arrays) -> float:
    """Return max(0, mean over class rows of cos(h_i, h_j)), rows of the last weight matrix."""
    key = matrices(head)[-1]
    a, b = head[key].astype(np.float64), other[key].astype(np.float64)
    norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    return float(max(0.0, ((a * b).sum(1) / np.maximum(norms, 1e-12)).mean()))
