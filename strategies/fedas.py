"""FedAS: Yang, Huang, Ye, Bridging Inconsistency in Personalized FL, CVPR 2024."""

from collections.abc import Iterable
from typing import Annotated

from fedapps.method import (
    FINETUNING,
    Arrays,
    BaseStrategy,
    ClientUpdate,
    MethodSettings,
    NonNegative,
    Plan,
    Positive,
    Stage,
    doc,
    replace,
    weighted_mean,
)

LEAST = 1e-12  # of a client's weight: if all traces are 0, the mean is a plain one


class Settings(MethodSettings, frozen=True):
    """FedAS's own keys."""

    align_epochs: Annotated[NonNegative, doc("epochs of the alignment of the received body")]
    align_lr: Annotated[Positive, doc("learning rate of the alignment")]


class FedAS(BaseStrategy):
    """FedPer; clients align the received body with their last one, and informed ones weigh more.

    Symbols: N `num-clients`, T `num-rounds`, E `local-epochs`, eta `lr`; the head stays on the
    client. Parameter-alignment is in clients/fedas.py, client-synchronization in `aggregate`.
    docs/papers/fedas.md says what the paper leaves open. A client's weight is what it says.
    A newcomer trains all layers for one round, from the shared body and the initial head.
    """

    citation = "Yang, Huang, Ye 2024"
    exchanges = "body, and a weight"
    needs_classes = True
    needs_cut = True
    in_eval_mode = ("train",)
    unused = FINETUNING
    weighs_by_count = False
    newcomers_train = True
    options: Settings

    def plan(self, round_: int, client: int) -> Plan:
        """Train all layers and exchange the body, which the client also keeps."""
        body = self.layout.body
        plan = self.exchange(round_, body, self.stage(round_, self.layout.names))
        return replace(plan, also_keep=body, sends={"fisher/trace": (1,)})

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """An evaluation aligns the body; the head does not change."""
        lr, epochs = self.scheduled(self.options.align_lr, round_), self.options.align_epochs
        return (Stage(layers=self.layout.body, epochs=epochs, lr=lr),)

    def aggregate(self, round_: int, updates: Iterable[ClientUpdate]) -> Arrays:
        """Average the bodies, weighted by the traces of the clients' Fisher information."""
        return weighted_mean(
            replace(update, weight=max(float(update.extras["fisher/trace"][0]), LEAST))
            for update in updates
        )[0]
