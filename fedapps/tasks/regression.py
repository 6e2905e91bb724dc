"""Regression: a sample's target is one float, or several."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from torch import Tensor
from torch.nn.functional import mse_loss

from fedapps.data.spec import FLOAT, PLAIN, Normalization, Spec
from fedapps.tasks.metric import Counts, Metric, ratio
from fedapps.tasks.task import Task, floats

ROUNDING = 1e-6  # relative; sums of squares and of magnitudes are rounded separately
# Differences of float32 numbers have such magnitudes (those from a mean can be half as small), so
# that no metric, and no mean of metrics, is infinite.
LARGEST = 2 * float(np.finfo(np.float32).max)
SMALLEST = float(np.finfo(np.float32).smallest_subnormal) / 4


MAE, MSE = (partial(ratio, of, "values") for of in ("absolute", "squared"))


def r2(counts: Counts) -> tuple[float, float]:
    """How much smaller the squared errors are than those of the client's own mean, over the latter.

    So clients together are measured against their own means. A client whose targets are all equal
    has none, but its errors count in that of all together.
    """
    return counts["spread"][0] - counts["squared"][0], counts["spread"][0]


class Regression(Task):
    """Mean squared error of targets that are scaled; metrics and predictions are in their unit.

    A model computes (target - mean) / deviation, so one learning rate fits years and milliseconds.
    """

    name = "regression"
    scales = True
    metrics = (
        Metric("mae", "mean absolute error", "MAE", MAE, "", False, bounds=(0.0, math.inf)),
        Metric("mse", "mean squared error", "MSE", MSE, "", False, bounds=(0.0, math.inf)),
        Metric("r2", "R2", "R2", r2, "", bounds=(-math.inf, 1.0)),
    )
    sums = ("absolute", "squared", "spread")
    of_targets = ("values", "spread")

    def __init__(self, scaling: Normalization = PLAIN) -> None:
        self.mean, self.deviation = scaling.tensors(Spec((1,)))

    def scaled(self, scaling: Normalization) -> "Regression":
        """Return the task for a model that computes targets scaled so."""
        return Regression(scaling)

    def check(self, targets: Spec, inputs: Spec) -> None:
        """Any numbers can be learned so: one, several, or several for each step of a series."""
        steps = len(targets.shape) == 2 and targets.shape[:1] == inputs.shape[:1]
        if len(targets.shape) > 1 and not steps:
            raise ValueError("targets must be numbers [N], [N, F], or [N, T, F] for T steps")

    def declared(self, shape: tuple[int, ...], count: int) -> tuple[Spec, Spec]:
        """`count` numbers a sample."""
        return floats(shape), Spec((count,) if count > 1 else ())

    def outputs(self, targets: Spec) -> Spec:
        """As many values as a target has."""
        return Spec(targets.shape or (1,))

    def learned(self, targets: Spec) -> Spec:
        """Return floats, also if the targets are whole numbers, such as years."""
        return Spec(targets.shape)

    def values(self, targets: np.ndarray) -> np.ndarray:
        """Return the targets as float32."""
        return targets.astype(FLOAT)

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error over all values of the batch, scaled."""
        return mse_loss(output.view_as(target), self._scaled(target))

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error of each sample, over its values, scaled."""
        errors = mse_loss(output.view_as(target), self._scaled(target), reduction="none")
        return errors.reshape(len(target), -1).mean(1)

    def predict(self, output: Tensor) -> Tensor:
        """Return the outputs in the targets' unit; [n] if a target is a single number."""
        found = output * self.deviation.to(output.device) + self.mean.to(output.device)
        return found.squeeze(1) if found.shape[1:] == (1,) else found

    def count(self, output: Tensor, target: Tensor) -> Counts:
        """Sum up errors and the targets' squared distances from their mean, in float64 [1]."""
        truth = target.double()
        error = self.predict(output).view_as(target).double() - truth
        apart = truth - truth[0]  # equal targets are then exactly 0, and so is their spread
        sums = {
            "absolute": error.abs().sum(),
            "squared": error.square().sum(),
            "spread": (apart - apart.mean(0)).square().sum(),
        }
        counts = {name: np.array([float(value)]) for name, value in sums.items()}
        return {"values": np.array([target.numel()])} | counts

    def _scaled(self, target: Tensor) -> Tensor:
        return (target - self.mean.to(target.device)) / self.deviation.to(target.device)

    def sizes(self, targets: Spec) -> Mapping[str, int]:
        """Every count is one number."""
        return dict.fromkeys(("values", "absolute", "squared", "spread"), 1)

    def check_counts(self, counts: Counts, samples: int) -> None:
        """Every sample has as many values, and the sum of squares can be that of the errors."""
        values, absolute, squared = (counts[n][0] for n in ("values", "absolute", "squared"))
        if not values or values % samples:
            raise ValueError(f"values = {values:g}: must be a multiple of {samples}")
        for name in ("squared", "spread"):
            total = counts[name][0]
            if total > values * LARGEST**2 or 0 < total < SMALLEST**2:
                raise ValueError(f"{name} = {total:g}: no float32 numbers give it")
        if absolute > math.sqrt(squared * values * (1 + ROUNDING)):  # no square is infinite
            raise ValueError(f"absolute = {absolute:g}: too large for squared = {squared:g}")
        if absolute**2 * (1 + ROUNDING) < squared:
            raise ValueError(f"absolute = {absolute:g}: too small for squared = {squared:g}")
