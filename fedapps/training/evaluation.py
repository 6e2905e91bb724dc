"""Scores of a model, and outputs of its layers, computed in eval mode and in large batches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.models.layers import Slice, in_sequence, run
from fedapps.tasks import Counts, Task
from fedapps.training.batches import Samples, chunks

MOST = 2**26  # bytes of outputs that are counted at once


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

    @classmethod
    def joined(cls, parts: Sequence[tuple["Score", int]]) -> "Score":
        """Join the scores of parts of some samples, each with its number of samples."""
        (first, size), total = parts[0], sum(size for _, size in parts)
        if size == total:
            return first
        loss = sum(size * part.loss for part, size in parts) / total
        counts = {
            key: np.sum([part.counts[key] for part, _ in parts], axis=0) for key in first.counts
        }
        return cls(first.task, loss, counts)

    @property
    def value(self) -> float:
        """The value of the leading metric; NaN if it is not defined for these samples."""
        value = self.task.lead.of(self.counts)
        return float("nan") if value is None else value


@torch.no_grad()
def score(predict: Callable[[Tensor], Tensor], samples: Samples, task: Task) -> Score:
    """Score `predict` (inputs [b, ...] -> outputs [b, ...]) on `samples`.

    More than `MOST` bytes of outputs are counted and dropped, unless they are as many values as the
    targets: those of a regression, whose spread is that of all samples together.
    """
    inputs, targets = samples
    parts, held, done = list[tuple[Score, int]](), list[Tensor](), 0
    for chunk in chunks(inputs):
        held.append(_checked(predict(chunk), len(chunk), task))
        size = sum(map(len, held))
        whole, truth = done + size == len(inputs), targets[done : done + size]
        large = sum(outputs.nbytes for outputs in held) > MOST
        if whole or (large and sum(outputs.numel() for outputs in held) > truth.numel()):
            parts.append((Score.of(task, torch.cat(held), truth), size))
            held, done = [], done + size
    return Score.joined(parts)


def _checked(outputs: object, size: int, task: Task) -> Tensor:
    """Return the outputs of a chunk; raises TypeError if they are no outputs of its samples."""
    found, least = f"a {type(outputs).__name__}", 1 + task.has_classes
    if isinstance(outputs, Tensor):
        as_float = outputs.is_floating_point() and outputs.dim() >= least
        if as_float and len(outputs) == size:
            return outputs
        found = f"{outputs.dtype} {list(outputs.shape)}"
    right = f"[{size}, classes], such as logits" if task.has_classes else f"[{size}, ...]"
    raise TypeError(
        f"predict (or what it runs) returned {found}: must return a float tensor {right}"
    )


@torch.no_grad()
def features(model: nn.Module, inputs: Tensor, layers: Slice) -> Tensor:
    """Return the outputs of the given leading layers, in eval mode, for all inputs."""
    in_sequence(model, layers).eval()
    return torch.cat([run(model, chunk, layers) for chunk in chunks(inputs)])


@torch.no_grad()
def nearest_template(
    model: nn.Module, body: Slice, train: Samples, inputs: Tensor, classes: int
) -> Tensor:
    """Return outputs [n, classes] for inputs [n, ...] without the head (FedBABU, as its authors).

    The template of a class is the mean body output over the client's training samples of that
    class. The output for a class is minus the Euclidean distance to its template, so the nearest
    one is predicted; it is minus infinity if the client has no training samples of the class.
    """
    known = train[1].unique()
    outputs = features(model, train[0], body).flatten(1)
    templates = torch.stack([outputs[train[1] == label].mean(0) for label in known])
    asked = features(model, inputs, body).flatten(1)
    # not as |a|^2 - 2ab + |b|^2, which loses all digits if features are large and close together
    distances = torch.cdist(asked, templates, compute_mode="donot_use_mm_for_euclid_dist")
    found = distances.new_full((len(asked), classes), -torch.inf)
    found[:, known] = -distances
    return found
