"""Scores of a model on a client's samples, computed in eval mode and in large batches."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedapps.models.layers import Slice
from fedapps.tasks import Counts, Task
from fedapps.training.batches import Samples, chunks
from fedapps.training.features import features


@dataclass(frozen=True)
class Score:
    """The mean loss, and the counts from which the task's metrics are made."""

    task: Task
    loss: float
    counts: Counts

    @classmethod
    def of(cls, task: Task, outputs: Tensor, targets: Tensor) -> "Score":
        """Score outputs [n, ...] for samples with these targets [n, ...]."""
        return cls(task, float(task.loss(outputs, targets)), task.count(outputs, targets))

    @property
    def value(self) -> float:
        """The value of the leading metric; NaN if it is not defined for these samples."""
        value = self.task.lead.of(self.counts)
        return float("nan") if value is None else value


@torch.no_grad()
def score(predict: Callable[[Tensor], Tensor], samples: Samples, task: Task) -> Score:
    """Score `predict` (inputs [b, ...] -> outputs [b, ...]) on `samples`."""
    inputs, targets = samples
    outputs = torch.cat([predict(chunk) for chunk in chunks(inputs)])
    return Score.of(task, outputs, targets)


@torch.no_grad()
def nearest_template(model: nn.Module, body: Slice, train: Samples, test: Samples) -> float:
    """Return the accuracy without the head (FedBABU, protocol of its authors).

    The template of a class is the mean body output over the client's training samples of that
    class. A test sample is assigned to the class with the nearest template (Euclidean distance).
    Classes without training samples on the client are left out.
    """
    known = train[1].unique()
    outputs = features(model, train[0], body).flatten(1)
    templates = torch.stack([outputs[train[1] == label].mean(0) for label in known])
    asked = features(model, test[0], body).flatten(1)
    # not as |a|^2 - 2ab + |b|^2, which loses all digits if features are large and close together
    distances = torch.cdist(asked, templates, compute_mode="donot_use_mm_for_euclid_dist")
    return float((known[distances.argmin(1)] == test[1]).double().mean())
