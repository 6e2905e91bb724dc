"""FedProto's client: its loss pulls features towards the prototypes of their classes."""

import math

import torch
from torch import Tensor, nn

from fedapps.method import BaseClient, Costs, Objective, Plan, Slice, features, in_sequence, run
from strategies.fedproto import Settings


class Nearest(nn.Module):
    """A body that predicts with -||f(x) - C^(j)||^2, the negative distance to prototype j."""

    prototypes: Tensor
    known: Tensor

    def __init__(self, body: nn.Module, head: nn.Module, prototypes: Tensor, known: Tensor) -> None:
        super().__init__()
        self.body, self.head = body, head
        self.register_buffer("prototypes", prototypes)
        self.register_buffer("known", known)

    def forward(self, x: Tensor) -> Tensor:
        """Return [b, classes]; a class without prototype is as far away as the farthest one.

        As long as no class has a prototype, the head predicts.
        """
        z = self.body(x)
        apart = (z.flatten(1)[:, None] - self.prototypes).square().sum(2)
        farthest = apart.masked_fill(~self.known, -torch.inf).amax(1, keepdim=True)
        near = -torch.where(self.known, apart, farthest)
        return torch.where(self.known.any(), near, self.head(z))


class FedProtoClient(BaseClient):
    """All layers are personal; it minimizes Equation 7 with E epochs of SGD."""

    options: Settings

    def setup(self) -> None:
        """No class has a prototype yet."""
        width = math.prod(self.workspace.trainer.profile.shapes.get(self.layout.head[0], ()))
        self.prototypes = torch.zeros(self.workspace.dataset.classes, width)
        self.known = torch.zeros(self.workspace.dataset.classes, dtype=torch.bool)

    def personal(self) -> Slice:
        """Return all layers: a plan that uploads one is refused."""
        return self.layout.names

    def before_training(self, plan: Plan) -> Costs:
        """Make tensors of the prototypes; `known` tells which classes have one."""
        device = self.workspace.torch_device
        self.prototypes = torch.tensor(self.received["p/mean"], device=device)
        self.known = torch.tensor(self.received["p/count"] > 0, device=device)
        return Costs()

    before_scoring = before_training

    def objective(self, phase: str) -> Objective:
        """The loss of the head, and the pull of the features."""
        return Objective(self.pulled, forward=self.noted)

    def noted(self, model: nn.Module, x: Tensor, layers: Slice) -> Tensor:
        """Return logits, and note the features; frozen layers may already have been run."""
        head = self.layout.head
        z = run(model, x, tuple(name for name in layers if name not in head))
        self.z = z.flatten(1)
        return run(model, z, head)

    def pulled(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Add lambda times the mean squared distance to prototypes; 0 for a class without one."""
        apart = (self.z - self.prototypes[labels]).square().mean(1) * self.known[labels]
        return self.loss(logits, labels) + self.options.lambda_ * apart.mean()

    def after_training(self, plan: Plan) -> Costs:
        """Send the mean features of each class (Equation 3), and how many samples it has."""
        inputs, labels = self.train_data
        z = features(self.model, inputs, self.layout.body).flatten(1)
        count = torch.bincount(labels, minlength=len(self.known)).float()
        total = torch.zeros_like(self.prototypes).index_add_(0, labels, z)
        self.sends["p/mean"] = (total / count.clamp(min=1)[:, None]).cpu().numpy()
        self.sends["p/count"] = count.cpu().numpy()
        macs = self.workspace.trainer.profile.forward_macs(self.layout.body)
        return Costs(macs=macs * len(labels))

    def module(self) -> nn.Module:
        """The body with the prototypes, or the model with its head."""
        if self.options.predict == "head":
            return self.model
        body, head = (in_sequence(self.model, s) for s in (self.layout.body, self.layout.head))
        return Nearest(body, head, self.prototypes, self.known)

    def predict(self, inputs: Tensor) -> Tensor:
        """Negative distances to prototypes, or the head's logits."""
        outputs: Tensor = self.module()(inputs)
        return outputs
