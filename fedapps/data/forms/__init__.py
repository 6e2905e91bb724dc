"""The forms that own data can have, apart from .npz: tables, folders of files, and `datasets`.

Each form becomes the arrays that an .npz would hold (`Found`), so what is checked there is checked
here. A new form needs one file here and a line in `_read`.
"""

from pathlib import Path

from fedapps.core.errors import RunError, needed
from fedapps.data.contents import dataset_of
from fedapps.data.dataset import Dataset
from fedapps.data.forms import arrays, folders, hub
from fedapps.data.forms.form import TABLES, File, Form, Found, kind_of
from fedapps.data.npz import class_names, held, members, samples

SUFFIXES = (".npz", *TABLES)


def is_own(name: str) -> bool:
    """Tell whether the value of `dataset` is a path instead of a name."""
    return "/" in name or name[:1] == "~" or name.lower().endswith(SUFFIXES)


def open_own(path: Path, form: Form) -> Dataset:
    """Open own data of any form; raises `RunError` in one line for what cannot be used."""
    if kind_of(path) == ".npz" and not form.window:
        there = samples(path)
        found = Found({}, class_names(path), told=tuple(arrays.notes(path, there)), named=True)
        return found.describe(dataset_of(path, there, members(path), form.missing), path)
    read = _read(path, form)
    by_key = {key: held(path, key, values) for key, values in read.arrays.items()}
    data = read.describe(dataset_of(path, by_key, by_key, form.missing), path)
    if form.window and (data.inputs.kind != "series" or data.shape[0] != form.window):
        raise RunError(
            f"{path}: window = {form.window} cuts floats [rows, channels]; the data are"
            f" {data.inputs}: leave window out"
        )
    return data


def _read(path: Path, form: Form) -> Found:
    if not path.exists():
        raise RunError(f"{path}: no such file or folder")
    if hub.is_saved(path):
        return hub.read(path, form)
    if path.is_dir():
        return folders.read(path, form)
    if kind_of(path) == ".npz":
        return arrays.read([File(path)], form)
    if kind_of(path) in TABLES:
        with needed(str(path)):
            from fedapps.data.forms import tables  # loads pandas

        return tables.read([File(path)], form)
    raise RunError(
        f"{path}: must be {', '.join(SUFFIXES)}, or a folder of such files, of pictures, or of the"
        " package datasets"
    )


__all__ = ["Form", "is_own", "open_own"]
