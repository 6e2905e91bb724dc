"""The digits data set of scikit-learn."""

from pathlib import Path

import numpy as np

from fedapps.data.sources.source import Arrays, Source, named_arrays


def _digits(root: Path) -> Arrays:
    """Return the 1,797 digits (8x8 pixels) of scikit-learn; the last 20 % are the test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)
    cut = len(images) * 4 // 5
    return named_arrays(images[:cut], digits.target[:cut], images[cut:], digits.target[cut:])


DIGITS = Source("digits", 10, (0.3054,), (0.3755,), _digits)
