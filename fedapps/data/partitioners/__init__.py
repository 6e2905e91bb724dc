"""The partitioners, by their value of the run-config key `partitioner`.

A new one needs a file here with `owners(labels, settings)`, which draws with `generator` of
`core.draws`; a line in `PARTITIONERS`; and its name among the values of the key in
`fedapps.core.data_settings`. Its own keys also go into pyproject.toml.
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
    distributed like the training set, class by class. `keys` are the run-config keys that it reads,
    apart from those that all partitioners read.
    """

    owners: Callable[[np.ndarray, Settings], np.ndarray] | None
    test_owners: Callable[[np.ndarray, Settings], np.ndarray] | None = None
    keys: tuple[str, ...] = ()


PARTITIONERS = {
    "dirichlet": Partitioner(dirichlet.owners, keys=("alpha", "dirichlet-balance", "min-samples")),
    "shards": Partitioner(shards.owners, shards.deal_shards, keys=("shards-per-client",)),
    "sizes": Partitioner(sizes.owners, keys=("sizes",)),
    "classes": Partitioner(classes.owners, keys=("classes-per-client",)),
    "iid": Partitioner(iid.owners),
    "natural": Partitioner(None, keys=("min-samples",)),  # natural.py
}
