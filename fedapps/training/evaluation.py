"""Scores of a model on a client's samples, computed in eval mode and in large batches."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fedapps.tasks import Counts, Task
from fedapps.training.batches import Samples, chunks


@dataclass(frozen=True)
class Score:
    """The mean loss, and the counts from which the task's metrics are made."""

    task: Task
    loss: float
    counts: Counts

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
    return Score(task, float(task.loss(outputs, targets)), task.count(outputs, targets))
