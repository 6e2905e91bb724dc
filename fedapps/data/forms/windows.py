"""Cuts recordings into samples: windows of consecutive rows, or whole files."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.words import number, some
from fedapps.data.forms.form import File, Form


def cut(
    follows: np.ndarray, files: Sequence[File], targets: np.ndarray, groups: np.ndarray, form: Form
) -> tuple[np.ndarray, list[str]]:
    """Return the rows of each sample, int64 [N, steps], and what to tell.

    A window has consecutive rows of one file and one client, and one label; a number to predict is
    that of its last row. `follows` (bool [N - 1]) says of each row but the first whether it comes
    next to the one before it. Without `window`, a sample is a whole file.
    """
    whole_numbers = targets.dtype.kind != "f"
    change = ~follows | (groups[1:] != groups[:-1])
    if whole_numbers:
        differs = targets[1:] != targets[:-1]
        change = change | (differs.any(axis=1) if differs.ndim > 1 else differs)
    edges = [0, *(np.flatnonzero(change) + 1).tolist(), len(targets)]
    spans = [*pairwise(edges)]
    size = form.window or spans[0][1] - spans[0][0]
    step = form.window_step or size
    if not form.window and any(last - first != size for first, last in spans):
        raise RunError(
            f"{files[0].path.parent}: files have different numbers of rows; set window=100"
            " for samples of 100 rows"
        )
    starts = [at for first, last in spans for at in range(first, last - size + 1, step)]
    if not starts:
        longest = max(last - first for first, last in spans)
        raise RunError(
            f"window = {size}: no file has so many rows with one label; must be at most {longest}"
        )
    samples = np.array(starts)[:, None] + np.arange(size)
    told = [f"{number(len(starts), 'window')} of {number(size, 'row')}"]
    if unused := len(targets) - len(np.unique(samples)):
        told[0] += f"; {unused} of {number(len(targets), 'row')} are in no window"
    if short := sum(last - first < size for first, last in spans):
        told[0] += f"; {short} of {len(spans)} stretches with one label are shorter, left out"
    if step < size:
        told += [
            "windows overlap, so samples that are drawn for a test (split=merged, or without a test"
            " part) or for a validation part share rows with training samples; to score honestly,"
            " set split=last, which draws none, or no window-step"
        ]
    return samples, told


def gone(before: np.ndarray, after: np.ndarray) -> list[str]:
    """Tell which clients have no sample left; both say who rows, or samples, are from."""
    lost = np.setdiff1d(before.astype(str), after.astype(str)).tolist()
    return [f"{some(lost)}: no sample is left, so not a client"] if lost else []
