"""FedPAC's client: features near centroids, and statistics for the mixture of heads."""

import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from fedapps.method import BaseClient, Costs, Objective, Plan, Slice, features, run
from strategies.fedpac import Settings


class FedPACClient(BaseClient):
    """It trains the head on the frozen body, then the body with the head frozen (Algorithm 1)."""

    options: Settings

    def before_training(self, plan: Plan) -> Costs:
        """Measure the received body: class means, and v = sum_k p_k E||f||^2 - p_k^2 ||mu_k||^2."""
        found, means, count = self.measured()
        n, device = count.sum(), found.device
        p = count / n
        v = found.square().sum() / n - (p**2 * means.square().sum(1)).sum()
        self.sends["first/mean"], self.sends["first/v"] = (
            means.cpu().numpy(),
            (v / n).cpu().numpy()[None],
        )
        known = torch.tensor(self.received["centroids/known"], device=device) > 0
        shared = torch.tensor(self.received["centroids/mean"], device=device)
        self.pulls = bool(known.any())
        self.centroids = torch.where(known[:, None], shared, means)
        return self.cost()

    def objective(self, phase: str) -> Objective:
        """Training pulls features; the head of an evaluation has its plain loss."""
        if phase != "train":
            return Objective(self.loss)
        return Objective(self.pulled, forward=self.noted)

    def noted(self, model: nn.Module, x: Tensor, layers: Slice) -> Tensor:
        """Return logits, and note the features."""
        head = self.layout.head
        self.features = run(model, x, tuple(name for name in layers if name not in head))
        return run(model, self.features, head)

    def pulled(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Add lambda times the mean squared difference from the centroids (Eq. 7)."""
        loss = self.loss(logits, labels)
        if not self.pulls:  # in the first round
            return loss
        return loss + self.options.lambda_ * mse_loss(
            self.features.flatten(1), self.centroids[labels]
        )

    def after_training(self, plan: Plan) -> Costs:
        """Send the class means of the trained body, and the numbers of samples."""
        _, means, count = self.measured()
        self.sends["own/mean"], self.sends["own/count"] = means.cpu().numpy(), count.cpu().numpy()
        return self.cost()

    def measured(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return features [n, d] of the training samples, their class means, and the counts."""
        images, labels = self.train_data
        found = features(self.model, images, self.layout.body).flatten(1)
        count = torch.bincount(labels, minlength=self.workspace.dataset.classes).to(found.dtype)
        total = found.new_zeros(len(count), found.shape[1]).index_add_(0, labels, found)
        return found, total / count.clamp(min=1)[:, None], count

    def cost(self) -> Costs:
        """The features of all training samples."""
        macs = self.workspace.trainer.profile.forward_macs(self.layout.body)
        return Costs(macs=macs * len(self.train_data[1]))
