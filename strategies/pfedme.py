"""pFedMe: Dinh et al., Personalized FL with Moreau Envelopes, NeurIPS 2020 (Algorithm 1)."""

from collections.abc import Iterator
from typing import Annotated

from fedapps.method import (
    FINETUNING,
    Arrays,
    AtLeastZero,
    BaseStrategy,
    ClientUpdate,
    Count,
    Figure,
    MethodSettings,
    NonNegative,
    Plan,
    Positive,
    RunError,
    doc,
    log,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """pFedMe's own keys; eta is `lr`."""

    lambda_: Annotated[AtLeastZero, doc("lambda: strength of the pull between theta_i and w")]
    beta: Annotated[AtLeastZero, doc("beta: step of the server towards the mean of the clients")]
    inner_steps: Annotated[Count, doc("K: steps of theta_i on each batch")]
    inner_lr: Annotated[Positive, doc("eta_p: learning rate of theta_i")]
    local_rounds: Annotated[
        NonNegative, doc("R: batches in a round; 0: all batches of local-epochs epochs")
    ]


class PFedMe(BaseStrategy):
    """A shared model w, and a personal model theta_i on each client, which is pulled towards w.

    Symbols: N `num-clients`, T `num-rounds`, S of N `fraction-train`, R `local-rounds`,
    K `inner-steps`, eta `lr`, eta_p `inner-lr`, |D| `batch-size`.
    Our choices: only selected clients train, and the mean has weights n_i. Line 8 of Algorithm 1
    is a step of the run's optimizer; with `momentum`, another `optimizer`, `prox-mu` or clipping
    it differs from the paper's.
    A newcomer trains theta_i for one round, from the shared w.
    """

    citation = "Dinh et al. 2020"
    exchanges = "everything"
    clips_by_sample = False
    figures = (Figure("global", "score of the shared model w", label="global", of_metric=True),)
    newcomers_train = True
    options: Settings

    def setup(self) -> None:
        """Check line 8, w -= c (w - theta) with c = eta lambda, which diverges for c >= 2."""
        c = self.settings.lr * self.options.lambda_
        if c >= 2:
            raise RunError(f"lr x pfedme.lambda = {c:g}: must be below 2, or w diverges")
        if c > 1 + 1e-9:
            log.warning("lr x pfedme.lambda = %g is above 1: w overshoots theta", c)
        elif c > 1 - 1e-9:
            log.warning("lr x pfedme.lambda = 1: w becomes theta, which is FedAvg with a pull")

    @property
    def unused(self) -> tuple[str, ...]:
        """R counts batches, not epochs; theta_i is not fine-tuned."""
        return ("local-epochs", *FINETUNING) if self.options.local_rounds else FINETUNING

    def plan(self, round_: int, client: int) -> Plan:
        """Train on R batches, K steps on each.

        Our choice: weight decay is part of f_i, so line 8 has none.
        """
        names, o = self.layout.names, self.options
        per_epoch = max(1, self.count(client, "train") // self.settings.batch_size)
        stage = self.stage(round_, names, epochs=-(-o.local_rounds // per_epoch) or None)
        stage = replace(stage, max_steps=o.local_rounds, passes=o.inner_steps, weight_decay=0.0)
        return self.exchange(round_, names, stage)

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """w = (1 - beta) w + beta mean; BatchNorm statistics are the mean (our choice)."""
        w, beta, means = self.arrays, self.options.beta, super().aggregate(round_, updates)
        mixed = means.keys() & set(self.layout.parameters)
        return means | {key: (1 - beta) * w[key] + beta * means[key] for key in mixed}
