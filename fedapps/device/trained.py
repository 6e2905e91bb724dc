"""The samples that a device has trained on in its last run, known again by their digests.

With `split="last"`, none of them is tested on later, as long as new samples come after these.
"""

from pathlib import Path

import numpy as np

from fedapps.core.files import write_whole
from fedapps.data.dataset import Dataset
from fedapps.data.partition import Share

FILE = "trained"  # in the folder of a state: uint64, one for each sample


def note(folder: Path, dataset: Dataset, share: Share) -> None:
    """Keep the digests of what is trained on; raises `RunError`."""
    write_whole(folder / FILE, dataset.sample_digests[share.train].tobytes(), durable=True)


def tests(folder: Path, dataset: Dataset, share: Share) -> bool:
    """Tell whether a sample that was trained on is a test sample now; False if nothing is known.

    Of equal samples, one has left the training part if fewer are in it now than were.
    """
    try:
        before = np.fromfile(folder / FILE, np.uint64)
    except OSError:
        return False
    digests = dataset.sample_digests
    parts = (before, digests[share.train], digests[share.test])
    _, of = np.unique(np.concatenate(parts), return_inverse=True)
    ends = np.cumsum([*map(len, parts)])[:2]
    then, now, tested = (np.bincount(part, minlength=len(of)) for part in np.split(of, ends))
    return bool(tested[then > now].any())
