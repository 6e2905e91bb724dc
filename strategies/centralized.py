"""Centralized training on the union of the clients' training data: a non-federated reference."""

from typing import Annotated, Literal

from fedapps.method import BaseStrategy, MethodSettings, Plan, RunError, TrainingStats, doc


class Settings(MethodSettings, frozen=True):
    """Centralized training's own keys."""

    trainable: Annotated[
        Literal["full", "body", "head"], doc("layers that are trained; the others stay fixed")
    ]


class Centralized(BaseStrategy):
    """The server trains E epochs per round; clients are only evaluated (and personalize).

    Symbols: T `num-rounds`, E `local-epochs`, B `batch-size`, eta `lr`, F `finetune-epochs`.
    `trainable` is the part of the model that is trained (FedBABU's centralized experiment).
    `fraction-train` has no effect, because all training samples are used in every round, nor have
    `deadline` and `dropout`, and `prox-mu` none, because nobody receives a model to stay near to.
    A newcomer gets the server's model, and fine-tunes it.
    """

    citation = "baseline"
    exchanges = "nothing"
    sends_its_model = False
    needs_union = True
    unused = ("deadline", "dropout", "fraction-train", "prox-mu")
    options: Settings

    def setup(self) -> None:
        """Refuse BatchNorm settings under which only clients would have statistics."""
        if self.layout.stays:
            raise RunError(
                'centralized needs bn-stats = "shared" or "batch" and bn-local = false: '
                "clients never train, so they have no statistics of their own"
            )

    def select(self, round_: int) -> list[int]:
        """Select no clients: the server trains alone."""
        return []

    def plan(self, round_: int, client: int) -> Plan:
        """Download the server's model, with which a client is evaluated."""
        return Plan(round=round_, download=self.layout.names, stages=(), upload=())

    def after_round(self, round_: int) -> TrainingStats:
        """Train the server's model on the union of the clients' training data."""
        stage = self.stage(round_, self.layout.slice_of(self.options.trainable))
        return self.train_here(round_, self.workspace.data.union, stage)
