"""Shards of samples that are sorted by label."""

import numpy as np

from fedapps.core.draws import partition_generator
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.core.words import number
from fedapps.data.partitioners.dealing import even_edges


def owners(labels: np.ndarray, settings: Settings) -> np.ndarray:
    """Deal shards of at least one sample each; raises `RunError` if a shard would be empty."""
    clients, per_client = settings.num_clients, settings.shards_per_client
    if clients * per_client > len(labels):
        raise RunError(
            f"shards-per-client = {per_client}: {number(clients, 'client')} would need"
            f" {clients * per_client} shards of {number(len(labels), 'sample')};"
            f" take at most {len(labels) // clients}"
        )
    return deal_shards(labels, settings)


def deal_shards(labels: np.ndarray, settings: Settings) -> np.ndarray:
    """Sort by label, cut into equal shards, and give each client `shards-per-client` at random.

    This is McMahan et al. 2017, with s shards as in FedBABU. Which shards a client gets does not
    depend on the labels. So if the test set is cut in the same way, each client gets the test
    shards at the places of its training shards.
    """
    clients, per_client = settings.num_clients, settings.shards_per_client
    dealt = partition_generator(settings.seed, "shards").permutation(clients * per_client)
    holders = np.empty_like(dealt)
    holders[dealt] = np.repeat(np.arange(clients), per_client)
    owners = np.empty(len(labels), np.int64)
    sizes = np.diff(even_edges(len(labels), len(holders)))
    owners[np.argsort(labels, kind="stable")] = np.repeat(holders, sizes)
    return owners
