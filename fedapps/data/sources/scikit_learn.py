"""Data sets of scikit-learn: tables, and small pictures of digits."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.data.sources.source import Arrays, Source, named_arrays, parted
from fedapps.data.spec import Spec

EVERY = 5  # one of five samples is for the test
# The diabetes targets are about 152 +- 77, and losses are meant for magnitudes of about 1.
DIABETES_MEAN, DIABETES_STD = 152.0, 77.0


def _digits(root: Path) -> Arrays:
    """Return the 1,797 digits (8x8 pixels); the last 20 % are the test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    cut = len(images) * 4 // 5
    return named_arrays(images[:cut], digits.target[:cut], images[cut:], digits.target[cut:])


def _table(root: Path, *, loader: str, **options: Any) -> Arrays:
    """Return a table, float32 [N, F], of the loader `load_<loader>` and its labels or targets.

    The test set is every fifth sample in the order of the targets, so it has 20 % of each class,
    or of each range of numbers. Samples with equal targets keep scikit-learn's order.
    """
    from sklearn import datasets

    inputs, targets = getattr(datasets, f"load_{loader}")(return_X_y=True, **options)
    test = np.zeros(len(targets), bool)
    test[np.argsort(targets, kind="stable")[EVERY - 1 :: EVERY]] = True
    return parted(inputs.astype(np.float32), targets, test)


def _diabetes(root: Path) -> Arrays:
    """Return the unscaled features, and the targets as (y - 152) / 77, float32.

    An error of 1 is therefore 77 points of the disease's progression.
    """
    arrays = _table(root, loader="diabetes", scaled=False)
    for key in ("train_targets", "test_targets"):
        arrays[key] = ((arrays[key] - DIABETES_MEAN) / DIABETES_STD).astype(np.float32)
    return arrays


DIGITS = Source("digits", 10, (0.3054,), (0.3755,), _digits)
BREAST_CANCER = Source(
    "breast-cancer", 2, (), (), partial(_table, loader="breast_cancer"), Spec((30,))
)
WINE = Source("wine", 3, (), (), partial(_table, loader="wine"), Spec((13,)))
DIABETES = Source("diabetes", None, (), (), _diabetes, Spec((10,)))
