"""Samples that a program gives to predict, written to a file as a user's own would be."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedapps.core.errors import RunError, named, one_line
from fedapps.core.files import write_npz
from fedapps.core.words import some
from fedapps.data.forms import columns, frames

if TYPE_CHECKING:
    from fedapps.device.personalized import ModelMetadata


def save(x: Any, folder: Path, about: "ModelMetadata") -> Path:
    """Save samples x [n, ...] as a file of the form that the model's data have; return its path.

    Raises `RunError` for what is no array or table, for masked values that are no floats, and for
    rows of texts that are no data frame.
    """
    names = [column.name for column in columns.parsed(about.columns)] if about.columns else []
    cure = f"give a data frame with the columns {some(names)}"
    if names and hasattr(x, "to_pandas"):  # what is of pandas itself has none
        x = _frame(x)
    if names and hasattr(x, "to_csv"):
        if x.ndim == 1 and x.name not in names:
            raise RunError(f"x: a Series is no table; {cure}: of a row i, x.iloc[[i]]")
        # pandas by itself quotes no text with a lone \r, which ends a line, or a blank before it
        x.to_csv(folder / "x.csv", index=False, quoting=csv.QUOTE_NONNUMERIC)
        return folder / "x.csv"
    try:
        values = _array(x)
    except (TypeError, ValueError, RuntimeError) as error:
        raise RunError(f"x: cannot be read as an array: {one_line(str(error))}") from error
    if names and values.dtype.kind in "OSU":
        raise RunError(f"x: holds texts or objects; {cure}")
    write_npz(folder / "x.npz", {"images" if about.inputs.image else "inputs": values})
    return folder / "x.npz"


def _frame(x: Any) -> Any:
    """Return a table of Arrow, Polars, or `datasets` as a data frame, as its .parquet is read."""
    try:
        if hasattr(x, "with_format"):  # of datasets
            x = x.with_format("arrow")[:]
        x = x.to_arrow() if hasattr(x, "to_arrow") else x
        if hasattr(x, "schema"):  # the metadata hide a column that was an index
            return frames.whole_with_gaps(x.to_pandas(ignore_metadata=True), x.schema)
        return x.to_pandas()
    except Exception as error:
        raise RunError(f"x: cannot be read as a table ({named(error)})") from error


def _array(x: Any) -> np.ndarray:
    """Return an array, tensor, or list of either as an array; what is masked is NaN."""
    if isinstance(x, list | tuple) and any(isinstance(each, torch.Tensor) for each in x):
        x = torch.stack([*map(torch.as_tensor, x)])
    if isinstance(x, torch.Tensor):
        tensor = x.detach().to_dense().cpu()
        return (tensor.float() if tensor.dtype == torch.bfloat16 else tensor).numpy()
    values = np.ma.asarray(x)
    if values.dtype == object and not values.ndim:
        raise TypeError(f"it is a {type(x).__name__}; give an array, a tensor or a list of rows")
    if not np.ma.is_masked(values):
        return values.data
    if values.dtype.kind != "f":
        raise TypeError(f"{values.dtype} cannot mark masked values as missing; give floats")
    return values.filled(np.nan)
