"""FedCMD's client: the feature distribution transfer of its layers (Eq. 6)."""

import numpy as np
import torch
from torch import Tensor

from fedapps.client import BaseClient
from fedapps.layers import run
from fedapps.plan import Plan
from fedapps.training import Trained, chunks

Gaussian = tuple[float, float]  # mean and standard deviation


class FedCMDClient(BaseClient):
    """E epochs of SGD on all layers; in phase 1 it scores every layer but the first.

    The personal layer leaves it once for all to choose the model that phase 2 starts from, and
    with `weighting = cosine` in every round, for the similarity alone.
    """

    def after_training(self, plan: Plan) -> Trained:
        """Send s_l = |(W2(z_l, z_y) - W2(z_l, z_x)) - (the same of layer l - 1)|."""
        if "scores/s" not in plan.sends:
            return Trained()
        outputs, z_x, z_y = self.layer_gaussians(), self.input_gaussian(), self.label_gaussian()
        gaps = np.array([w2(z, z_y) - w2(z, z_x) for z in outputs])
        self.sends["scores/s"] = np.abs(np.diff(gaps)).astype(np.float32)
        forward = self.workspace.trainer.profile.forward_macs(self.layout.names)
        return Trained(macs=len(self.train_data[1]) * forward)

    @torch.no_grad()
    def layer_gaussians(self) -> list[Gaussian]:
        """z_l of every layer: what the next one receives, in eval mode, scaled to [0, 1]."""
        self.model.eval()
        moments = {name: Moments() for name in self.layout.names}
        for x in chunks(self.train_data[0]):
            for name, moment in moments.items():
                x = run(self.model, x, (name,))
                moment.add(x)
        return [moment.gaussian() for moment in moments.values()]

    def input_gaussian(self) -> Gaussian:
        """z_x: the inputs, scaled to [0, 1]."""
        moments = Moments()
        moments.add(self.train_data[0])
        return moments.gaussian()

    def label_gaussian(self) -> Gaussian:
        """z_y: labels over C - 1, or one-hot vectors."""
        classes = self.workspace.dataset.classes
        if self.options.label_encoding == "onehot":
            return 1 / classes, float(np.sqrt(1 / classes - 1 / classes**2))
        labels = self.train_data[1].double() / (classes - 1)
        return float(labels.mean()), float(labels.std(correction=0))


class Moments:
    """Range, sum and sum of squares (float64) of values that come in parts."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.size, self.total, self.squares = 0, 0.0, 0.0

    def add(self, values: Tensor) -> None:
        """Take in more values."""
        if values.dim() == 4:  # channels last lies dense in this order, which is much faster
            values = values.permute(0, 2, 3, 1)
        low, high = torch.aminmax(values)
        flat = values.reshape(-1).double()
        self.low, self.high = min(self.low, float(low)), max(self.high, float(high))
        self.total += float(flat.sum())
        self.squares += float(flat.dot(flat))
        self.size += len(flat)

    def gaussian(self) -> Gaussian:
        """Mean and deviation of the values scaled to [0, 1]; of a constant: 0 and 0."""
        width = self.high - self.low
        if not width:
            return 0.0, 0.0
        mean = self.total / self.size
        deviation = np.sqrt(max(0.0, self.squares / self.size - mean**2))
        return (mean - self.low) / width, float(deviation) / width


def w2(a: Gaussian, b: Gaussian) -> float:
    """Wasserstein-2 distance of two Gaussians on the line."""
    return float(np.hypot(a[0] - b[0], a[1] - b[1]))
