"""Which samples each client of a group trains on in each step of a stage, as arrays."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedapps.training.augment import windows
from fedapps.training.batches import Samples, batch_of
from fedapps.training.draw import Draw
from fedapps.training.plan import Stage
from fedapps.training.trainer import Trainer

Places = tuple[np.ndarray, ...]  # of a batch: samples, then top, left and flip of their crops


@dataclass
class Steps:
    """A client's batches in a stage, and how many were left out because they were too small."""

    batches: list[Places]
    skipped: int

    @property
    def samples(self) -> int:
        """The samples of all batches."""
        return sum(len(batch[0]) for batch in self.batches)

    @classmethod
    def of(cls, trainer: Trainer, stage: Stage, draw: Draw, first: int, size: int) -> "Steps":
        """Return the batches of `Trainer.train` for `size` samples; `first` is the first epoch."""
        starts, found, skipped = trainer.starts(size, stage), list[Places](), 0
        whole = stage.batches or -(-size // trainer.batch_size)
        for epoch in range(first, first + stage.epochs):
            if stage.max_steps and len(found) >= stage.max_steps:
                break
            order: Places = (draw.order(epoch, size).numpy(),)
            if trainer.augment == "crop-flip":
                order += draw.crops(epoch, size)
            skipped += whole - len(starts)
            found += [tuple(of[s : s + trainer.batch_size] for of in order) for s in starts]
        return cls(found[: stage.max_steps or None], skipped)


@dataclass
class Batch:
    """A step's batches of the first k clients, folded: inputs [k*B, ...], targets [k*B, ...].

    `lengths` says how many samples each client has, and so does the tensor `sizes` [k]. A place
    without a sample repeats another one of the same client. Then `taken` [k, B] is 1 for a sample
    and 0 for such a place; without them, it is None. `share` is `taken` divided by `sizes`.
    """

    inputs: Tensor
    targets: Tensor
    lengths: list[int]
    sizes: Tensor
    share: Tensor
    taken: Tensor | None


class Schedule:
    """The steps of a group, from the `data` and the `steps` of each client.

    The clients are in the order of their steps, the most first. `sizes` [steps, clients] says how
    many samples each client has in each step: none, if its steps are over.
    """

    def __init__(self, data: list[Samples], steps: list[Steps], border: Tensor | None) -> None:
        self.data = torch.cat([inputs for inputs, _ in data]), torch.cat([own for _, own in data])
        self.border = border
        shape = max(len(own.batches) for own in steps), len(steps)
        self.sizes = np.zeros(shape, np.int64)
        for client, own in enumerate(steps):
            self.sizes[: len(own.batches), client] = [len(batch[0]) for batch in own.batches]
        places, *self.crops = self._filled(data, steps)
        device = self.data[1].device
        self.chosen = torch.from_numpy(places).to(device)
        taken = np.arange(places.shape[2]) < self.sizes[..., None]
        self.taken = torch.from_numpy(taken).float().to(device)
        self.counts = torch.from_numpy(self.sizes).float().to(device)

    def _filled(self, data: list[Samples], steps: list[Steps]) -> np.ndarray:
        """Return what all batches have for each place: [kinds, steps, clients, B]."""
        first = next((own.batches[0] for own in steps if own.batches), ())
        width = int(self.sizes.max(initial=0))
        found = np.zeros((max(len(first), 1), *self.sizes.shape, width), np.int64)
        begins = np.cumsum([0, *(len(targets) for _, targets in data)])
        for client, own in enumerate(steps):
            found[0, :, client] = begins[client]
            for step, batch in enumerate(own.batches):
                for kind, values in enumerate(batch):
                    found[kind, step, client, : len(values)] += values
        return found

    def batch(self, step: int) -> Batch:
        """Return what the clients train on whose steps are not over."""
        lengths = [int(size) for size in self.sizes[step] if size]
        here = (step, slice(len(lengths)), slice(max(lengths)))
        crops: tuple[Tensor, ...] = ()
        if self.crops:
            top, left, flip = (values[here].ravel() for values in self.crops)
            crops = windows(top, left, flip, self.data[0])
        inputs, targets = batch_of(self.data, self.chosen[here].reshape(-1), crops, self.border)
        sizes, taken = self.counts[here[:2]], self.taken[here]
        uneven = min(lengths) < max(lengths)
        share = taken / sizes[:, None]
        return Batch(inputs, targets, lengths, sizes, share, taken if uneven else None)
