"""Cuts recordings into samples: windows of consecutive rows, or whole files."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.words import number, some
from fedapps.data.forms.form import File, Form

FEW = 20  # labels; so many different whole numbers can be numbers to predict


def places(file: np.ndarray, clients: np.ndarray) -> np.ndarray:
    """Return numbers that order the rows by file and client, int64 [N], from both of each row [N].

    Rows of one client in one file keep their order and get consecutive numbers, also if those of
    others are in between; if rows are dropped later, their numbers are missing.
    """
    _, client = np.unique(clients.astype(str), return_inverse=True)
    _, first, of = np.unique(file * len(file) + client, return_index=True, return_inverse=True)
    owner = first[of]  # the first row of the same client in the same file
    order = np.argsort(owner, kind="stable")
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) + np.cumsum(np.diff(owner[order], prepend=-1) != 0)
    return found


def cut(
    at: np.ndarray,
    files: Sequence[File],
    targets: np.ndarray,
    form: Form,
    names: Sequence[str] = (),
) -> tuple[np.ndarray, list[str]]:
    """Return the rows of each sample, int64 [N, steps], and what to tell.

    A window has consecutive rows of one file and one client, and one label; a number to predict is
    that of its last row. `at` are the `places` of the rows that are left. Without `window`, a
    sample is a whole file. `names` are those of classes, if targets are texts.
    """
    order = np.argsort(at)
    at, targets = at[order], targets[order]
    whole_numbers = targets.dtype.kind != "f"
    change = np.diff(at) != 1
    if whole_numbers:
        differs = targets[1:] != targets[:-1]
        change = change | (differs.any(axis=1) if differs.ndim > 1 else differs)
    edges = [0, *(np.flatnonzero(change) + 1).tolist(), len(targets)]
    spans = [*pairwise(edges)]
    alike = "one client" + " and one label" * whole_numbers
    size = form.window or spans[0][1] - spans[0][0]
    step = form.window_step or size
    if not form.window and any(last - first != size for first, last in spans):
        raise RunError(
            f"{files[0].path.parent}: files have different numbers of rows; set window=100"
            " for samples of 100 rows"
        )
    starts = [row for first, last in spans for row in range(first, last - size + 1, step)]
    if not starts:
        longest = max(last - first for first, last in spans)
        many = whole_numbers and not (names or form.labels) and len(np.unique(targets)) > FEW
        cure = ", or set task=regression if they are numbers" * many
        raise RunError(
            f"window = {size}: no file has so many rows of {alike}; must be at most {longest}{cure}"
        )
    samples = order[np.array(starts)[:, None] + np.arange(size)]
    told = [f"{number(len(starts), 'window')} of {number(size, 'row')}"]
    if unused := len(targets) - len(np.unique(samples)):
        told[0] += f"; {unused} of {number(len(targets), 'row')} are in no window"
    if short := sum(last - first < size for first, last in spans):
        told[0] += f"; {short} of {len(spans)} stretches of {alike} are shorter, left out"
    if step < size and form.drawn:
        undrawn = "split=last" + " with partitioner=natural" * (not form.one_client)
        told += [
            "windows overlap, so samples that are drawn for a client, for a test (split=merged, or"
            " without a test part) or for a validation part share rows with training samples; to"
            f" score honestly, set {undrawn}, which draws none, or no window-step"
        ]
    return samples, told


def gone(before: np.ndarray, after: np.ndarray) -> list[str]:
    """Tell which clients have no sample left; both say who rows, or samples, are from."""
    lost = np.setdiff1d(before.astype(str), after.astype(str)).tolist()
    return [f"{some(lost)}: no sample is left, so not a client"] if lost else []
