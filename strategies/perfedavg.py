"""Per-FedAvg: Fallah, Mokhtari, Ozdaglar, Personalized FL with Theoretical Guarantees (MAML)."""

from typing import Annotated, Literal

from fedapps.method import MethodSettings, PlainMean, Plan, Positive, Stage, doc, replace


class Settings(MethodSettings, frozen=True):
    """Per-FedAvg's own keys; alpha, the inner step, is the general `lr`."""

    mode: Annotated[
        Literal["fo", "hf"], doc("fo: first order; hf: Hessian-free, by a difference of gradients")
    ]
    outer_lr: Annotated[Positive, doc("beta: step of the meta update; 0.001 is for many rounds")]
    delta: Annotated[Positive, doc("delta: half width of the Hessian-free difference")]
    personalize: Annotated[
        Literal["step", "epoch"],
        doc("one step, or one epoch, on training data before each evaluation"),
    ]


class PerFedAvg(PlainMean):
    """A meta model that is good after one gradient step of each client (Algorithm 1).

    Symbols: N (n in the paper) `num-clients`, K `num-rounds`, r `fraction-train`,
    B `batch-size`, alpha `lr`, beta `outer-lr`, delta `delta`. A client takes meta steps for
    `local-epochs` epochs; `mode` chooses how the meta gradient is computed. The paper draws three
    independent batches for a step; here, the last step of a round may use its first batches again,
    and a client with a single batch uses it three times.
    The default of `outer-lr` is the paper's, for many more rounds than ours: with it, the model of
    a short run has learned little. Begin with 0.01 to 0.1.
    Clients personalize on training data; some libraries do it on test data. Every selected client
    counts the same in the mean.
    A newcomer takes its step from the meta model, as all clients do.
    """

    citation = "Fallah et al. 2020"
    exchanges = "everything"
    clips_by_sample = False
    options: Settings

    @property
    def unused(self) -> tuple[str, ...]:
        """The method personalizes with its own steps; only the Hessian-free rule has `delta`."""
        own = ("perfedavg.delta",) if self.options.mode == "fo" else ()
        return ("finetune-epochs", "finetune-part", *own)

    def plan(self, round_: int, client: int) -> Plan:
        """E epochs of meta steps on all layers; beta follows `lr-schedule`, alpha is constant."""
        names, stage = self.layout.names, self.stage(round_, self.layout.names)
        beta = self.scheduled(self.options.outer_lr, round_)
        passes = 2 if self.options.mode == "fo" else 4
        return self.exchange(round_, names, replace(stage, lr=beta, passes=passes))

    def finetuning(self, round_: int) -> tuple[Stage, ...]:
        """theta_i = w - a grad f_i(w), a = `finetune-lr`: one such step, or one epoch of them."""
        names, lr = self.layout.names, self.settings.finetune_rate
        steps = 1 if self.options.personalize == "step" else 0
        return (Stage(layers=names, epochs=1, lr=lr, max_steps=steps),)
