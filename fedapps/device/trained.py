"""The samples that a device has trained on in its last run, known again by their digests.

With `split="last"`, none of them is tested on later, as long as new samples come after these.
"""

from pathlib import Path

import numpy as np

from fedapps.core.files import write_whole
from fedapps.data.dataset import Dataset
from fedapps.data.partition import Share

FILE = "trained"  # in the folder of a state: uint64 [samples, 2], the class and the digest of each
_BASE = np.uint64(0x9E3779B97F4A7C15)  # odd, so products modulo 2^64 tell two values apart


def note(folder: Path, dataset: Dataset, share: Share) -> None:
    """Keep the digests of what is trained on; raises `RunError`."""
    write_whole(folder / FILE, _training(dataset, share).tobytes(), durable=True)


def tests(folder: Path, dataset: Dataset, share: Share) -> bool:
    """Tell whether a sample that was trained on is a test sample now; False if nothing is known.

    Of equal samples, one has left the training part if fewer are in it now than were, unless those
    of its class are in the same order as they were, and only the oldest have gone.
    """
    try:
        before = np.fromfile(folder / FILE, np.uint64).reshape(-1, 2)
    except (OSError, ValueError):
        return False
    now, moved = _training(dataset, share), []
    for known in np.unique(before[:, 0]):
        then, here = (part[part[:, 0] == known, 1] for part in (before, now))
        moved += [] if _goes_on(then, here) else [(then, here)]
    if not moved:
        return False
    parts = *map(np.concatenate, zip(*moved, strict=True)), dataset.sample_digests[share.test]
    _, of = np.unique(np.concatenate(parts), return_inverse=True)
    ends = np.cumsum([*map(len, parts)])[:2]
    then, here, tested = (np.bincount(part, minlength=len(of)) for part in np.split(of, ends))
    return bool(tested[then > here].any())


def _training(dataset: Dataset, share: Share) -> np.ndarray:
    """Return the class and the digest of each sample that is not tested on: uint64 [n, 2].

    Those in no part count, too: they lie between training and validation, and will be in one.
    """
    rows = np.setdiff1d(np.arange(len(dataset.labels)), share.test)
    return np.stack([dataset.labels[rows].astype(np.uint64), dataset.sample_digests[rows]], 1)


def _goes_on(then: np.ndarray, now: np.ndarray) -> bool:
    """Tell whether `now` begins with `then`, of which up to a half may have gone, the oldest.

    Sums of digests, each times a power, compare all beginnings in one pass: most can be equal.
    """
    powers = _BASE ** np.arange(len(then), dtype=np.uint64)
    ends = np.cumsum((then * powers)[::-1])[::-1]
    begins = np.cumsum(now[: len(then)] * powers[: len(now)])
    gone = np.arange(max(0, len(then) - len(now)), len(then) // 2 + 1)
    return bool((ends[gone] == begins[len(then) - gone - 1] * powers[gone]).any())
