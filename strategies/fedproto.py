"""FedProto: Tan et al., Federated Prototype Learning across Heterogeneous Clients, AAAI 2022."""

from collections.abc import Iterable
from typing import Annotated, Literal

from fedapps.method import (
    FINETUNING,
    Arrays,
    AtLeastZero,
    BaseStrategy,
    ClientUpdate,
    MethodSettings,
    Plan,
    Prototypes,
    class_counts,
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
    weighs_by_count = False
    unused = ("bn-local", *FINETUNING)
    newcomers_train = True
    in_eval_mode = ("train",)
    options: Settings

    def setup(self) -> None:
        """No class has a prototype yet."""
        self.prototypes = Prototypes(self, "p")

    def plan(self, round_: int, client: int) -> Plan:
        """Train all layers, and exchange prototypes only."""
        plan = self.exchange(round_, (), self.stage(round_, self.layout.names))
        return self.both_ways(plan, "p/")

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """Score the client's own model, with the prototypes, as it is."""
        return replace(self.plan(round_, client), stages=(), sends={})

    def aggregate(self, round_: int, updates: Iterable[ClientUpdate]) -> Arrays:
        """Average the prototypes of each class (Equation 6); the model does not change."""
        sent = ((u.extras["p/mean"], class_counts(u, "p/count")) for u in updates)
        self.prototypes.average(sent, plain=self.options.weighting == "plain")
        return {}
