"""FedProto's client: its loss pulls features towards the prototypes of their classes."""

import math

import torch
from torch import Tensor, nn

from fedapps.method import BaseClient, Costs, CutModel, Objective, Plan, Slice
from strategies.fedproto import Settings


class Nearest(CutModel):
    """A body that predicts with -||f(x) - C^(j)||^2, the negative distance to prototype j."""

    prototypes: Tensor
    known: Tensor

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
    """All layers are personal; it minimizes Equation 7 by E epochs of SGD.

    As in the authors' code, each sample's features are pulled to the prototype of its class; in
    the paper it is their mean, the client's own prototype.
    """

    options: Settings

    def setup(self) -> None:
        """No class has a prototype yet."""
        classes, width = self.workspace.dataset.classes, math.prod(self.workspace.feature_shape)
        self.prototypes = torch.zeros(classes, width)
        self.known = torch.zeros(classes, dtype=torch.bool)

    def personal(self) -> Slice:
        """Return all layers: a plan that uploads one is refused."""
        return self.layout.names

    def before_training(self, plan: Plan) -> Costs:
        """Make tensors of the prototypes; `known` tells which classes have one."""
        self.prototypes, self.known = self.tensor("p/mean"), self.tensor("p/count") > 0
        return Costs()

    before_scoring = before_training

    def objective(self, phase: str) -> Objective:
        """The loss of the head, and the pull of the features."""
        return self.with_features(self.pulled)

    def pulled(self, logits: Tensor, labels: Tensor, z: Tensor) -> Tensor:
        """Add lambda times the mean squared distance to prototypes; 0 for a class without one."""
        apart = (z - self.prototypes[labels]).square().mean(1) * self.known[labels]
        return self.loss(logits, labels) + self.options.lambda_ * apart.mean()

    def after_training(self, plan: Plan) -> Costs:
        """Send the mean features of each class (Equation 3), and how many samples it has."""
        _, mean, count, costs = self.class_features()
        self.sends |= {"p/mean": mean.cpu().numpy(), "p/count": count.cpu().numpy()}
        return costs

    def module(self) -> nn.Module:
        """The body with the prototypes, or the model with its head."""
        if self.options.predict == "head":
            return self.model
        return Nearest(self.model, self.layout, prototypes=self.prototypes, known=self.known)
