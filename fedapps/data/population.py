"""Who takes part in a run: clients by id, and which samples of a data set each of them has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.data.dataset import Dataset
from fedapps.data.partition import Share, own_share, shares


@dataclass(frozen=True)
class Population:
    """The clients of a run, as far as this process has their data.

    Both sequences hold ids, in ascending order: of the clients that train, and of those that are
    held out, of which there are none so far. `share(client)` returns the indices of a client's
    samples in the data set; it raises `RunError` if the client has none here.
    """

    training: Sequence[int]
    share: Callable[[int], Share]
    held_out: Sequence[int] = ()


def partitioned(dataset: Dataset, settings: Settings) -> Population:
    """Return the clients 0..N-1 of `num-clients`, among whom a data set is distributed.

    It is distributed when the first share is needed. A server of devices has no samples to
    distribute, and needs no shares.
    """

    @cache
    def parts() -> tuple[Share, ...]:
        return shares(dataset.labels, dataset.num_train, settings)

    def share(client: int) -> Share:
        if client not in ids:
            raise RunError(f"client {client}: the clients are 0..{ids[-1]}")
        return parts()[client]

    ids = range(settings.num_clients)
    return Population(ids, share)


def of_device(dataset: Dataset, settings: Settings, own: int) -> Population:
    """Return the client `own` alone, to whom a device's data set belongs."""

    def share(client: int) -> Share:
        if client != own:
            raise RunError(f"client {client}: this device is client {own}")
        return own_share(len(dataset.target_values), dataset.num_train, client, settings)

    return Population((own,), share)
