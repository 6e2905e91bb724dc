"""FedAS's client: it aligns the received body, and measures how much its model has learned."""

import torch
from torch import Tensor

from fedapps.method import (
    BaseClient,
    Costs,
    Objective,
    Plan,
    Slice,
    Stage,
    TrainingStats,
    chunks,
    put,
    replace,
    take,
)
from strategies.fedas import Settings


class FedASClient(BaseClient):
    """It keeps its head, and a copy of the body that it has uploaded last."""

    options: Settings

    def personal(self) -> Slice:
        """The head never leaves the client."""
        return self.layout.head

    def before_training(self, plan: Plan) -> Costs:
        """Align the received body, at the schedule of the round's learning rate."""
        lr = self.scheduled(self.options.align_lr, plan)
        stage = Stage(layers=self.layout.body, epochs=self.options.align_epochs, lr=lr)
        return self.align(replace(plan, stages=(stage,)), "align")

    def align(self, plan: Plan, phase: str) -> TrainingStats:
        """Pull features to the class means of the last own body's; a first time there are none."""
        kept = self.kept()
        if not kept or not self.options.align_epochs:
            return TrainingStats()
        received = take(self.model, self.layout.keys_of(self.layout.body))
        put(self.model, kept)
        _, self.prototypes, _, costs = self.class_features()
        put(self.model, received)
        # a step ends before the head
        unrun = -2 * self.workspace.trainer.profile.forward_macs(self.layout.head)
        done = self.train(plan, phase, Objective(self.apart, forward=self.run_body, macs=unrun))
        done.spend(costs)
        return done

    def apart(self, z: Tensor, labels: Tensor) -> Tensor:
        """Return the sum over classes of the mean squared distance of z [b, ...] to prototypes."""
        of_class = torch.bincount(labels)[labels]
        return ((z.flatten(1) - self.prototypes[labels]).square().mean(1) / of_class).sum()

    def after_training(self, plan: Plan) -> Costs:
        """Send the sum over batches of the squared norm of the loss's gradient, in eval mode."""
        inputs, labels = self.train_data
        size, names, trace = self.settings.batch_size, self.layout.names, 0.0
        for x, y in zip(chunks(inputs, size), chunks(labels, size), strict=True):
            loss = self.loss(self.model(x), y)
            found = torch.autograd.grad(loss, self.trainable, allow_unused=True)
            trace += sum(float(g.square().sum()) for g in found if g is not None)
        self.sends["fisher/trace"] = torch.tensor([trace]).numpy()
        return Costs(macs=self.workspace.trainer.profile.step_macs(names, names[0]) * len(labels))

    def personalize(self, plan: Plan) -> TrainingStats:
        """Align the received body in an evaluation."""
        return self.align(plan, "finetune")
