"""FedRep: Collins et al., Exploiting Shared Representations for Personalized FL, ICML 2021."""

from typing import Annotated

from fedapps.method import FINETUNING, BaseStrategy, Count, MethodSettings, Plan, Stage, doc


class Settings(MethodSettings, frozen=True):
    """FedRep's own keys."""

    head_epochs: Annotated[Count, doc("epochs of the head alone; local-epochs has no effect")]
    body_epochs: Annotated[Count, doc("epochs of the body alone, after those of the head")]


class FedRep(BaseStrategy):
    """Clients train the head first, then the body; the body is averaged, the head is personal.

    Symbols: N (n in the paper) `num-clients`, T `num-rounds`, r `fraction-train`, B `batch-size`,
    alpha `lr`, tau (of the head) `head-epochs`; the body is trained for `body-epochs`.
    In an evaluation, every client trains its head on the received body, as at the start of a
    round. This replaces general fine-tuning. The mean has weights n_i; Algorithm 1 has a plain one.
    A newcomer trains its head for `head-epochs` on the body, as the paper does.
    """

    citation = "Collins et al. 2021"
    exchanges = "body"
    unused = ("local-epochs", *FINETUNING)
    options: Settings

    def plan(self, round_: int, client: int) -> Plan:
        """Train the head for `head-epochs`, then the body for `body-epochs` (Algorithm 1)."""
        body = self.layout.body
        body_stage = self.stage(round_, body, self.options.body_epochs)
        return self.exchange(round_, body, self.head_stage(round_), body_stage)

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """Personalize by training the head, as in a round."""
        return (self.head_stage(round_),)

    def head_stage(self, round_: int) -> Stage:
        """Train the head on the frozen body."""
        return self.stage(round_, self.layout.head, self.options.head_epochs)
