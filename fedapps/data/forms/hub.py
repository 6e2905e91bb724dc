"""Folders that the package `datasets` has saved, and those of `flwr-datasets create`."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, product, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.core.errors import RunError, needed, one_line
from fedapps.core.words import shortened, some
from fedapps.data.forms.form import File, Form, Found, by_part, check_places
from fedapps.data.pictures import grayed, pixels, readable, stacked

PARTITION = "partition_"  # what `flwr-datasets create` calls the folder of a client
SPLITS = {"train": "train", "validation": "val", "valid": "val", "val": "val", "test": "test"}
_SIZE = r"(?<=int|oat)\d+"  # of numbers in arrays of targets, which are joined
SAVED = ("dataset_dict.json", "dataset_info.json")


def is_saved(folder: Path) -> bool:
    """Tell whether `datasets` has written a folder."""
    return any((folder / name).is_file() for name in SAVED) or bool(_partitions(folder))


def read(folder: Path, form: Form) -> Found:
    """Read a folder that `save_to_disk` has written, or one such folder for each client.

    The target is `target-column`, or the only column of class labels; texts that go on have none.
    The inputs are a column of pictures, or otherwise of arrays; of several, `columns` names one.
    Without such a column, or if `columns` names others, it is a table: without class labels, the
    last column can be the target.
    """
    with needed(str(folder), "'fedapps[hf]'"):
        from datasets import DatasetDict, load_from_disk

    from fedapps.data.forms import frames  # loads pandas

    found: list[tuple[Any, File]] = []
    for path in _partitions(folder) or [folder]:
        group = path.name.removeprefix(PARTITION) if path != folder else ""
        try:
            data = load_from_disk(str(path))
        except IndexError as error:
            raise RunError(f"{path}: it, or one of its splits, has no rows") from error
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise RunError(f"{path}: cannot be read ({one_line(str(error))})") from error
        parts = data.items() if isinstance(data, DatasetDict) else [("", data)]
        for name, rows in parts:
            if name and name not in SPLITS:
                raise RunError(f"{path}: split {name}; must be one of {', '.join(SPLITS)}")
            file = File(path / name, SPLITS.get(name, ""), group)
            names = zip(
                rows.column_names, frames.as_compared(rows.column_names, file.path), strict=True
            )
            found.append((rows.rename_columns({old: new for old, new in names if new}), file))
    check_places([file for _, file in found])
    return _found(found, form)


def _partitions(folder: Path) -> list[Path]:
    there = [path for path in folder.glob(f"{PARTITION}*/") if is_saved(path)]
    return sorted(there, key=lambda path: (len(path.name), path.name))


def _found(parts: list[tuple[Any, File]], form: Form) -> Found:
    from datasets import Image

    features, path = parts[0][0].features, parts[0][1].path
    encoded = [name for name in features if getattr(features[name], "names", None)]
    found = form.targets_in(features) or [name for name in encoded if name != form.client_column]
    targets = [] if form.goes_on else found
    inputs = [name for name in features if name not in (*targets, form.client_column)]
    column = "" if form.goes_on else _input({name: features[name] for name in inputs}, form, path)
    one = len(targets) == 1 and targets[0] in features
    if not one and (column or (targets and not form.targets)):
        rule = f"must be one of {', '.join(features)}"
        raise RunError(f'{path}: target-column = "{form.target_column}": {rule}')
    names = tuple(getattr(features[targets[0]], "names", ())) if one else ()
    chosen = [column] if column else _named(form) or inputs
    last = [] if form.goes_on else inputs[-1:]
    arrays = {column: "", targets[0]: _SIZE} if column else {}
    _check_alike(parts, [*(targets or last), form.client_column, *chosen], arrays)
    if not column:
        return _table(parts, names, replace(form, target_column=targets[0]) if names else form)
    files, target = [file for _, file in parts], targets[0]
    sizes = [len(rows) for rows, _ in parts]
    where = [f"{file.path}: row {row}" for rows, file in parts for row in range(len(rows))]
    cells = chain.from_iterable(rows[column] for rows, _ in parts)
    pictures = isinstance(features[column], Image)
    groups = _clients(parts, form)
    values = [_decoded(cells, place) for place in where] if pictures else [*cells]
    rest = [name for name in inputs if name != column]
    told = [f"the inputs are column {column}; not read: {some(rest)}"] if rest else []
    if pictures:
        if not form.shape:
            told += grayed(where[0], (value.mode for value in values))
        mode = ("L" if form.shape[0] == 1 else "RGB") if form.shape else values[0].mode
        values = [_pixels(value, mode, place) for value, place in zip(values, where, strict=True)]
    try:
        samples = stacked([np.asarray(value) for value in values], where, pictures)
    except (TypeError, ValueError) as error:
        rule = f"column {column} holds no arrays of numbers"
        raise RunError(f"{path}: {rule} ({one_line(str(error))})") from error
    labels = np.concatenate([np.asarray(rows[target]) for rows, _ in parts])
    kinds = ("images", "labels") if pictures else ("inputs", "targets")
    by_key = dict(zip(kinds, (samples, labels), strict=True))
    whole = by_part(np.repeat([file.part for file in files], sizes), groups, **by_key)
    return Found(whole, names, told=tuple(told), named=True)


def _table(parts: list[tuple[Any, File]], names: tuple[str, ...], form: Form) -> Found:
    """Read columns without arrays as a table; `names` are those of a target of class labels."""
    from fedapps.data.forms import frames, tables  # load pandas

    made = [frames.whole_with_gaps(rows.to_pandas(), rows.data.schema) for rows, _ in parts]
    if names:
        form = replace(form, names=tuple(map(str, range(len(names)))))
    found = tables.of_frames(made, [file for _, file in parts], form)
    return replace(found, names=names or found.names, named=bool(names))


def _check_alike(parts: list[tuple[Any, File]], names: list[str], arrays: dict[str, str]) -> None:
    """Refuse parts whose columns are not of the same kind: each can number classes by itself.

    The names of classes have to be the same, and the kinds of `arrays`, which says by column what
    does not count in the name of a kind (a pattern).
    """
    (first, file), *others = parts
    for (rows, other), name in product(others, names):
        one, two = first.features.get(name), rows.features.get(name)
        if (one is None) != (two is None):
            lacks, has = (file, other) if one is None else (other, file)
            raise RunError(f"{lacks.path}: no column {name}; {has.path.name} has it")
        classes: list[Any] = [getattr(kind, "names", 0) for kind in (one, two)]
        kinds = {re.sub(arrays[name], "", str(kind)) for kind in (one, two) if name in arrays}
        if classes[0] == classes[1] and len(kinds) < 2:
            continue
        what, told = "", (shortened(str(one), 100), shortened(str(two), 100))
        if all(classes):
            pairs = enumerate(zip_longest(*classes, fillvalue="not there"))
            what, told = next((f": class {n}", pair) for n, pair in pairs if pair[0] != pair[1])
        rule = "encode or cast the column before the data are divided"
        has = f"{told[1]}; in {file.path.name} it is {told[0]}"
        raise RunError(f"{other.path}: column {name}{what} is {has}; {rule}")


def _clients(parts: list[tuple[Any, File]], form: Form) -> np.ndarray:
    """Return the client of each row, as its folder or the column of clients says; texts [N]."""
    from fedapps.data.forms import frames  # loads pandas

    files = [file for _, file in parts]
    if not (column := form.client_in(parts[0][0].column_names)):
        return np.repeat([file.group for file in files], [len(rows) for rows, _ in parts])
    there = column in parts[0][0].column_names
    tables = [rows.select_columns([column]) if there else rows.select([]) for rows, _ in parts]
    found = frames.Rows.of([table.to_pandas() for table in tables], files, {})
    found.demand(column, "client-column", frames.FILL)
    owners = found.owners(column)
    assert owners is not None
    return owners.to_numpy().astype(str)


def _named(form: Form) -> list[str]:
    """Return the columns that the run names as inputs; none if it leaves that to the data."""
    from fedapps.data.forms.columns import parsed  # loads pandas

    return [column.name for column in parsed(form.columns)] if form.columns else []


def _input(kinds: dict[str, Any], form: Form, path: Path) -> str:
    """Return the column of pictures or arrays that is the input, or "" for those of a table."""
    from datasets import Image

    pictures = [name for name, kind in kinds.items() if isinstance(kind, Image)]
    arrays = [n for n, kind in kinds.items() if hasattr(kind, "feature") or hasattr(kind, "shape")]
    chosen = _named(form) or pictures or arrays
    if not {*chosen} & {*pictures, *arrays}:
        return ""
    if len(chosen) > 1:
        allowed = ", ".join(pictures + arrays)
        raise RunError(f'{path}: columns = "{form.columns}": must be one of {allowed}')
    return chosen[0]


def _decoded(cells: Iterator[Any], where: str) -> Any:
    with readable(where):
        if (picture := next(cells)) is None:  # only now does `datasets` decode it
            raise ValueError("there is none")
        return picture


def _pixels(picture: Any, mode: str, where: str) -> np.ndarray:
    with readable(where):
        return pixels(picture, mode)
