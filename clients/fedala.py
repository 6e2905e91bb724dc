"""FedALA's client: adaptive local aggregation, lines 6 to 16 of the paper's Algorithm 1."""

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.method import (
    Backward,
    BaseClient,
    Costs,
    Objective,
    Plan,
    Samples,
    Stage,
    TrainingStats,
    generator,
    log,
    put,
    replace,
    take,
)
from strategies.fedala import Settings


class FedALAClient(BaseClient):
    """It keeps its own model theta_l and the weights W, both for the top p layers only."""

    options: Settings
    last_loss = torch.zeros(())

    def setup(self) -> None:
        """Find the top p layers; W mixes their parameters, but no BatchNorm statistics."""
        self.top = self.layout.names[-self.options.ala_layers :]
        self.keys = self.layout.keys_of(self.top)

    def before_training(self, plan: Plan) -> Costs:
        """Mix the two models, learn W, and keep W."""
        self.before_scoring(plan)
        done = self.personalize(plan)
        self.remember("W/", {key: W.detach().cpu().numpy() for key, (*_, W) in self.mixed.items()})
        return done

    def after_training(self, plan: Plan) -> Costs:
        """Keep theta_l."""
        self.remember("theta_l/", take(self.model, sorted({*self.keys} & self.layout.parameters)))
        return Costs()

    def before_scoring(self, plan: Plan) -> Costs:
        """Mix with the kept W, at first 1; without a theta_l the model stays theta_g."""
        self.mixed: dict[str, tuple[nn.Parameter, Tensor, Tensor, nn.Parameter]] = {}
        for key, own in self.kept("theta_l/").items():
            theta = self.model.get_parameter(key)  # the mixture; now it holds theta_g
            W = nn.Parameter(theta.new_tensor(self.kept("W/").get(key, np.ones_like(own))))
            self.mixed[key] = theta, theta.new_tensor(own), theta.detach().clone(), W
        self.mix(self.model)
        return Costs()

    def mix(self, model: nn.Module) -> None:
        """theta = theta_l + (theta_g - theta_l) * W; lerp is exact where W is 0 or 1."""
        for theta, theta_l, theta_g, W in self.mixed.values():
            theta.data.copy_(torch.lerp(theta_l, theta_g, W.data.clamp_(0, 1)))

    def gradients(self, backward: Backward, batches: list[Samples]) -> None:
        """Compute G, and from it the gradient G * (theta_g - theta_l) of W; only W takes a step."""
        backward(batches[0])
        for theta, theta_l, theta_g, W in self.mixed.values():
            if theta.grad is not None:
                W.grad, theta.grad = theta.grad * (theta_g - theta_l), None

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss, and note it: `personalize` records that of the last batch."""
        self.last_loss = super().loss(logits, labels)
        return self.last_loss

    def personalize(self, plan: Plan) -> TrainingStats:
        """Learn W on s % of the data: the first time until the loss has converged, later one epoch.

        Our choices: the samples are drawn at random; learning ends after `max-epochs` at the
        latest; BatchNorm statistics do not change.
        """
        s, done, losses = self.options, TrainingStats(), list[float]()
        (images, labels), received = self.train_data, take(self.model, self.keys)
        draw, n = generator(self.settings.seed, "fedala", plan.round, self.client), len(labels)
        sample = draw.choice(n, max(1, n * s.sample_percent // 100), False)
        plan = replace(plan, stages=(Stage(layers=self.top, epochs=1, lr=s.ala_lr),))
        W = tuple(W for *_, W in self.mixed.values())
        step = Objective(self.loss, gradients=self.gradients, parameters=W, after_step=self.mix)
        most = (1 if self.kept("W/") else s.max_epochs) if self.mixed else 0
        while len(losses) < most and (len(losses) <= 10 or np.std(losses[-10:]) >= s.threshold):
            done.spend(self.train(plan, "ala", step, data=(images[sample], labels[sample])))
            losses.append(self.last_loss.item())
        if 1 < len(losses) == s.max_epochs:
            log.warning("client %d: learning W ended after max-epochs", self.client)
        put(self.model, {k: received[k] for k in self.keys if k not in self.layout.parameters})
        return done
