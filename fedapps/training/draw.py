"""The random numbers of one local training: for shuffles, crops and dropout."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedapps.core.draws import generator


@dataclass(frozen=True)
class Draw:
    """Gives one local training its random numbers, which depend on (seed, phase, round, client)."""

    seed: int
    phase: str
    round: int
    client: int

    def order(self, epoch: int, size: int) -> Tensor:
        """Return the order in which epoch `epoch` (from 0 in each round) visits the samples."""
        draws = self._generator("shuffle", epoch)
        return torch.from_numpy(draws.permutation(size))

    def crops(self, epoch: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return top (0..8), left (0..8) and flip for each sample's augmentation in an epoch."""
        draws = self._generator("augment", epoch)
        return draws.integers(9, size=size), draws.integers(9, size=size), draws.random(size) < 0.5

    def torch_seed(self) -> int:
        """Return the seed for layers that draw random numbers (dropout)."""
        return int(self._generator("torch", 0).integers(2**63))

    def _generator(self, purpose: str, epoch: int) -> np.random.Generator:
        return generator(self.seed, f"{self.phase}-{purpose}", self.round, self.client, epoch)
