"""Local-only: every client trains its own model; nothing is exchanged."""

from typing import Annotated

from fedapps.method import FINETUNING, BaseStrategy, MethodSettings, Plan, Stage, doc


class Settings(MethodSettings, frozen=True):
    """Local-only's own keys."""

    match_compute: Annotated[
        bool,
        doc("train a client only in rounds that select it (as FedCMD's tables do), not in all"),
    ]


class Local(BaseStrategy):
    """In every round each client trains its own model further, for E epochs on all layers.

    Symbols: N `num-clients`, T `num-rounds`, E `local-epochs`, B `batch-size`, eta `lr`;
    r `fraction-train` has an effect only if `match-compute` is true.
    A newcomer trains its own model for one round.
    """

    citation = "baseline"
    exchanges = "nothing"
    sends_its_model = False
    options: Settings

    @property
    def unused(self) -> tuple[str, ...]:
        """No client fine-tunes; without `match-compute` all clients train in every round."""
        always = ("bn-local", *FINETUNING)
        return always if self.options.match_compute else ("fraction-train", *always)

    def select(self, round_: int) -> list[int]:
        """Select all clients, or with `match-compute` those that the other methods would select."""
        return super().select(round_) if self.options.match_compute else [*self.clients]

    def plan(self, round_: int, client: int) -> Plan:
        """Train all layers and exchange nothing."""
        return self.exchange(round_, (), self.stage(round_, self.layout.names))

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """No stages: the client's model is personal already."""
        return ()
