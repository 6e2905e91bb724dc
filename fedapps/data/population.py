"""Who takes part in a run: clients by id, and which samples of a data set each of them has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache

import msgspec
import numpy as np

from fedapps.core import listed
from fedapps.core.config import NATURAL
from fedapps.core.draws import generator
from fedapps.core.errors import RunError
from fedapps.core.ids import Ids, without
from fedapps.core.settings import Settings
from fedapps.data.dataset import Dataset
from fedapps.data.partition import Share, Shares, own_share, shares
from fedapps.data.partitioners.natural import clients_of

KEPT = 10_000  # shares that stay in memory; others are split again when they are needed


@dataclass(frozen=True)
class Population:
    """The clients of a run, as far as this process has their data.

    Both sequences hold ids, in ascending order: of the clients that train, and of those that are
    held out and come after the training (`unseen-clients`). `share(client)` returns the indices of
    a client's samples in the data set; it raises `RunError` if the client has none here. `names`
    are what the data call the clients, if they do; `told` are lines that a user has to know.
    """

    training: Sequence[int]
    share: Callable[[int], Share]
    held_out: Sequence[int] = ()
    names: Sequence[str] = ()
    told: tuple[str, ...] = ()

    @property
    def some_client(self) -> int:
        """A client that trains, for what the plans of all clients have in common."""
        return self.training[0]


def partitioned(dataset: Dataset, settings: Settings, known: Sequence[str] = ()) -> Population:
    """Return the clients 0..N-1 of `num-clients`, among whom a data set is distributed.

    It is distributed when the first share is needed. A server of devices has no samples to
    distribute, and needs no shares. With `partitioner="natural"`, the data say who the clients are;
    those of a run that is over are `known`.
    """
    if settings.split == "official" and 0 < dataset.num_train == len(dataset.target_values):
        raise RunError('split = "official": the data have no test set; use split = "merged"')
    natural = None
    if settings.partitioner == NATURAL and not settings.on_devices:
        natural = clients_of(dataset, settings, known)
        settings = msgspec.structs.replace(settings, num_clients=len(natural.names))

    @cache
    def parts() -> Shares:
        owners = natural.owners if natural else None
        return shares(dataset.labels, dataset.num_train, settings, owners)

    @lru_cache(KEPT)
    def share(client: int) -> Share:
        if client not in ids:
            raise RunError(f"client {client}: the clients are 0..{ids[-1]}")
        found: Share = parts()[client]
        return few(found, client, dataset, settings) if client in unseen else found

    ids = range(settings.num_clients)
    unseen = Ids(held_out(settings, natural.names if natural else ()))
    training = without(len(ids), unseen)
    if natural is None:
        return Population(training, share, unseen)
    return Population(training, share, unseen, natural.names, natural.told)


def of_device(dataset: Dataset, settings: Settings, own: int) -> Population:
    """Return the client `own` alone, to whom a device's data set belongs."""

    def share(client: int) -> Share:
        if client != own:
            raise RunError(f"client {client}: this device is client {own}")
        found = own_share(dataset.labels, dataset.num_train, client, settings)
        return few(found, client, dataset, settings) if own in held_out(settings) else found

    return Population((own,), share)


def held_out(settings: Settings, names: Sequence[str] = ()) -> tuple[int, ...]:
    """Return the clients that `unseen-clients` keeps out of training; raises `RunError`."""
    return listed.unseen(settings.unseen_clients, settings.num_clients, settings.seed, names)


def few(share: Share, client: int, dataset: Dataset, settings: Settings) -> Share:
    """Return a share with the first `few-shot` training samples of each class; 0: with all.

    They are the first ones in an order drawn by the seed, so fewer are a part of more. Without
    classes they are the first of all samples.
    """
    if not settings.few_shot:
        return share
    order = generator(settings.seed, "few-shot", client).permutation(share.train)
    classes = dataset.labels[order]
    taken = [order[classes == one][: settings.few_shot] for one in np.unique(classes)]
    return replace(share, train=np.sort(np.concatenate(taken)))
