"""Batches and gradients of split learning, and the rules that clients must keep in a round."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median_low

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedapps.core.errors import DIVERGED, RunError
from fedapps.split.frames import FRAME_HEADER_BYTES, Frame
from fedapps.wire.checks import LARGEST, invalid_values

LARGEST_FRAME = 2**31 - 1 - FRAME_HEADER_BYTES  # bytes of tensors; gRPC's limits are C ints
LARGEST_LOSS = 100.0  # limit of a batch's loss, as a multiple of the loss of uniform guessing


@dataclass(frozen=True)
class Smashed:
    """A batch as the server gets it: `data` [b, ...] is the output of the client's layers.

    `data` is a leaf tensor, which collects the gradient. `labels` are int64 [b]. `step` is
    (epoch, batch).
    """

    client: int
    step: tuple[int, int]
    data: Tensor
    labels: Tensor

    def gradient(self, loss: Tensor) -> "BatchGradient":
        """Return the answer to the client, after `loss.backward()`."""
        assert self.data.grad is not None
        return BatchGradient(self.data.grad, float(loss.detach()))


@dataclass(frozen=True)
class BatchGradient:
    """The server's answer to a batch: the gradient with respect to the smashed data, and the loss.

    `rejection` says why the server did not train on the batch; it is empty if the server did.
    """

    gradient: Tensor
    loss: float
    rejection: str = ""


BatchGradients = dict[int, BatchGradient]  # by client


@dataclass(frozen=True, kw_only=True)
class Rules:
    """The rules of a round: which clients send how many batches of which shape, and how soon.

    `shapes[client]` is the shape of one smashed sample. `batches[client]` is the largest number of
    batches in each of the `epochs`. A batch has at least `least` samples: of a single one, some
    BatchNorms of the server's layers cannot make statistics. `relays` has the names and shapes of
    the arrays that a client sends when it is done. No magnitude may be above `largest`. The three
    timeouts are in seconds: to join, between batches, and for the whole round.
    """

    shapes: Mapping[int, tuple[int, ...]]
    batches: Mapping[int, int]
    epochs: int
    classes: int
    batch_size: int
    dtype: torch.dtype
    torch_device: torch.device
    least: int
    join_timeout: float
    step_timeout: float
    round_timeout: float
    largest: float = LARGEST
    relays: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def invalid_layers(self, layers: dict[str, Tensor]) -> str:
        """Say what is wrong with the layers that a client sends at its end; empty if nothing."""
        if {key: tuple(value.shape) for key, value in layers.items()} != self.relays:
            return "handed over other arrays than those of its layers"
        for key, value in layers.items():
            if value.dtype != self.dtype:
                return f"handed over {key} as {value.dtype}"
            if problem := invalid_values(value.numpy(), self.largest):
                return f"{DIVERGED}: handed over {key}, {problem}"
        return ""

    def invalid_batch(
        self, frame: Frame, tensors: dict[str, Tensor], last: tuple[int, int] | None
    ) -> str:
        """Say what is wrong with a batch; empty if nothing. `last` is the previous batch's step."""
        client, (epoch, batch) = frame.client, frame.step
        if not (0 <= epoch < self.epochs and 0 <= batch < self.batches[client]):
            most = f"{self.epochs} epochs of {self.batches[client]} batches"
            return f"sent batch {batch} of epoch {epoch}: it has {most}"
        if not (last or (-1, 0)) < frame.step:
            return f"sent batch {batch} of epoch {epoch} out of turn"
        if tensors.keys() != {"data", "labels"}:
            return f"sent {', '.join(tensors) or 'nothing'}: expected data and labels"
        data, labels = tensors["data"], tensors["labels"]
        shape = (len(labels), *self.shapes[client]) if labels.dim() == 1 else None
        fits = shape is not None and self.least <= len(labels) <= self.batch_size
        if not fits or data.shape != shape:
            return (
                f"sent data {tuple(data.shape)} and labels {tuple(labels.shape)}: expected "
                f"{self.least} to {self.batch_size} samples of {self.shapes[client]}"
            )
        if data.dtype != self.dtype or labels.dtype != torch.int64:
            return f"sent data as {data.dtype} and labels as {labels.dtype}"
        if problem := invalid_values(data.numpy(), self.largest):
            return f"{DIVERGED}: sent smashed data that are {problem}"
        if labels.min() < 0 or labels.max() >= self.classes:
            return f"sent a label outside 0..{self.classes - 1}"
        return ""


def implausible(logits: Tensor, wave: Sequence[Smashed]) -> BatchGradients:
    """Return a rejection for each batch of a wave with an implausible loss; usually there is none.

    `logits` [n, classes] are those of all samples of the wave, in its order. Features that are far
    too large give a loss that is far too large, and one step along its gradient would ruin the
    server's layers for everybody. So a batch is rejected unless its loss is below `LARGEST_LOSS`
    times ln(classes).
    """
    labels = torch.cat([smashed.labels for smashed in wave])
    losses = cross_entropy(logits.detach(), labels, reduction="none")
    most = LARGEST_LOSS * math.log(max(2, logits.shape[1]))
    answers = {}
    for smashed, own in zip(wave, losses.split([len(s.labels) for s in wave]), strict=True):
        loss = float(own.mean())
        if not loss < most:
            reason = f"{DIVERGED}: a batch's loss is {loss:.6g} on the server, at most {most:.6g}"
            nothing = torch.zeros_like(smashed.data)
            answers[smashed.client] = BatchGradient(nothing, loss, reason)
    return answers


def levelled(batches: Mapping[int, int], limit: float = math.inf) -> dict[int, int]:
    """Raise every client's number of batches per epoch to that of the client with most.

    But no client is raised above `limit` times the median, because one client may claim to have any
    number of batches.
    """
    most = min(max(batches.values()), limit * median_low(batches.values()))
    return {client: int(max(own, most)) for client, own in batches.items()}


def frame_limit(rules: Rules, samples: int) -> int:
    """Return the largest size in bytes of the tensors of a frame that keeps these rules.

    It is at most `LARGEST_FRAME`. Raises `RunError` if the batches of a client with this number of
    training samples are larger.
    """
    largest = max(math.prod(shape) for shape in rules.shapes.values())
    each = largest * rules.dtype.itemsize + np.dtype(np.int64).itemsize
    if (count := min(samples, rules.batch_size)) * each > LARGEST_FRAME:
        raise RunError(
            f"batch-size = {rules.batch_size}: the features of {count} samples are "
            f"{count * each / 2**30:.1f} GiB, and less than 2 can be sent at once; use a smaller "
            "batch-size, or another cut"
        )
    layers = rules.dtype.itemsize * sum(map(math.prod, rules.relays.values()))
    return min(max(rules.batch_size * each, layers), LARGEST_FRAME)
