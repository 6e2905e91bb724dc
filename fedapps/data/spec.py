"""What one sample is, and how its values are normalized; both are data that travel with a model."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedapps.core.errors import RunError

FLOAT, WHOLE = "float32", "int64"
LARGEST, RANGE = float(np.finfo(FLOAT).max), "between -3.4e38 and 3.4e38"  # of a float32
BYTES = 256  # tokens of texts that are read as UTF-8
LEAST_STD = 1e-6  # of the mean; a feature with less is constant, and only shifted

# All samples, in arrays [n, ..., features]; each call reads them anew.
Blocks = Callable[[], Iterable[np.ndarray]]
# The values of `missing` that put another value where one is missing. Each gets the samples and the
# mean of each feature, and returns a value for each feature, float64 [features].
FILLS: dict[str, Callable[[Blocks, np.ndarray], np.ndarray]] = {"mean": lambda blocks, mean: mean}
CURE = "missing=" + " or ".join(f'"{rule}"' for rule in FILLS) + " fills it"  # for messages


@dataclass(frozen=True)
class Spec:
    """The shape and the dtype of one sample's input or target, as a model gets it.

    `dtype` is "float32", or "int64" for whole numbers in 0..`choices`-1: the tokens of a text, or a
    label. An `image` has the shape (channels, height, width). Other shapes are those of the data:
    (F,) for a row of a table, (T, C) for a series, (T,) for tokens, () for a label.
    """

    shape: tuple[int, ...]
    dtype: str = FLOAT
    choices: int = 0
    image: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the values are whole numbers, which a model embeds."""
        return self.dtype == WHOLE

    @property
    def size(self) -> int:
        """How many values a sample has."""
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        """What the samples are: images, tokens, a table, series, or values of another shape."""
        if self.image or self.is_whole:
            return "images" if self.image else "tokens"
        return {1: "tables", 2: "series"}.get(len(self.shape), "values")

    def check_images(self, shape: tuple[int, ...]) -> None:
        """Raise `RunError` if these are images, and a batch of this `shape` is of no such ones."""
        if self.image and tuple(shape[1:]) != self.shape:
            wanted = f"[n, {', '.join(map(str, self.shape))}]"
            raise RunError(
                f"inputs of shape {list(shape)}; must be images [n, C, H, W] = {wanted}; samples"
                " [n, H, W] get an axis by [:, None], and [n, H, W, C] is .permute(0, 3, 1, 2)"
            )

    def __str__(self) -> str:
        kind = "images of [C, H, W] =" if self.image else f"{self.dtype} samples of shape"
        return f"{kind} {list(self.shape)}"


@dataclass(frozen=True)
class Normalization:
    """(x - mean) / std, for each channel of an image, or for each feature (the last axis).

    Without values, inputs stay as they are. A value that is missing (NaN) becomes the one in
    `filling` of its feature; if there are none, no value may be missing.
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    filling: tuple[float, ...] = ()

    def tensors(self, spec: Spec) -> tuple[Tensor, Tensor]:
        """Return mean and std, float32, in a shape that fits samples of `spec`."""
        shape = (-1, 1, 1) if spec.image else (-1,)
        if not self.mean:
            return torch.zeros(()), torch.ones(())
        mean, std = (torch.tensor(values, dtype=torch.float32) for values in (self.mean, self.std))
        return mean.view(shape), std.view(shape)

    def apply(self, inputs: Tensor, spec: Spec) -> Tensor:
        """Return float inputs [n, *shape] normalized; they change in place."""
        if not self.mean:
            return inputs
        mean, std = self.tensors(spec)
        inputs.sub_(mean).div_(std)
        return self.filled(inputs)

    def filled(self, inputs: Tensor) -> Tensor:
        """Return normalized inputs [n, ..., features] with a value where one is missing."""
        if not self.filling:
            return inputs
        values = np.subtract(self.filling, self.mean) / self.std
        return torch.where(inputs.isnan(), inputs.new_tensor(values.tolist()), inputs)

    def fits(self, spec: Spec) -> bool:
        """Tell whether there is a finite value for each channel or feature, and no std of 0."""
        if not self.mean and not self.std:
            return True
        axis = spec.shape[0 if spec.image else -1] if spec.shape else 0
        values = (*self.mean, *self.std, *self.filling)
        right = len(self.mean) == len(self.std) == axis and all(map(math.isfinite, values))
        fills = not self.filling or (len(self.filling) == axis and not spec.image)
        return right and fills and min(self.std) > 0


PLAIN = Normalization()  # values stay as they are


def usual(inputs: Spec) -> Normalization:
    """Return mean and deviation 0.5 for images; values of other samples stay as they are."""
    half = (0.5,) * inputs.shape[0] if inputs.image else ()
    return Normalization(half, half)


@dataclass(frozen=True)
class Pooled:
    """What a run has found in the samples of all clients, and its model needs ever after.

    The `normalization` of inputs, the `scaling` of targets that are learned as numbers, and of a
    table the `columns` of its features and its `target_column`, as the keys of these names write
    them.
    """

    normalization: Normalization
    scaling: Normalization | None = None
    columns: str = ""
    target_column: str = ""


def per_feature(blocks: Blocks, missing: str) -> Normalization:
    """Return the normalization of float samples: mean and deviation of each feature, in float64.

    A feature that is constant, as far as float32 can tell, is shifted only. Missing values (NaN) do
    not count; `missing` is a rule of `FILLS`, or another text if there are none.
    """
    mean, std = moments(blocks)
    least = np.maximum(LEAST_STD * np.abs(mean), np.finfo(np.float32).tiny)
    std = np.where(std > least, std, 1.0)
    filling = FILLS[missing](blocks, mean).tolist() if missing in FILLS else ()
    return Normalization(tuple(mean.tolist()), tuple(std.tolist()), tuple(filling))


def moments(blocks: Blocks) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each feature, float64 [features]; NaN does not count."""
    count: np.ndarray = np.zeros(())
    mean: np.ndarray = np.zeros(())
    for block in blocks():
        rows = block.reshape(-1, block.shape[-1])
        count = count + (~np.isnan(rows)).sum(0)
        mean = mean + np.nansum(rows, 0, np.float64)
    count = np.maximum(count, 1)
    mean = mean / count
    squares = np.zeros(len(mean))
    for block in blocks():
        squares += np.nansum((block.reshape(-1, len(mean)) - mean) ** 2, 0)
    return mean, np.sqrt(squares / count)


def image_spec(shape: tuple[int, ...]) -> Spec:
    """Return the spec of images (channels, height, width)."""
    return Spec(tuple(shape), FLOAT, image=True)


def label_spec(classes: int) -> Spec:
    """Return the spec of targets that are the numbers of classes."""
    return Spec((), WHOLE, classes)
