"""FedALA: Zhang, Hua, Wang, Song, Xue, Ma, Guan, Adaptive Local Aggregation, AAAI 2023."""

from typing import Annotated

from msgspec import Meta

from fedapps.method import FINETUNING, AtLeastZero, BaseStrategy, Count, MethodSettings, Stage, doc


class Settings(MethodSettings, frozen=True):
    """FedALA's own keys."""

    sample_percent: Annotated[
        int, Meta(ge=1, le=100), doc("s: percentage of the data that W is learned on")
    ]
    ala_layers: Annotated[Count, doc("p: number of last layers that are mixed")]
    ala_lr: Annotated[AtLeastZero, doc("eta: learning rate of W")]
    threshold: Annotated[
        AtLeastZero, doc("learning the first W: stop when the last 10 losses have a smaller std")
    ]
    max_epochs: Annotated[Count, doc("learning the first W: stop after this many epochs")]


class FedALA(BaseStrategy):
    """FedAvg, but before training a client mixes the shared model with its own (Algorithm 1).

    Symbols: N `num-clients`, T `num-rounds`, rho `fraction-train`, E `local-epochs`,
    B `batch-size`, the local learning rate `lr`; s, p and eta are named in `Settings`.
    Our choices: an evaluation learns its mixture in a copy, and in a round only selected clients
    learn theirs.
    A newcomer trains the shared model for one round; it has no model of its own to mix yet.
    """

    citation = "Zhang et al. 2023"
    exchanges = "everything"
    unused = FINETUNING
    newcomers_train = True
    options: Settings

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """Learning W replaces fine-tuning."""
        top = self.layout.names[-self.options.ala_layers :]
        return (Stage(layers=top, epochs=self.options.max_epochs, lr=self.options.ala_lr),)
