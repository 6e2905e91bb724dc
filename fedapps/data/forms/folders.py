"""Folders: a file for each client, or pictures and recordings in a folder for each class.

    anna.csv ben.csv                     # a file for each client: .csv, .parquet or .npz
    train/anna.npz test/anna.npz         # part, and a file for each client there
    train.csv test.csv                   # two parts
    anna/walking/1.csv                   # client, class, recordings; also without the client
    train/cat/1.png test/cat/2.png       # pictures: part, class
    anna/cat/1.png                       # or client, class

With `target-column`, if texts go on, and of .npz files, folders name clients, and each row has its
own target.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.words import composed
from fedapps.data.forms import arrays
from fedapps.data.forms.form import (
    PARTS,
    TABLES,
    File,
    Form,
    Found,
    by_part,
    check_places,
    class_numbers,
    kind_of,
)
from fedapps.data.pictures import grayed, mode_of, pictures_of

PICTURES = (".png", ".jpg", ".jpeg")
HIDDEN = (".", "~$")  # beginnings of names of the system, and of programs that have a table open
LOST = "lost+found"  # a folder of the file system's own, which only root may enter


def read(folder: Path, form: Form) -> Found:
    """Read a folder; raises `RunError` in one line for files that do not belong together."""
    files, left_out = files_in(folder, bool(form.targets) or form.goes_on)
    found = _read(files, form)
    return replace(found, told=(*left_out, *found.told))


def _read(files: Sequence[File], form: Form) -> Found:
    suffix = kind_of(files[0].path)
    if suffix in PICTURES:
        return _pictures(files, form)
    if suffix == ".npz":
        return arrays.read(files, form)
    from fedapps.data.forms import tables  # loads pandas

    return tables.read(files, form)


def unlabelled(path: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Read a picture, or all in a folder, sorted by name: uint8 [N, H, W, C].

    They become gray or colored as `shape` [C, H, W] says. Raises `RunError` for another size.
    """
    there = _everything(path) if path.is_dir() else [path]
    if not (found := [each for each in there if kind_of(each) in PICTURES]):
        raise RunError(f"{path}: holds no {', '.join(PICTURES)} files; give pictures, or an .npz")
    return pictures_of(found, shape)


def files_in(folder: Path, are_clients: bool) -> tuple[list[File], list[str]]:
    """List the data files of a folder, sorted, with what their places say; and tell of others.

    The innermost folder is a class, unless folders `are_clients` or parts. Hidden files and those
    of another kind (a README) do not count. Raises `RunError` if a folder cannot be listed, or
    if the name of a class or client is no text.
    """
    kinds = {**dict.fromkeys(PICTURES, "pictures"), **dict.fromkeys(TABLES, "tables")}
    kinds[".npz"] = ".npz files"
    everything = _everything(folder)
    found = [path for path in everything if kind_of(path) in kinds]
    if not found:
        raise RunError(f"{folder}: holds no {', '.join(kinds)} files")
    by_kind = {kinds[kind_of(path)]: path for path in found}
    if len(by_kind) > 1:
        (one, first), (other, second) = sorted(by_kind.items())[:2]
        raise RunError(f"{folder}: holds {one} ({first.name}) and {other} ({second.name})")
    places = [path.relative_to(folder) for path in found]
    are_clients |= ".npz files" in by_kind  # which hold their targets
    are_clients |= all(place.parent.name in PARTS for place in places)  # by train alone, not by bus
    files = [_file(*pair, are_clients) for pair in zip(found, places, strict=True)]
    check_places(files)
    beside = any(path.parent == folder for path in found)  # otherwise, files there are no samples
    others = [path for path in everything if kind_of(path) not in kinds and path.is_file()]
    others = [path for path in others if beside or path.parent != folder]
    return files, _left_out(folder, others, [end for end in kinds if kinds[end] in by_kind])


def _everything(folder: Path) -> list[Path]:
    """Return what is below a folder, sorted by `composed` names, without what is hidden."""

    def refuse(error: OSError) -> None:
        raise RunError(f"{error.filename}: cannot be read ({error.strerror})") from error

    found: list[Path] = []
    for path, inner, names in os.walk(folder, onerror=refuse):  # rglob leaves out what is closed
        inner[:] = [name for name in inner if not name.startswith(HIDDEN) and name != LOST]
        found += [Path(path, name) for name in (*inner, *names) if not name.startswith(HIDDEN)]
    return sorted(found, key=lambda path: ([*map(composed, path.parts)], path))


def _left_out(folder: Path, others: Sequence[Path], read: Sequence[str]) -> list[str]:
    if not others:
        return []
    count = Counter(path.suffix or "without an ending" for path in others)
    kinds = ", ".join(f"{number} {ending}" for ending, number in sorted(count.items()))
    return [f"{folder}: files are left out: {kinds}; read are {', '.join(read)}"]


def _file(path: Path, place: Path, are_clients: bool) -> File:
    above = list(place.parts[:-1])
    label = above.pop() if above and not are_clients else ""
    named = path.stem in PARTS or {*above} <= {*PARTS}  # its own name says a part, or its client
    words = [*above, path.stem] if named and not label else above
    part = next((word for word in words if word in PARTS), "")
    group = "/".join(word for word in words if word != part)
    try:
        (group + label).encode()  # tables hold them
    except UnicodeEncodeError as error:
        shown, rule = os.fsencode(path).decode(errors="backslashreplace"), "is not UTF-8; rename it"
        raise RunError(f"{shown}: names a class or client, and {rule}") from error
    return File(path, part, group, label)


def _pictures(files: Sequence[File], form: Form) -> Found:
    if unlabelled := [file for file in files if not file.label]:
        raise RunError(f"{unlabelled[0].path}: must be in the folder of its class")
    labels, names = class_numbers(
        np.array([file.label for file in files], object),
        form.names,
        lambda row: str(files[row].path),
    )
    if form.names:  # they have an order, which names of folders need not have
        order = np.argsort(labels, kind="stable")
        files, labels = [files[row] for row in order], labels[order]
    paths = [file.path for file in files]
    told = [] if form.shape else grayed(paths[0], map(mode_of, paths))
    found = by_part(
        np.array([file.part for file in files]),
        np.array([file.group for file in files]),
        images=pictures_of(paths, form.shape),
        labels=labels,
    )
    return Found(found, names, told=tuple(told))
