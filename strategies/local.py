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
    """E epochs on all layers in every round, from where the client's own model was.

    Symbols: N `num-clients`, T `num-rounds`, E `local-epochs`, B `batch-size`, eta `lr`;
    r `fraction-train` matters only if `match-compute` is true.
    """

    citation = "baseline"
    exchanges = "nothing"
    sends_its_model = False
    options: Settings

    @property
    def unused(self) -> tuple[str, ...]:
        """Without `match-compute` all clients train, and nobody fine-tunes."""
        return FINETUNING if self.options.match_compute else ("fraction-train", *FINETUNING)

    def select(self, round_: int) -> list[int]:
        """All clients; with `match-compute` those that the other methods would train."""
        return super().select(round_) if self.options.match_compute else self.clients

    def plan(self, round_: int, client: int) -> Plan:
        """Train everything, exchange nothing."""
        return self.exchange(round_, (), self.stage(round_, self.layout.names))

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """None: the client's model is its own already."""
        return ()
