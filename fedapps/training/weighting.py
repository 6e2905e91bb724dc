"""Training on samples with weights of their own (`Objective.weights`)."""

from dataclasses import replace

import torch
from torch import Tensor

from fedapps.training.batches import Samples
from fedapps.training.objective import Loss, Objective


def by_weight(objective: Objective, samples: Samples, losses: Loss) -> tuple[Objective, Samples]:
    """Return an objective without `weights`, and samples for it; `losses` are those of each sample.

    In place of targets, the samples have their places, by which the loss finds weight and target.
    """
    weights, (inputs, targets) = objective.weights, samples
    if weights is None:
        return objective, samples

    def loss(outputs: Tensor, places: Tensor) -> Tensor:
        return (weights[places] * losses(outputs, targets[places])).mean()

    places = torch.arange(len(targets), device=targets.device)
    return replace(objective, loss=loss, weights=None), (inputs, places)
