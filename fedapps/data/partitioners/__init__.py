"""The partitioners, by their value of the run-config key `partitioner`.

A partitioner decides only whose a sample is. What the inputs of a client become, such as their
normalization, is decided in `RunData` (`fedapps.training.run_data`).

A new one needs a file here with `owners(labels, settings)`, which draws with `generator` of
`core.draws`; a line in `PARTITIONERS`; and in `fedapps.core.data_settings` its name among the
values of the key, and the keys that it reads in `OF_PARTITIONERS`. Keys of its own also go into
pyproject.toml.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedapps.core.settings import Settings
from fedapps.data.partitioners import classes, dirichlet, iid, shards, sizes


@dataclass(frozen=True)
class Partitioner:
    """How a pool of samples is distributed over the clients.

    `owners` maps labels (int64 [n]) and settings to the owner of each sample: int64 [n], the number
    of a client, or -1 if no client gets the sample. It is None if the data say it. `test_owners`
    does the same for an official test set (`split="official"`); if it is None, the test set is
    distributed like the training set, class by class.
    """

    owners: Callable[[np.ndarray, Settings], np.ndarray] | None
    test_owners: Callable[[np.ndarray, Settings], np.ndarray] | None = None


PARTITIONERS = {
    "dirichlet": Partitioner(dirichlet.owners),
    "shards": Partitioner(shards.owners, shards.deal_shards),
    "sizes": Partitioner(sizes.owners),
    "classes": Partitioner(classes.owners),
    "iid": Partitioner(iid.owners),
    "natural": Partitioner(None),  # natural.py
}
