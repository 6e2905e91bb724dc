"""Samples that a program gives to predict, written to a file as a user's own would be."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedapps.core.errors import RunError
from fedapps.core.files import write_npz

if TYPE_CHECKING:
    from fedapps.device.personalized import ModelMetadata


def save(x: Any, folder: Path, about: "ModelMetadata") -> Path:
    """Save samples x [n, ...] as a file of the form that the model's data have; return its path.

    Raises `RunError` for masked values that are no floats.
    """
    if about.columns and hasattr(x, "to_csv"):  # a data frame
        x.to_csv(folder / "x.csv", index=False)
        return folder / "x.csv"
    if isinstance(x, torch.Tensor):
        values = x.detach().cpu().numpy()
    else:
        values = _unmasked(np.ma.asarray(x))
    write_npz(folder / "x.npz", {"images" if about.inputs.image else "inputs": values})
    return folder / "x.npz"


def _unmasked(values: "np.ma.MaskedArray[Any, Any]") -> np.ndarray:
    """Return the values of an array, those that are masked as NaN."""
    if not np.ma.is_masked(values):
        return values.data
    if values.dtype.kind != "f":
        raise RunError(f"x: {values.dtype} cannot mark masked values as missing; give floats")
    return values.filled(np.nan)
