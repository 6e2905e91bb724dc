"""FedPAC's client: features near centroids, and statistics for the mixture of heads."""

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from fedapps.method import BaseClient, Costs, Objective, Plan
from strategies.fedpac import Settings


class FedPACClient(BaseClient):
    """It trains the head on the frozen body, then the body with the head frozen (Algorithm 1)."""

    options: Settings

    def before_training(self, plan: Plan) -> Costs:
        """Measure the received body: class means, and v = sum_k p_k E||f||^2 - p_k^2 ||mu_k||^2."""
        z, means, count, costs = self.class_features()
        n = count.sum()
        v = z.square().sum() / n - ((count / n) ** 2 * means.square().sum(1)).sum()
        self.sends |= {"first/mean": means.cpu().numpy(), "first/v": (v / n).cpu().numpy()[None]}
        known = self.tensor("centroids/count") > 0
        self.pull = self.options.lambda_ * bool(known.any())  # in the first round there is none
        self.centroids = torch.where(known[:, None], self.tensor("centroids/mean"), means)
        return costs

    def objective(self, phase: str) -> Objective:
        """Training pulls features; the head of an evaluation has its plain loss."""
        return self.with_features(self.pulled) if phase == "train" else Objective(self.loss)

    def pulled(self, logits: Tensor, labels: Tensor, z: Tensor) -> Tensor:
        """Add lambda times the mean squared difference of features from centroids (Eq. 7)."""
        return self.loss(logits, labels) + self.pull * mse_loss(z, self.centroids[labels])

    def after_training(self, plan: Plan) -> Costs:
        """Send the class means of the trained body, and the numbers of samples."""
        _, means, count, costs = self.class_features()
        self.sends |= {"own/mean": means.cpu().numpy(), "own/count": count.cpu().numpy()}
        return costs
