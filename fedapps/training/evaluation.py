"""Scores of a model on a client's samples, computed in eval mode and in large batches."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedapps.training.batches import Samples, chunks


@dataclass(frozen=True)
class Score:
    """The mean loss and, for each class, the number of samples and of correct predictions."""

    loss: float
    total: np.ndarray
    correct: np.ndarray

    @property
    def accuracy(self) -> float:
        """Share of samples that are predicted correctly."""
        return float(self.correct.sum() / self.total.sum())


@torch.no_grad()
def score(predict: Callable[[Tensor], Tensor], samples: Samples, classes: int) -> Score:
    """Score `predict` (images [b, C, H, W] -> logits [b, classes]) on `samples`."""
    images, labels = samples
    logits = torch.cat([predict(chunk) for chunk in chunks(images)])
    right = labels[logits.argmax(1) == labels]
    return Score(
        loss=float(cross_entropy(logits, labels)),
        total=np.bincount(labels.cpu().numpy(), minlength=classes),
        correct=np.bincount(right.cpu().numpy(), minlength=classes),
    )
