"""Data of a device, which have to fit the run; and samples without targets, to predict."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError
from fedapps.data.contents import check_images, check_pixels, input_spec, shape_of
from fedapps.data.dataset import Dataset, declared
from fedapps.data.forms import Form, open_own
from fedapps.data.forms.form import TABLES
from fedapps.data.npz import Rows, class_names, headers, held
from fedapps.data.pictures import Pictures, folders, picture_files, picture_of
from fedapps.data.spec import Spec, image_spec, label_spec


def of_device(path: Path, inputs: Spec, targets: Spec, form: Form) -> Dataset:
    """Open a device's own data of any form, and check that they fit the run.

    A folder of pictures contains `train/<class>/` and `test/<class>/` for every class, with .png,
    .jpg or .jpeg files. If a device has no samples of a class, the folder of that class is empty.
    An .npz can contain `class_names`. Raises `RunError` if the shape, a label or a class name does
    not fit the run.
    """
    names = form.names
    if path.is_dir() and inputs.image and not targets.shape:
        return _class_folders(path, inputs, names)
    found = open_own(path, replace(form, client_column=""))  # all is one client's
    if found.columns and not form.columns:
        raise RunError(
            f"{path}: which columns are the inputs must be the same on all devices; set columns ="
            f' "{found.columns}"'
        )
    if replace(found.inputs, choices=inputs.choices) != inputs:
        raise RunError(f"{path}: {found.inputs}; the run has {list(inputs.shape)} (input-shape)")
    if found.targets.shape != targets.shape or targets.is_whole > found.targets.is_whole:
        raise RunError(
            f"{path}: targets are {found.targets}; the run has {targets} (task, num-classes)"
        )
    most = max(found.classes, found.inputs.choices if inputs.is_whole else 0)
    if targets.is_whole and most > targets.choices:
        known = f"0..{targets.choices - 1} (num-classes)"
        raise RunError(f"{path}: label {most - 1} found; the run has {known}")
    assert isinstance(found.rows, Rows)
    if inputs.image:
        check_pixels(found.rows)
    own = class_names(path) if path.suffix == ".npz" else []
    if own and own != [*names]:
        raise RunError(
            f"{path}: class_names are {','.join(own)}; the run has {','.join(names)} (class-names)"
        )
    return replace(found, inputs=inputs, targets=targets)


def unlabelled(path: Path, inputs: Spec, columns: str = "", missing: bool = False) -> Rows:
    """Open samples without targets: the key `images` (`inputs`) of an .npz, or `test_images`.

    Or a table with the `columns` of the model. Raises `RunError` if they are not what the model
    takes.
    """
    word = "images" if inputs.image else "inputs"
    if path.suffix in TABLES and columns:
        from fedapps.data.forms import tables  # loads pandas

        arrays = {word: held(path, word, tables.unlabelled(path, columns, inputs.shape))}
    else:
        arrays = headers(path)
    array = arrays.get(word) or arrays.get(f"test_{word}")
    if array is None:
        raise RunError(f"{path}: key {word} is missing; needed {word} or test_{word}")
    if inputs.image:
        check_images(array, array)
    found = image_spec(shape_of(array)) if inputs.image else input_spec((array,))
    if (found.shape, found.dtype) != (inputs.shape, inputs.dtype):
        raise RunError(f"{path}: {found}; the model takes {list(inputs.shape)}")
    if found.choices > inputs.choices:
        known = f"0..{inputs.choices - 1}"
        raise RunError(f"{path}: token {found.choices - 1} found; the model takes {known}")
    rows = Rows((array,), missing)
    if inputs.image:
        check_pixels(rows)
    return rows


def _class_folders(folder: Path, inputs: Spec, names: Sequence[str]) -> Dataset:
    """Read the pictures in `{train,test}/<class>/`; raises `RunError` if they do not fit."""
    files = [_labelled_files(folder / part, names) for part in ("train", "test")]
    images = [picture_of(file, inputs.shape) for part in files for file, _ in part]
    return replace(
        declared(folder.name, inputs, label_spec(len(names))),
        target_values=np.array([label for part in files for _, label in part], np.int64),
        num_train=len(files[0]),
        rows=Pictures(np.stack(images)),
    )


def _labelled_files(folder: Path, names: Sequence[str]) -> list[tuple[Path, int]]:
    """List the pictures in `<class>/` with their labels; raises `RunError` if there are none."""
    there = folders(folder)
    for name in sorted(set(there).symmetric_difference(names)):
        what = "is not a class of the run" if name in there else "is missing"
        raise RunError(
            f"{folder / name}: {what}; must be one folder, possibly empty, for each of "
            f"{', '.join(names)}"
        )
    files = [
        (file, label) for label, name in enumerate(names) for file in picture_files(folder / name)
    ]
    if not files:
        raise RunError(f"{folder}: no .png, .jpg or .jpeg files; needs at least one")
    return files
