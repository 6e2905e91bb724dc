"""APFL: Deng et al., Adaptive Personalized Federated Learning, arXiv 2003.13461, 2020."""

from typing import Annotated, Literal

from fedapps.method import (
    FINETUNING,
    Figure,
    Fraction,
    MethodSettings,
    PlainMean,
    Plan,
    doc,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """APFL's own keys."""

    initial_alpha: Annotated[Fraction, doc("initial value of alpha_i, the weight of v_i")]
    adaptive: Annotated[bool, doc("learn alpha_i (Section 4.2)")]
    alpha_steps: Annotated[
        Literal["batch", "round"],
        doc("learn alpha_i at every batch, or only at a round's first batch"),
    ]


class APFL(PlainMean):
    """FedAvg with a plain mean for w; each client predicts with alpha_i v_i + (1 - alpha_i) w.

    Symbols: K of N clients `fraction-train`, rounds `num-rounds`, B `batch-size`, eta `lr`,
    alpha_i `initial-alpha` at first. The paper counts tau local steps in a round; we count
    `local-epochs`. Clipping and `prox-mu` act on w alone.
    Our choices: alpha_i is learned by default, and an evaluation trains nothing.
    A newcomer trains w_i, v_i and alpha_i for one round, from the shared w.
    """

    citation = "Deng et al. 2020"
    exchanges = "everything"
    figures = (Figure("global", "score of the shared model w", label="global", of_metric=True),)
    clips_by_sample = False
    newcomers_train = True
    options: Settings

    @property
    def unused(self) -> tuple[str, ...]:
        """An evaluation trains nothing; a fixed alpha_i is never learned."""
        return FINETUNING if self.options.adaptive else ("apfl.alpha-steps", *FINETUNING)

    def plan(self, round_: int, client: int) -> Plan:
        """Train w; each step computes a second gradient, of the mixture, for v_i and alpha_i."""
        names = self.layout.names
        return self.exchange(round_, names, replace(self.stage(round_, names), passes=2))
