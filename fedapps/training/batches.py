"""Samples and batches: how an epoch is cut into batches, and how batches are grouped into steps."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from torch import Tensor

from fedapps.training.augment import crop_flip

CHUNK = 128  # samples per forward pass without gradients (FedBABU's test batch)
Samples = tuple[Tensor, Tensor]  # inputs [n, ...] and targets [n, ...]


def batch_of(
    data: Samples, chosen: Tensor, crops: Sequence[Tensor], border: Tensor | None
) -> Samples:
    """Return the `chosen` samples, int64 [n].

    `crops` are the rows and columns of each (from `augment.windows`); if it is empty, there is no
    augmentation. `border` is the value of the padding.
    """
    inputs, targets = data
    x = gather(inputs, chosen)
    if crops:
        rows, columns = crops
        x = crop_flip(x, rows, columns, border)
    return x, targets.index_select(0, chosen)


def grouped(batches: Iterable[Samples], size: int, limit: int) -> Iterator[list[Samples]]:
    """Yield groups of `size` consecutive batches, at most `limit` of them (0: all).

    If the last group is too small, it is filled up with the first batches.
    """
    stream, first, made = iter(batches), list[Samples](), 0
    while (not limit or made < limit) and (group := list(islice(stream, size))):
        first = first or group
        while len(group) < size:
            group += first[: size - len(group)]
        made += 1
        yield group


def gather(samples: Tensor, chosen: Tensor) -> Tensor:
    """Copy the chosen samples; images ([n, C, H, W]) come out in channels-last format."""
    if samples.dim() != 4:
        return samples.index_select(0, chosen)
    return samples.permute(0, 2, 3, 1).index_select(0, chosen).permute(0, 3, 1, 2)


def chunks(inputs: Tensor, size: int = CHUNK) -> list[Tensor]:
    """Cut inputs into chunks of at most `size` + 1 samples for forward passes.

    A single sample that is left over joins the last chunk, because BatchNorm needs two.
    """
    parts = list(inputs.split(size))
    if len(parts) > 1 and len(parts[-1]) == 1:
        parts[-2:] = [inputs[-size - 1 :]]
    return parts
