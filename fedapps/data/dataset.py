"""A data set: targets and shapes are known at once; inputs are read for one client at a time."""

import hashlib
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from fedapps.data.npz import Rows
from fedapps.data.spec import PLAIN, Normalization, Spec, per_feature, usual

Shape = tuple[int, int, int]  # channels, height, width
BLOCK = 4096  # samples that are read at once to find their mean and deviation


@dataclass(frozen=True, eq=False)
class Dataset:
    """A set of samples with targets: first those of the official training set, then the test set.

    `inputs` and `targets` say what a sample is. `target_values` are [N, *targets.shape], int64 or
    float32. The first `num_train` of the N samples are the official training set. Without a
    `normalization`, the training samples of the run give it (`normalized`), and so the `scaling` of
    targets that are learned as numbers. If the data say who a sample is from, `groups` are [N], and
    name a subject, a user or a hospital. `names` are those of the classes, if the data have them,
    and are `named` if they are written beside the samples, and not found in them; targets that were
    stored as booleans are `truths`;
    `columns` and `target_column` those of a table, as the keys of these names write them. `missing`
    is the key of this name. `told` are lines that a user has to know.
    """

    name: str
    inputs: Spec
    targets: Spec
    target_values: np.ndarray
    num_train: int
    normalization: Normalization | None = None
    rows: Rows | None = None  # None: there are no inputs
    groups: np.ndarray | None = None
    names: tuple[str, ...] = ()
    named: bool = False
    truths: bool = False
    columns: str = ""
    target_column: str = ""
    missing: str = "refuse"
    told: tuple[str, ...] = ()
    scaling: Normalization | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of an input, as a model gets it."""
        return self.inputs.shape

    @property
    def classes(self) -> int:
        """The number of values that a target can have; 0 if targets are floats."""
        return self.targets.choices

    @property
    def has_labels(self) -> bool:
        """Whether each target is the number of a class."""
        return self.targets.is_whole and not self.targets.shape

    @property
    def labels(self) -> np.ndarray:
        """The class of each sample, int64 [N]; all are in class 0 if there are no classes."""
        values = self.target_values
        return values if self.has_labels else np.zeros(len(values), np.int64)

    @cached_property
    def digest(self) -> str:
        """A short digest of all samples, by which data are told apart that look alike."""
        found = hashlib.sha256(f"{self.num_train} {self.columns}".encode())
        for values in (self.target_values, self.groups):
            if values is not None:
                plain = values.astype(str) if values.dtype.kind == "O" else values
                found.update(np.ascontiguousarray(plain).tobytes())
        for block in self.rows.blocks() if self.rows else ():
            found.update(block.data)
        return found.hexdigest()[:16]

    @cached_property
    def sample_digests(self) -> np.ndarray:
        """A short digest of each sample's inputs, by which it is known again: uint64 [N]."""
        rows = (row for block in self.rows.blocks() for row in block) if self.rows else ()
        found = (hashlib.blake2b(row.tobytes(), digest_size=8).digest() for row in rows)
        return np.frombuffer(b"".join(found), np.uint64)

    def tensors(self, indices: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the samples `indices`: inputs [n, *shape], normalized, and targets [n, ...].

        Inputs are float32, or int64 if they are whole numbers. A sample's values do not depend on
        the other samples that are read with it. Raises `RunError` if the file has changed or is
        broken, or if a value is not finite.
        """
        indices = np.asarray(indices, dtype=np.int64)
        inputs = self._read(indices)
        if self.normalization:
            inputs = self.normalization.apply(inputs, self.inputs)
        return inputs, torch.from_numpy(self.target_values[indices])

    def normalized(self, train: np.ndarray) -> "Dataset":
        """Return the data set with the normalization of the samples `train`."""
        blocks = [train[start : start + BLOCK] for start in range(0, len(train), BLOCK)]
        found = per_feature(lambda: (self._read(b).numpy() for b in blocks), self.missing)
        return replace(self, normalization=found)

    def scaled(self, train: np.ndarray) -> "Dataset":
        """Return the data set with the scaling of its targets by those of the samples `train`."""
        size = self.targets.shape[-1] if self.targets.shape else 1
        values = self.target_values[train].reshape(-1, size)
        return replace(self, scaling=per_feature(lambda: [values], ""))

    def _read(self, indices: np.ndarray) -> torch.Tensor:
        assert self.rows is not None
        values = torch.from_numpy(self.rows.read(indices))
        if not self.inputs.image:
            return values.to(torch.int64 if self.inputs.is_whole else torch.float32)
        height, width = values.shape[1:3]
        pixels = values.view(len(values), height, width, self.shape[0]).permute(0, 3, 1, 2)
        images = pixels.to(torch.float32, memory_format=torch.contiguous_format)
        return images.div_(255) if pixels.dtype == torch.uint8 else images


def declared(name: str, inputs: Spec, targets: Spec) -> Dataset:
    """Return a data set without samples: what a server knows about data that stay on devices."""
    empty = np.empty((0, *targets.shape), targets.dtype)
    return Dataset(name, inputs, targets, empty, 0, usual(inputs), scaling=PLAIN)
