"""APFL's client: Algorithm 1 and Section 4.2 of Deng et al., arXiv 2003.13461, 2020."""

import numpy as np
import torch
from torch import nn

from fedapps.method import (
    Backward,
    BaseClient,
    Costs,
    Objective,
    Plan,
    Samples,
    TrainingStats,
    put,
    restored,
)
from strategies.apfl import Settings


class APFLClient(BaseClient):
    """It trains w_i on its loss, and v_i and alpha_i on that of alpha_i v_i + (1 - alpha_i) w_i.

    Our choices: BatchNorm statistics are not mixed, but the mixture gathers its own; both
    gradients of a step use the same dropout masks; v_i has a new optimizer in every round.
    """

    options: Settings

    def setup(self) -> None:
        """Load v_i and alpha_i of the client's last round; at first v_i is the initial model."""
        kept = self.workspace.initial | {"alpha": self.options.initial_alpha} | self.kept("mine/")
        self.alpha = float(kept["alpha"])
        model = self.model.state_dict(keep_vars=True)
        self.w = {key: model[key] for key in self.layout.keys_of(self.layout.names)}
        self.v = {key: nn.Parameter(w.new_tensor(kept[key])) for key, w in self.w.items()}
        self.trained = [key for key in self.w if key in self.layout.parameters]

    @torch.no_grad()
    def mix(self) -> None:
        """Turn w_i into alpha_i v_i + (1 - alpha_i) w_i, with the mixture's own statistics."""
        for key, w in self.w.items():
            alpha = self.alpha if key in self.trained else 1.0
            w.copy_(alpha * self.v[key] + (1 - alpha) * w)

    def before_training(self, plan: Plan) -> Costs:
        """Note the learning rate, and whether the first batch updates alpha_i."""
        self.lr, self.learns = plan.stages[0].lr, self.options.adaptive
        return Costs()

    def objective(self, phase: str) -> Objective:
        """Train v_i along with the model, whose parameters are w_i."""
        v = tuple(self.v[key] for key in self.trained)
        return Objective(self.loss, gradients=self.gradients, parameters=v, after_step=self.step)

    def gradients(self, backward: Backward, batches: list[Samples]) -> None:
        """Compute g for w_i, alpha_i G for v_i and d = <v_i - w_i, G>, all before the step."""
        gpus = [self.workspace.torch_device] if self.workspace.torch_device.type == "cuda" else []
        with torch.random.fork_rng(gpus), restored(self.w.values()):
            self.mix()
            backward(batches[0])  # G
            for key in self.w.keys() - self.trained:
                self.v[key].data.copy_(self.w[key])
        self.d = 0.0
        for key in self.trained:
            w, v = self.w[key], self.v[key]
            if w.grad is None:  # the batch did not use it, as with branches that are skipped
                continue
            self.d += torch.sum((v - w) * w.grad).item()
            v.grad, w.grad = self.alpha * w.grad, None
        backward(batches[0])  # g

    def step(self, model: nn.Module) -> None:
        """Update alpha_i, if it is learned at this batch, with the learning rate of w_i and v_i."""
        if self.learns:
            self.alpha = min(max(self.alpha - self.lr * self.d, 0.0), 1.0)
            self.learns = self.options.alpha_steps == "batch"

    def last_local(self) -> dict[str, np.ndarray]:
        """Mix v_i with the w_i just trained here: the authors validate right after training."""
        with restored(self.w.values()):
            self.mix()
            return {key: w.detach().cpu().numpy().copy() for key, w in self.w.items()}

    def after_training(self, plan: Plan) -> Costs:
        """Keep v_i and alpha_i."""
        v = {key: v.detach().cpu().numpy() for key, v in self.v.items()}
        self.remember("mine/", v | {"alpha": np.array(self.alpha)})
        return Costs()

    def before_scoring(self, plan: Plan) -> Costs:
        """Score the received w alone, then replace it by the mixture; a newcomer's v_i is w."""
        self.model.eval()
        self.shared = self.score(self.test_data)
        if plan.newcomer:
            for key, w in self.w.items():
                self.v[key].data.copy_(w)
        self.mix()
        return Costs()

    def adapt(self, plan: Plan) -> TrainingStats:
        """Train w_i, v_i and alpha_i as in a round, and mix."""
        put(self.model, self.received)
        self.before_training(plan)
        done = self.train(plan, "finetune", self.objective("train"))
        self.mix()
        return done

    def extra_scores(self) -> dict[str, float]:
        """The score of w alone."""
        return {"global": self.shared.value}
