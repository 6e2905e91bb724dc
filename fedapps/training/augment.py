"""Augmentation `crop-flip`: pad by 4 pixels, crop and flip at random, a whole batch at once."""

import numpy as np
import torch
from torch import Tensor


def windows(
    top: np.ndarray, left: np.ndarray, flip: np.ndarray, images: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the rows [n, H] and columns [n, W] of padded images that form a window each.

    They are where the `images` [..., H, W] before padding are. Window i begins at (top[i], left[i])
    and is mirrored if flip[i] is true.
    """
    height, width = images.shape[-2:]
    columns = np.arange(width)[None] + left[:, None]
    columns = np.where(flip[:, None], columns[:, ::-1], columns)
    rows = torch.from_numpy(np.arange(height)[None] + top[:, None])
    return rows.to(images.device), torch.from_numpy(columns).to(images.device)


def crop_flip(x: Tensor, rows: Tensor, columns: Tensor, border: Tensor | None = None) -> Tensor:
    """Pad by 4 pixels, and cut out the windows from `windows`; all tensors are on one device.

    `border` is the value of the padding (None: zero). Our choice is black, as in the usual
    pipeline, which pads before it normalizes; these images are normalized already, so `border` is
    what black has become.
    """
    height, width = x.shape[-2:]
    sample = torch.arange(len(x), device=x.device)[:, None, None]
    padded = x.new_zeros(*x.shape[:2], height + 8, width + 8)
    if border is not None:
        padded += border[:, None, None]
    padded[..., 4:-4, 4:-4] = x
    padded = padded.permute(0, 2, 3, 1)
    window = padded[sample, rows[:, :, None], columns[:, None, :]]
    return window.permute(0, 3, 1, 2)
