"""Ditto: Li, Hu, Beirami, Smith, Fair and Robust FL Through Personalization, ICML 2021."""

from typing import Annotated

from fedapps.method import (
    FINETUNING,
    AtLeastZero,
    BaseStrategy,
    Count,
    MethodSettings,
    Plan,
    doc,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """Ditto's own keys."""

    lambda_: Annotated[AtLeastZero, doc("lambda: how strongly v_i is pulled towards w")]
    personal_epochs: Annotated[Count, doc("local epochs of the personal model")]


class Ditto(BaseStrategy):
    """FedAvg for w; in addition every client trains a personal v_i near w (Algorithm 1).

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`, B `batch-size`,
    eta `lr`, lambda `lambda`; v_i is trained for `personal-epochs`.
    v_i is evaluated; this needs no download and no further fine-tuning. `score-last` scores
    the w that the client has trained. The pull towards w is the trainer's proximal term:
    `add_proximal` in fedapps/training/stage_run.py.
    A newcomer trains v_i for `personal-epochs` from the shared w, which pulls it.
    """

    citation = "Li et al. 2021"
    exchanges = "everything"
    unused = FINETUNING
    options: Settings

    def evaluation_plan(self, round_: int, client: int) -> Plan:
        """Download nothing: v_i is already on the client."""
        return Plan(round=round_, download=(), stages=(), upload=())

    def newcomer_plan(self, round_: int, client: int) -> Plan:
        """Train v_i from w, pulled towards w; w itself is not trained."""
        stage = self.stage(1, self.layout.names, self.options.personal_epochs)
        stage = replace(stage, prox_mu=self.options.lambda_)
        return replace(self.alone(self.plan(round_, client)), stages=(stage,))
