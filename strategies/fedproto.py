"""FedProto: Tan et al., Federated Prototype Learning across Heterogeneous Clients, AAAI 2022."""

from collections.abc import Iterable
from typing import Annotated, Literal

import numpy as np

from fedapps.method import (
    FINETUNING,
    Arrays,
    AtLeastZero,
    BaseStrategy,
    ClientUpdate,
    MethodSettings,
    Plan,
    doc,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """FedProto's own keys."""

    lambda_: Annotated[AtLeastZero, doc("lambda: how strongly features are pulled to prototypes")]
    weighting: Annotated[
        Literal["samples", "plain"], doc("average clients' prototypes by samples, or equally")
    ]
    predict: Annotated[
        Literal["prototypes", "head"], doc("predict by the nearest prototype, or by the own head")
    ]


class FedProto(BaseStrategy):
    """Only prototypes travel: each class's mean features; every client has a model of its own.

    Symbols: m `num-clients`, T `num-rounds`, E `local-epochs`, eta `lr`, lambda `lambda`;
    f_i is the body, C_i^(j) and the mean of all clients' are prototypes of class j.
    docs/papers/fedproto.md says what the paper leaves open.
    A newcomer trains its own model for one round, pulled to the prototypes.
    State: `p/mean` [classes, width], `p/count` [classes] (0: the class has no prototype yet).
    """

    citation = "Tan et al. 2022"
    exchanges = "prototypes"
    needs_classes = True
    needs_cut = True
    sends_its_model = False
    unused = FINETUNING
    options: Settings

    def setup(self) -> None:
        """No class has a prototype yet."""
        space = self.workspace
        width = int(np.prod(space.trainer.profile.shapes.get(self.layout.head[0], ())))
        self.state["p/mean"] = np.zeros((space.dataset.classes, width), np.float32)
        self.state["p/count"] = np.zeros(space.dataset.classes, np.float32)

    def plan(self, round_: int, client: int) -> Plan:
        """Train all layers, and exchange prototypes only."""
        plan = self.exchange(round_, (), self.stage(round_, self.layout.names))
        shapes = {name: self.state[name].shape for name in ("p/mean", "p/count")}
        return replace(plan, receives=shapes, sends=shapes)

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send the prototypes."""
        return {name: self.state[name] for name in plan.receives}

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """Score the client's own model, with the prototypes, as it is."""
        return replace(self.plan(round_, client), stages=(), sends={})

    def newcomer_plan(self, round_: int, client: int) -> Plan:
        """Train as in a round."""
        return self.alone(self.plan(round_, client))

    def aggregate(self, round_: int, updates: Iterable[ClientUpdate]) -> Arrays:
        """Average the prototypes of each class (Equation 6); the model does not change."""
        total = np.zeros(self.state["p/mean"].shape)
        counts, weights = np.zeros((2, len(total)))
        for update in updates:
            count = update.extras["p/count"]
            weight = count if self.options.weighting == "samples" else (count > 0).astype(float)
            total += update.extras["p/mean"] * weight[:, None]
            weights += weight
            counts += count
        seen = weights > 0  # a class without samples in this round keeps its prototype
        self.state["p/mean"][seen] = total[seen] / weights[seen, None]
        self.state["p/count"][seen] = counts[seen]
        return {}
