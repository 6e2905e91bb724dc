"""The client side of a method: the hooks that a method's author writes."""

from torch import Tensor, nn

from fedapps.core.schema import MethodSettings
from fedapps.method.client_tools import ClientTools
from fedapps.models.layers import Arrays, Slice, take
from fedapps.models.modes import in_eval_mode
from fedapps.training.costs import Costs, TrainingStats
from fedapps.training.objective import Objective
from fedapps.training.plan import Plan


class ClientHooks(ClientTools):
    """One client in one round: it executes the plan that the strategy has made for it.

    A training round has these steps:

    1. Each array of the model takes the received value, or else the one that the client has kept,
       or else the initial one.
    2. `before_training` is called.
    3. The stages of the plan are trained on `objective("train")`.
    4. The client keeps what was trained and is not uploaded. Then the upload is taken.
    5. `after_training` is called, and each `part` is kept.

    An evaluation begins with step 1. Then `before_scoring` is called, and the model is scored. If
    the plan has stages, `personalize` executes them on `objective("finetune")`, and the model is
    scored again. Nothing of an evaluation is kept.

    In every hook you can use `settings`, `options`, `layout`, `model`, `task`, `train_data`, and

    - `state`: what the client has kept from earlier rounds, as tensors by name. `kept` and
      `remember` read and write entries under a prefix; a `part` is a module beside the model.
    - `trainable`: the parameters of the model that its author has not frozen, in its order.
    - `train(plan, phase, objective)`: trains once more, on the stages of a plan of your own.
    - `score(samples)`: the loss of the model on samples, and the value of the leading metric.
    - `received`: the arrays of this round, by name.
    - `upload`: in `after_training`, the arrays that leave the client, with local privacy's noise.
    - `sends`: put the arrays here that the plan names in its own `sends`.
    """

    options: MethodSettings

    def setup(self) -> None:
        """Prepare what the other hooks use."""

    def personal(self) -> Slice:
        """Return the layers that never leave this client; a plan that uploads one is refused."""
        return ()

    def keeps(self, plan: Plan) -> list[str]:
        """Return the entries of the model that stay here: what was trained and not uploaded.

        Trained entries in the slice `plan.also_keep` stay even though they were uploaded.
        """
        trained = {key for stage in plan.stages for key in self.layout.keys_of(stage.layers)}
        kept = {*self.layout.personal(plan.upload), *self.layout.keys_of(plan.also_keep)}
        return sorted(kept & trained)

    def of_one_run(self) -> tuple[str, ...]:
        """Return prefixes of `state` that a device's next run, which starts anew, drops (none)."""
        return ()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of a batch (outputs [b, ...], targets [b, ...]): that of the task."""
        return self.task.loss(outputs, targets)

    def objective(self, phase: str) -> Objective:
        """Return what a training step minimizes in phase `train` or `finetune`."""
        return Objective(self.loss)

    def before_training(self, plan: Plan) -> Costs:
        """Change or measure the received model before it is trained; return what that cost."""
        return Costs()

    def last_local(self) -> Arrays:
        """Return the whole model that `score-last` scores: by default, as training has left it."""
        return take(self.model, self.layout.keys_of(self.layout.names))

    def after_training(self, plan: Plan) -> Costs:
        """Do what is left to do once the upload has been taken; return what that cost."""
        return Costs()

    def before_scoring(self, plan: Plan) -> Costs:
        """Change the received model before it is scored; return what that cost."""
        return Costs()

    def personalize(self, plan: Plan) -> TrainingStats:
        """Personalize the scored model (called if the plan has stages); return what was done.

        Do not train more than the stages say: the server checks the client's metrics against them.
        """
        return self.train(plan, "finetune", self.objective("finetune"))

    def adapt(self, plan: Plan) -> TrainingStats:
        """Personalize a newcomer (called in place of `personalize`); return what was done."""
        return self.personalize(plan)

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the outputs [b, ...] of `module` in eval mode; for classes, logits."""
        return in_eval_mode(self.module(), inputs)

    def module(self) -> nn.Module:
        """Return the model to predict with, also after a run: inputs (normalized) to outputs."""
        return self.model

    def extra_scores(self) -> dict[str, float]:
        """Return the values of the strategy's `figures`, for the model as it was first scored.

        Leave the model as you found it, because the client may go on to predict with it.
        """
        return {}

    def answer(self, question: str) -> list[float]:
        """Answer what the strategy asks before round 1 (`StrategyHooks.question`)."""
        raise ValueError(f"{question}: this method's client does not know this question")
