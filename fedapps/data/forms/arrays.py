"""Files .npz that are joined, such as a file for each client; and recordings in such files."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.words import did_you_mean, some
from fedapps.data import precision
from fedapps.data.forms import outliers
from fedapps.data.forms.form import PARTS, File, Form, Found, Where, by_part
from fedapps.data.forms.windows import cut, gone, places
from fedapps.data.npz import LOOKED_AT, MEMBERS, Array, class_names, in_text, members, samples

PAIRS = (("inputs", "targets"), ("images", "labels"))
NEEDED = "inputs and targets, or images and labels: alone, or as train_inputs, test_inputs, ..."
NUMBERS = {"f": "floats", "i": "integers", "u": "integers", "b": "truth values"}

# The samples of one part of a file: the file with its part, and arrays by kind, [N, ...].
Block = tuple[File, dict[str, np.ndarray]]


def read(files: Sequence[File], form: Form) -> Found:
    """Join files, or parts of them, that hold samples of one kind; with `window`, cut them.

    Raises `RunError` in one line, with the file.
    """
    blocks = [block for file in files for block in _blocks(file)]
    for block in blocks:
        _check_like(block, blocks[0])
    values = {kind: _joined(kind, [arrays[kind] for _, arrays in blocks]) for kind in blocks[0][1]}
    if form.window and form.numbers:  # whole ones, too: they are no labels, at which windows end
        values["targets"] = values["targets"].astype(np.float64)
    sizes = [len(next(iter(arrays.values()))) for _, arrays in blocks]
    parts = np.repeat([file.part for file, _ in blocks], sizes)
    groups = values.pop("groups", np.full(len(parts), ""))
    where = files[0].path.parent if len(files) > 1 else files[0].path
    told = _unread(where, [name for file in files for name in members(file.path)])

    def sample(row: int) -> str:
        block = int(np.searchsorted(np.cumsum(sizes), row, side="right"))
        file, inside = blocks[block][0], row - sum(sizes[:block])
        return f"{file.path}: {f'{file.part} sample {inside}'.lstrip()}"

    told += [
        line for key, array in values.items() if key in PAIRS[0]
        for line in _judged(where, key, array.shape, array.ravel(), sample, groups)
    ]  # fmt: skip
    inputs = values.get("inputs", parts)
    if form.window and inputs.ndim == 2 and inputs.size and inputs.dtype.kind == "f":
        owner = np.repeat(np.arange(len(blocks)), sizes)
        at, targets = places(owner, groups), values["targets"]
        samples, more = cut(at, [file for file, _ in blocks], targets, form)
        last = samples[:, -1]
        told += [*more, *gone(groups, groups[last])]
        values = {"inputs": inputs[samples], "targets": targets[last]}
        groups, parts = groups[last], parts[last]
    return Found(
        by_part(parts, groups, **values), _class_names(files), told=tuple(told), named=True
    )


def _joined(kind: str, parts: Sequence[np.ndarray]) -> np.ndarray:
    """Join arrays; of int64 and uint64, NumPy makes floats, which would be no labels or tokens.

    Nor are they names of clients; these stay floats, which are refused.
    """
    whole = kind != "groups" and all(part.dtype.kind in "iu" for part in parts)
    if whole and np.result_type(*parts).kind == "f":
        parts = [part.astype(np.int64) for part in parts]
    return np.concatenate(parts)


def _class_names(files: Sequence[File]) -> tuple[str, ...]:
    """Return the names of the classes, which all files must have alike."""
    first, *others = (class_names(file.path) for file in files)
    for file, names in zip(files[1:], others, strict=True):
        if names != first:
            other = f"{files[0].path.name} has {some(first) or 'none'}"
            raise RunError(f"{file.path}: class_names are {some(names) or 'none'}; {other}")
    return first


def notes(path: Path, arrays: Mapping[str, Array]) -> list[str]:
    """Return what to tell of an .npz that is read as it is; looks at the beginning of its floats.

    `arrays` are those that are read, by key. Raises `RunError` for targets that all count as equal.
    """
    unread = _unread(path, members(path))
    parts = [array for key, array in arrays.items() if key.removeprefix("train_") in PAIRS[0]]
    return unread + [
        line for array in parts
        for line in _judged(path, array.key, array.shape, array.first(LOOKED_AT))
    ]  # fmt: skip


def _unread(path: Path, there: Sequence[str]) -> list[str]:
    """Tell of arrays that nothing reads; one can be misspelt."""
    unread = [name for name in dict.fromkeys(there) if name not in (*MEMBERS, "class_names")]
    close = next(filter(None, (did_you_mean(name, MEMBERS) for name in unread)), "")
    return [f"{path}: not read: {some(unread)}{close}"] if unread else []


def _judged(
    path: Path,
    key: str,
    shape: Sequence[int],
    values: np.ndarray,
    sample: Where | None = None,
    groups: np.ndarray | None = None,
) -> list[str]:
    """Tell what normalization and float32 lose of an array of this shape, if it has floats.

    `values` are flat, and can be its beginning; `sample` says where a sample is, and `groups` are
    the clients of all.
    """
    if values.dtype.kind != "f" or not values.size:  # what is empty is refused elsewhere
        return []
    size = shape[-1] if len(shape) > 1 else 1
    names = [key] if size == 1 else [f"{key}[..., {feature}]" for feature in range(size)]
    rows, each = values[: len(values) // size * size].reshape(-1, size), math.prod(shape[1:-1])
    where = sample or (lambda row: f"{path}: {key}[{row}]")
    return [
        *precision.told(path, names, rows, key.endswith("targets")),
        *outliers.told(
            lambda row: where(row // each),
            names,
            rows,
            key.endswith("targets"),
            None if groups is None else lambda: np.repeat(groups, each),
            beginning=len(values) < math.prod(shape),
        ),
    ]


def _blocks(file: File) -> list[Block]:
    """Return the samples of a file by part; raises `RunError` if no arrays belong together."""
    arrays = {key: in_text(array) for key, array in samples(file.path).items()}
    prefixes = [*dict.fromkeys(key.rpartition("_")[0] for key in arrays)]
    there = {key for key in arrays if not key.endswith("groups")}
    pairs = [
        pair
        for pair in PAIRS
        if {f"{prefix}_{kind}".lstrip("_") for prefix in prefixes for kind in pair} == there
    ]
    if not there or not pairs or ("" in prefixes and len(prefixes) > 1):
        raise RunError(
            f"{file.path}: holds {some(members(file.path)) or 'nothing'}; must hold {NEEDED}"
        )
    blocks = []
    for prefix in sorted(prefixes, key=("", *PARTS).index):
        found = {kind: arrays[f"{prefix}_{kind}".lstrip("_")] for kind in pairs[0]}
        own = arrays.get(f"{prefix}_groups".lstrip("_"))
        size = _size(file, found)
        if own is not None and (file.group or own.shape != (size,)):
            why = "the file is one client" if file.group else f"there are {size} samples"
            raise RunError(f"{file.path}: groups has shape {list(own.shape)}, but {why}")
        if own is not None or file.group:
            found["groups"] = np.full(size, file.group) if own is None else own
        blocks.append((replace(file, part=prefix or file.part), found))
    return blocks


def _size(file: File, found: dict[str, np.ndarray]) -> int:
    """Return how many samples there are; raises `RunError` if targets do not fit them."""
    (kind, inputs), (other, targets) = found.items()
    if targets.dtype.kind not in NUMBERS:
        raise RunError(f"{file.path}: {other} has dtype {targets.dtype}; must be numbers")
    if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
        raise RunError(
            f"{file.path}: {other} has shape {list(targets.shape)} and {kind} {list(inputs.shape)};"
            " must be one for each sample"
        )
    return len(inputs)


def _check_like(block: Block, first: Block) -> None:
    """Refuse samples or targets that are not like those of the first file."""
    (file, arrays), (other, known) = block, first
    if arrays.keys() != known.keys() or (not file.part) != (not other.part):
        raise RunError(
            f"{file.path}: holds {some(members(file.path))}; {other.path.name} holds"
            f" {some(members(other.path))}"
        )
    for kind in arrays.keys() - {"groups"}:
        what, needed = (
            f"{kind} {list(part[kind].shape[1:])}, {NUMBERS[part[kind].dtype.kind]}"
            for part in (arrays, known)
        )
        if what != needed:
            raise RunError(f"{file.path}: holds {what}; {other.path.name} holds {needed}")
