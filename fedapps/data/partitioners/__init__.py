"""The partitioners, by the value of run-config key `partitioner`.

A new one is one file here with `owners(labels, settings)`, its line in `PARTITIONERS`, and
its name among the values of the key in `fedapps.core.settings`.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedapps.core.settings import Settings
from fedapps.data.partitioners import classes, dirichlet, iid, shards, sizes


@dataclass(frozen=True)
class Partitioner:
    """How a pool of samples is shared out.

    `owners` maps labels (int64 [n]) and settings to the owners of the samples: int64 [n], the
    number of the client or -1 where nobody gets the sample. `test_owners` does so for an official
    test set (`split = official`); None: the test set follows the train set class by class.
    `keys` are those of the run-config that it reads and other partitioners may not.
    """

    owners: Callable[[np.ndarray, Settings], np.ndarray]
    test_owners: Callable[[np.ndarray, Settings], np.ndarray] | None = None
    keys: tuple[str, ...] = ()


PARTITIONERS = {
    "dirichlet": Partitioner(dirichlet.owners, keys=("alpha", "dirichlet-balance", "min-samples")),
    "shards": Partitioner(shards.owners, shards.deal_shards, keys=("shards-per-client",)),
    "sizes": Partitioner(sizes.owners, keys=("sizes",)),
    "classes": Partitioner(classes.owners, keys=("classes-per-client",)),
    "iid": Partitioner(iid.owners),
}
