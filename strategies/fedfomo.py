"""FedFomo: Zhang et al., Personalized FL with First Order Model Optimization, ICLR 2021."""

from typing import Annotated

import numpy as np

from fedapps.method import (
    FINETUNING,
    Arrays,
    BelowOne,
    ClientUpdate,
    MethodSettings,
    Mixing,
    NonNegative,
    Plan,
    RunError,
    doc,
    generator,
    log,
    replace,
)


class Settings(MethodSettings, frozen=True):
    """FedFomo's own keys; the general key `validation-fraction` sets its validation part."""

    models: Annotated[
        NonNegative, doc("M: largest number of other clients' models that a client gets")
    ]
    epsilon: Annotated[
        BelowOne, doc("probability in round 1 that these models are chosen at random")
    ]
    epsilon_decay: Annotated[BelowOne, doc("decrease of this probability in each round")]


class FedFomo(Mixing):
    """Each client gets up to M other models, and steps towards the better ones.

    Symbols: N `num-clients`, T `num-rounds`, r `fraction-train`, E `local-epochs`, B `batch-size`,
    eta `lr`, M `models`, epsilon `epsilon`, its decrease per round `epsilon-decay`.
    Others are compared with the client's model after its last training, as in FL-bench. In the
    authors' code it is the one before, and the trained model is a candidate like the others.
    The authors' code draws for each of the M models whether it is a random one; ours once for all
    of them. It also divides the affinities of a round by their sum before it adds them up.
    A better model has a lower loss on the client's validation part, which is a share
    `validation-fraction` of its training samples. The part is fixed; some libraries draw it anew.
    The server only stores last models and affinities. Between clients with equal affinity, for
    example before any was measured, a random draw decides (our choice).
    A newcomer gets M models at random, steps towards the better ones, and trains for one round.
    State: `affinity` [N, N], `sent` [N], and `last/<key>`.
    """

    citation = "Zhang et al. 2021"
    exchanges = "all; M models down"
    sends_its_model = False
    unused = FINETUNING
    newcomers_train = True
    weighs_by_count = False
    by_pair = ("affinity",)
    in_eval_mode = ("validation",)
    options: Settings

    def setup(self) -> None:
        """All affinities are 0."""
        if not self.options.models:
            log.warning("fedfomo: models = 0, so every client trains alone")
        if not self.settings.validation_fraction:
            raise RunError("fedfomo needs a validation part: validation-fraction > 0, as 0.2")
        super().setup()

    def plan(self, round_: int, client: int) -> Plan:
        """Receive other clients' models, train the own model, send it and the affinities u_n."""
        names, others = self.layout.names, self.others(round_, client)
        shapes = {f"{n}/{key}": self.layout.shapes[key] for n in others for key in self.mixed_keys}
        u = {f"affinity/{n}": (1,) for n in others}
        plan = self.exchange(round_, names, self.stage(round_, names))
        return replace(plan, download=(), also_keep=names, receives=shapes, sends=u)

    def others(self, round_: int, client: int) -> list[int]:
        """The M clients of highest affinity; with chance epsilon - decay (t - 1) random ones."""
        o, draws = self.options, generator(self.settings.seed, "fedfomo", round_, client)
        explore = draws.random() < o.epsilon - o.epsilon_decay * (round_ - 1)
        sent = np.flatnonzero(self.state["sent"])
        known: list[int] = draws.permutation(sent[sent != client]).tolist()
        if not explore:  # a stable sort: equal affinities stay in the drawn order
            known.sort(key=lambda n: -self.state["affinity"][client, n])
        return sorted(known[: o.models])

    def download(self, round_: int, client: int, plan: Plan) -> Arrays:
        """Send the last models of the clients that the plan names."""
        parts = ((name, *name.split("/", 1)) for name in plan.receives)
        return {name: self.last_of(int(other), [key])[key] for name, other, key in parts}

    newcomer_download = download  # models, as in a round

    def observe(self, update: ClientUpdate) -> None:
        """p_i += u_i; store the model."""
        super().observe(update)
        for name, u in update.extras.items():
            self.state["affinity"][update.client, int(name.removeprefix("affinity/"))] += u[0]
