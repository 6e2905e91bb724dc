"""Tables: a row of a .csv or .parquet is a sample, or with `window` one step of a series."""

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from fedapps.core.errors import MisfitError, RunError
from fedapps.core.words import number, some
from fedapps.data import precision
from fedapps.data.forms import columns, outliers, texts
from fedapps.data.forms.form import File, Form, Found, by_part, class_numbers, kind_of
from fedapps.data.forms.frames import (
    DROP,
    FILL,
    MISSING,
    Kept,
    Rows,
    frames_of,
    holds_texts,
    stripped,
)
from fedapps.data.forms.windows import cut, gone, places
from fedapps.data.spec import BYTES, CURE, FILLS

_NO_NAMES: tuple[str, ...] = ()
LAST = "the last one, as target-column is not set"


def read(files: Sequence[File], form: Form) -> Found:
    """Read tables that belong together: they have the same columns.

    If the files have a `label` each, a sample is a file, or a window of one. Otherwise the target
    is `target-column`, or the last one. Raises `RunError` in one line, with the line of the file.
    """
    frames = _frames(files, form)
    for file in files:
        if kind_of(file.path) == ".npy" and not file.label:
            shape = np.load(file.path, mmap_mode="r").shape
            if len(shape) != 2:
                raise RunError(
                    f"{file.path}: has shape {list(shape)}; a table has two sides: save samples of"
                    " another shape as inputs and targets in an .npz"
                )
    return of_frames(frames, files, form)


def _frames(files: Sequence[File], form: Form) -> list[pd.DataFrame]:
    """Read the files; codes of clients, of categories and of classes of the run stay texts."""
    paths, named = [file.path for file in files], (form.client_column, *form.targets)
    kept = _kept(form, form.targets)
    texts = {form.client_column, *_kept(form, ())}
    targets_known = form.targets or form.goes_on or any(file.label for file in files)
    rule = columns.parsed(form.columns) if form.columns and targets_known else []
    whole = [c.name for c in rule] + form.targets * bool(rule)
    frames = frames_of(paths, texts, named, kept, whole)
    if _named_by_numbers(form):
        return frames
    targets = {*_target_columns(frames[0], files, form)}
    return frames_of(paths, texts | targets, named, _kept(form, targets), whole)


def _named_by_numbers(form: Form) -> bool:
    """Tell whether whole numbers, as Python writes them, are the names of all classes."""
    return all(re.fullmatch("0|-?[1-9][0-9]*", name) for name in form.names)


def _names(values: pd.Series, form: Form) -> pd.Series:
    """Return numbers as names of classes: -1.0 is -1 if the run has such names."""
    if _named_by_numbers(form) and pd.api.types.is_float_dtype(values):
        values = (values + 0).astype("string").str.removesuffix(".0")  # of 0 and -0.0 alike
    return values.astype("string")


def _kept(form: Form, targets: Iterable[str]) -> Kept:
    """Return by column the texts that the run names, in its rule of the inputs or as classes."""
    rule = columns.parsed(form.columns) if form.columns else []
    whole = MISSING[1:] if form.text_length else ()  # "?" can be all that somebody wrote
    of_inputs = {c.name: c.texts or whole for c in rule if c.texts or whole}
    return of_inputs | (dict.fromkeys(targets, form.names) if form.names else {})


def of_frames(frames: Sequence[pd.DataFrame], files: Sequence[File], form: Form) -> Found:
    """Read tables that are in memory; `files` say where each is from.

    Numbers are no classes of a run that has names for them: nobody has said which is which.
    """
    targets = _target_columns(frames[0], files, form)
    if form.names != tuple(map(str, range(len(form.names)))):
        plain = [[n for n in {*targets} & {*each} if not holds_texts(each[n])] for each in frames]
        pairs = zip(frames, plain, strict=True)
        frames = [each.assign(**{n: _names(each[n], form) for n in names}) for each, names in pairs]
    rows = Rows.of(frames, files, _kept(form, targets))
    if form.client_column in targets:
        raise RunError(
            f'client-column = "{form.client_column}": is the target, too (target-column)'
        )
    everybody, series = _groups(rows, form), form.window or not (targets or form.text_length)
    at = _places(rows, form) if series else np.empty(0, np.int64)
    rows, told = _with_targets(rows, targets, form)
    for name in filter(None, [form.client_in(rows.frame)]):
        rows.demand(name, "client-column", FILL)
    chosen = _inputs(rows, targets, form)
    inputs, rows, more = (texts.read if form.text_length else _features)(rows, chosen, form)
    told += more
    groups = _groups(rows, form)
    if form.goes_on:
        inputs, values, class_names = inputs[:, :-1], inputs[:, 1:], _NO_NAMES
    else:
        values, class_names = _targets(rows, targets, form)
    if values.dtype.kind == "f":
        columns.demand_size(rows, targets, values)
        told += _judged(rows, targets, values, form, True)
    samples = np.arange(len(inputs))[:, None]
    if series:
        left = at[rows.frame.index]  # a row keeps its index
        samples, more = cut(left, files, values, form, class_names)
        told, inputs = [*told, *more], inputs[samples]
    if not form.columns:
        told.append(f'the inputs are columns="{columns.written(chosen)}"')
    last = samples[:, -1]
    told += gone(everybody, groups[last])
    arrays = by_part(
        rows.of_file([file.part for file in files])[last].astype(str),
        groups[last].astype(str),
        inputs=inputs,
        targets=values[last],
    )
    if targets and not form.targets:
        told.append(f"the target is column {targets[0]}: {LAST}")
    rule, tokens = columns.written(chosen), BYTES if form.text_length else 0
    return Found(arrays, class_names, rule, tuple(told), tokens, form.goes_on, ",".join(targets))


def _target_columns(frame: pd.DataFrame, files: Sequence[File], form: Form) -> list[str]:
    """Return the columns of the targets; none if each file has a label, or texts go on.

    Without names, that is the last one.
    """
    if any(file.label for file in files) or form.goes_on:
        return []
    return form.targets_in(frame) or _others(frame, form)[-1:]


def _inputs(rows: Rows, targets: Sequence[str], form: Form) -> list[columns.Column]:
    """Return the columns of the inputs: those that the run names, or all others."""
    names = [name for name in _others(rows.frame, form) if name not in targets]
    if form.text_length and not form.columns:
        rule = f"name the column of texts in columns; there are {some(names)}"
        raise RunError(f"{rows.files[0].path}: text-length = {form.text_length}: {rule}")
    chosen = (
        columns.parsed(form.columns)
        if form.columns
        else columns.found_in(rows.frame, names, rows.where)
    )
    if both := {*targets} & {column.name for column in chosen}:
        raise RunError(
            f"{rows.files[0].path}: column {min(both)} is an input (columns), and cannot be the"
            " target, too; name another target-column"
        )
    if not chosen:
        raise RunError(f"{rows.where(0)}: no column is left for the inputs")
    return chosen


def _features(
    rows: Rows, chosen: Sequence[columns.Column], form: Form
) -> tuple[np.ndarray, Rows, list[str]]:
    """Return the features of these columns, float32 [N, F], their rows, and what to tell."""
    exact = columns.encoded(rows, chosen, form.missing != "refuse")
    named = [column.name for column in chosen for _ in column.texts or ("",)]
    told = [
        *columns.notes(rows.frame, chosen, not form.columns),
        *_judged(rows, named, exact, form, False),
    ]
    inputs, rows, more = _complete(exact.astype(np.float32), rows, chosen, form)
    return inputs, rows, [*told, *more]


def _judged(
    rows: Rows, names: Sequence[str], values: np.ndarray, form: Form, targets: bool
) -> list[str]:
    """Tell what normalization and float32 would lose of columns with these names."""
    named, values = [f"column {name}" for name in names], values.reshape(len(values), -1)
    return [
        *precision.told(rows.files[0].path, named, values, targets),
        *outliers.told(rows.where, named, values, targets, lambda: _groups(rows, form)),
    ]


def _groups(rows: Rows, form: Form) -> np.ndarray:
    """Return the client of each row, as its file or the column of clients says; texts."""
    owners = rows.owners(form.client_column)
    if owners is None:
        return rows.of_file([file.group for file in rows.files])
    return owners.dropna().to_numpy()


def _places(rows: Rows, form: Form) -> np.ndarray:
    """Return the `places` of all rows; one without a client counts as the client's before it."""
    owners = rows.owners(form.client_column)
    return places(rows.file, rows.file if owners is None else owners.ffill().to_numpy())


def _others(frame: pd.DataFrame, form: Form) -> list[str]:
    return [str(name) for name in frame.columns if name != form.client_column]


def _with_targets(rows: Rows, targets: Sequence[str], form: Form) -> tuple[Rows, list[str]]:
    """Demand the target columns; unless `missing` refuses, leave out rows without a target."""
    told = []
    if form.missing != "refuse" and {*targets} <= {*rows.frame}:
        there = rows.frame[[*targets]].notna().all(axis=1).to_numpy()
        if there.any() and not there.all():
            told = [f"{(~there).sum()} of {number(len(there), 'row')} have no target, left out"]
            rows = rows.take(there)
    unset = not form.targets and bool(targets)
    for name in targets:
        rows.demand(name, LAST if unset else "target-column")
    return rows, told


def _complete(
    inputs: np.ndarray, rows: Rows, chosen: Sequence[columns.Column], form: Form
) -> tuple[np.ndarray, Rows, list[str]]:
    """Treat missing values as `missing` says: refuse, drop the row, or leave NaN for `FILLS`."""
    broken = np.isnan(inputs).any(axis=1)
    if not broken.any():
        return inputs, rows, []
    empty = rows.frame[[column.name for column in chosen]].isna()
    count = f"{broken.sum()} of {number(len(inputs), 'row')}"
    if form.missing in FILLS:
        cells = number(int(empty.to_numpy().sum()), "value")
        told = f'{count} have missing values; missing = "{form.missing}" fills {cells}'
        return inputs, rows, [told]
    first = int(broken.argmax())
    if form.missing == "refuse":
        name = chosen[int(empty.iloc[first].argmax())].name
        raise RunError(f"{rows.where(first)}: column {name} is empty; {CURE}, {DROP}")
    if broken.all():
        raise RunError(
            f"{rows.where(0)}: every row has a missing value, so none is left; most are missing in"
            f" column {empty.sum().idxmax()}"
        )
    return inputs[~broken], rows.take(~broken), [f"{count} have missing values and are left out"]


def _targets(rows: Rows, names: Sequence[str], form: Form) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the targets and the names of their classes or labels."""
    if not names:
        labels = rows.of_file([file.label for file in rows.files])
        return class_numbers(labels, form.names, rows.where)
    frame = rows.frame[[*names]]
    for name in [name for name in names if holds_texts(frame[name])]:
        found = columns.numbers(frame[name])
        needed = form.numbers or len(names) > 1 or (not form.names and (found % 1 != 0).any())
        if needed and not np.isnan(found).any():
            frame = frame.assign(**{name: found})
            continue
        if len(names) > 1:
            rule = "of several targets, all must be numbers"
            raise RunError(f"{rows.where(0)}: column {name} holds texts; {rule}")
        if form.numbers or (not form.names and columns.are_numbers(frame[name])):
            told = "targets are texts; the run needs numbers (task)"
            raise MisfitError(str(columns.no_number(frame[name], name, rows.where)), told)
        return class_numbers(stripped(frame[name]), form.names, rows.where)
    whole = len(names) == 1 and _are_whole(frame[names[0]], form.labels)
    exact = np.uint64 if pd.api.types.is_unsigned_integer_dtype(frame[names[0]]) else np.int64
    values = frame.to_numpy(exact if whole and not form.numbers else np.float64)
    negative = whole and not form.numbers and values.min() < 0
    if negative and (form.labels or len(np.unique(values)) == 2):  # names, such as -1 and 1
        return class_numbers(values[:, 0].astype(str), form.names, rows.where)
    if len(names) == 1 and pd.api.types.is_bool_dtype(frame[names[0]]):
        values = values.astype(bool)
    if len(names) == 1:
        return values[:, 0], ()
    if not form.numbers and np.isin(values, (0, 1)).all():
        return values.astype(bool), tuple(names)
    return values, ()


def _are_whole(values: pd.Series, floats: bool) -> bool:
    """Tell whether a column holds integers, or with `floats` numbers that are equal to some."""
    if floats and pd.api.types.is_float_dtype(values):
        found = values.to_numpy(np.float64)
        return bool(((found % 1 == 0) & (np.abs(found) < 2**63)).all())
    return bool(pd.api.types.is_integer_dtype(values))
