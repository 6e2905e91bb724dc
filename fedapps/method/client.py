"""The client side of a method: the hooks that its author writes."""

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from fedapps.core.schema import MethodSettings
from fedapps.method import local
from fedapps.method.flower import FlowerClient
from fedapps.method.tools import ClientTools
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays, Slice, run, take
from fedapps.training.costs import Costs, TrainingStats
from fedapps.training.objective import Objective
from fedapps.training.plan import Plan


class BaseClient(ClientTools, FlowerClient):
    """One client in one round: it executes the plan that the strategy made for it.

    A training round goes: the model is made of what was received, else of what the client kept,
    else of initial values; `before_training`; the plan's stages on `objective("train")`;
    what was trained and not uploaded is kept; the upload is taken; `after_training`. An evaluation
    goes: `before_scoring`, score, and if the plan has stages `personalize`, which executes them on
    `objective("finetune")`, and score again.

    Yours to use in every hook: `settings`, `options`, `layout`, `model`, `train_data`, and

    - `state`: what the client kept from earlier rounds, tensors by name; `kept` and `remember`
      read and write entries under a prefix. Nothing of an evaluation is kept.
    - `train(plan, phase, objective)`: trains once more, with stages of one's own.
    - `received`: the arrays of this round by name; `upload`: in `after_training`, those that leave
      the client, with the noise of local privacy; `sends`: put here what the plan's `sends` names.
    """

    options: MethodSettings

    # Hooks --------------------------------------------------------------------------------

    def setup(self) -> None:
        """Prepare what the other hooks use."""

    def personal(self) -> Slice:
        """Return the layers that never leave this client; a plan that uploads one is refused."""
        return ()

    def keeps(self, plan: Plan) -> list[str]:
        """Return the entries of the model that stay here: what was trained and not uploaded.

        Of what was uploaded, the slice `plan.also_keep` stays too.
        """
        trained = {key for stage in plan.stages for key in self.layout.keys_of(stage.layers)}
        kept = {*self.layout.personal(plan.upload), *self.layout.keys_of(plan.also_keep)}
        return sorted(kept & trained)

    def of_one_run(self) -> tuple[str, ...]:
        """Return the prefixes of `state` that mean nothing in a device's next run (none).

        That run begins without them: its model starts anew, as does what the server keeps.
        """
        return ()

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss of a batch (logits [b, classes], labels [b])."""
        return cross_entropy(logits, labels)

    def objective(self, phase: str) -> Objective:
        """Return what a step minimises in phase `train` or `finetune`."""
        return Objective(self.loss)

    def before_training(self, plan: Plan) -> Costs:
        """Change or measure the received model, which is in place; return what that cost."""
        return Costs()

    def last_local(self) -> Arrays:
        """Return the whole model that `score-last` scores: by default as training left it."""
        return take(self.model, self.layout.keys_of(self.layout.names))

    def after_training(self, plan: Plan) -> Costs:
        """Do what is left when the upload has been taken; return what that cost."""
        return Costs()

    def before_scoring(self, plan: Plan) -> Costs:
        """Change the received model before it is scored; return what that cost."""
        return Costs()

    def personalize(self, plan: Plan) -> TrainingStats:
        """Personalize the scored model, if the plan has stages; return what was done.

        It may be no more than the stages say, by which the server judges it.
        """
        return self.train(plan, "finetune", self.objective("finetune"))

    def predict(self, images: Tensor) -> Tensor:
        """Return logits [b, classes] in eval mode."""
        return run(self.model, images, self.layout.names)

    def module(self) -> nn.Module:
        """Return what is used after a run: normalised images to the logits of `predict`."""
        return self.model

    def extra_scores(self) -> dict[str, float]:
        """Return the figures that the strategy declares (`figures`), of the initial model.

        The model is to be as before in the end: it may be what the client predicts with.
        """
        return {}

    def answer(self, question: str) -> list[float]:
        """Answer what the strategy asks before round 1 (`BaseStrategy.question`)."""
        raise ValueError(f"{question}: a question that this method's client does not know")

    # The engine's calls -------------------------------------------------------------------

    def train_round(self, plan: Plan, received: Arrays) -> ClientUpdate:
        """Train as a plan says; `received` are the arrays of its download, by name."""
        return local.train(self, plan, received)

    def score_round(self, plan: Plan, received: Arrays) -> ClientUpdate:
        """Score the received model, personalize it as a plan says, score it again."""
        return local.score(self, plan, received)
