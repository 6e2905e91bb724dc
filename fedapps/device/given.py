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
        x = _save_table(x, folder / "x.parquet")
        if x is None:
            return folder / "x.parquet"
    if names and hasattr(x, "to_csv"):
        if x.ndim == 1 and x.name not in names:
            raise RunError(f"x: a Series is no table; {cure}: of a row i, x.iloc[[i]]")
        for name, values in x.to_frame().items() if x.ndim == 1 else x.items():
            if str(name).strip() in names and frames.holds_texts(values):
                frames.refuse_lists(values.astype(object), "x: row {}".format)
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


def _save_table(x: Any, path: Path) -> Any:
    """Write what has `to_pandas` as a table of Arrow; return what cannot be one as of pandas.

    Without metadata, which would hide a column that was an index.
    """
    try:
        if hasattr(x, "with_format"):  # of datasets
            x = x.with_format("arrow")[:]
        table = x.to_arrow() if hasattr(x, "to_arrow") else x
        if not hasattr(table, "schema"):  # of a Series, which loses its name
            return x.to_pandas()
        import pyarrow
        from pyarrow import parquet

        parquet.write_table(pyarrow.table(table).replace_schema_metadata(None), path)
    except Exception as error:
        raise RunError(f"x: cannot be read as a table ({named(error)})") from error
    return None


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
