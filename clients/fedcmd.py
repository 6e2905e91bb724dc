"""FedCMD's client: the feature distribution transfer of its layers (Eq. 6)."""

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from fedapps.method import BaseClient, Costs, Plan, Slice, chunks, run, take
from strategies.fedcmd import Settings


class FedCMDClient(BaseClient):
    """It trains all layers with E epochs of SGD; in phase 1 it scores all layers but the first.

    With `weighting = cosine` it sends its personal layer in phase 2, only for the similarity.
    """

    options: Settings

    def personal(self) -> Slice:
        """Layers that it has kept once are personal: no plan may upload them for the mean."""
        kept = self.kept().keys() & self.layout.shared(self.layout.names)
        return self.layout.layers_of(kept)

    def of_one_run(self) -> tuple[str, ...]:
        """If clients vote, drop the model: phase 1 of the next run exchanges all layers again."""
        return () if self.options.layer else ("model/",)

    def after_training(self, plan: Plan) -> Costs:
        """Send what the plan asks for: scores in phase 1, the parameters of l* in phase 2."""
        if "phi/layer" in plan.sends:
            layout = self.layout
            personal = set(layout.shared(layout.names)).difference(layout.shared(plan.upload))
            phi = take(self.model, sorted(personal & layout.parameters)).values()
            self.sends["phi/layer"] = np.concatenate([array.ravel() for array in phi])
        if "scores/s" not in plan.sends:
            return Costs()
        z_x, *z = self.gaussians()
        gaps = w2(z, self.label_gaussian()) - w2(z, z_x)
        self.sends["scores/s"] = np.abs(np.diff(gaps)).astype(np.float32)
        return self.forward_costs(len(self.train_data[1]), self.layout.names)

    @torch.no_grad()
    def gaussians(self) -> np.ndarray:
        """Return z_x and every z_l as [layers + 1, 2]: mean and standard deviation.

        `scaling = minmax` scales values to [0, 1] first; a constant then has mean and deviation 0.
        z_l is what the next layer receives, in eval mode.
        """
        self.model.eval()
        parts = []
        for x in chunks(self.train_data[0]):
            seen = [moments(x)]
            for layer in self.layout.names:
                x = run(self.model, x, (layer,))
                seen.append(moments(x))
            parts.append(seen)
        low, high = np.min(parts, 0)[:, 0], np.max(parts, 0)[:, 1]
        size, total, squares = np.sum(parts, 0)[:, 2:].T
        mean, width = total / size, np.where(high > low, high - low, np.inf)
        deviation = np.sqrt(np.maximum(0.0, squares / size - mean**2))
        if self.options.scaling == "none":
            return np.stack([mean, deviation], 1)
        return np.stack([mean - low, deviation], 1) / width[:, None]

    def label_gaussian(self) -> np.ndarray:
        """Return z_y, from labels divided by C - 1 or from one-hot vectors."""
        classes, labels = self.workspace.dataset.classes, self.train_data[1].cpu().numpy()
        onehot = self.options.label_encoding == "onehot"
        values = np.eye(classes)[labels] if onehot else labels / (classes - 1)
        return np.array([values.mean(), values.std()])


def moments(x: Tensor) -> tuple[float, ...]:
    """Return the least and the largest value, count, sum and sum of squares (float64)."""
    dense = (
        x.permute(0, 2, 3, 1) if x.dim() == 4 else x
    )  # the memory order of channels last: much faster
    low, high = torch.aminmax(dense)
    flat = dense.reshape(-1).double()
    return float(low), float(high), len(flat), float(flat.sum()), float(flat.dot(flat))


def w2(a: ArrayLike, b: ArrayLike) -> np.ndarray:
    """Wasserstein-2 distances of one-dimensional Gaussians; the last axis is (mean, deviation)."""
    return np.linalg.norm(np.subtract(a, b), axis=-1)
