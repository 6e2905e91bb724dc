"""Who takes part in a run: clients by id, and which samples of a data set each of them has."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from fedapps.core import listed
from fedapps.core.draws import generator
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.data.dataset import Dataset
from fedapps.data.partition import Share, own_share, shares


@dataclass(frozen=True)
class Population:
    """The clients of a run, as far as this process has their data.

    Both sequences hold ids, in ascending order: of the clients that train, and of those that are
    held out and come after the training (`unseen-clients`). `share(client)` returns the indices of
    a client's samples in the data set; it raises `RunError` if the client has none here.
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
        found = parts()[client]
        return few(found, client, dataset, settings) if client in unseen else found

    ids = range(settings.num_clients)
    held = held_out(settings)
    unseen = {*held}
    return Population([c for c in ids if c not in unseen] if held else ids, share, held)


def of_device(dataset: Dataset, settings: Settings, own: int) -> Population:
    """Return the client `own` alone, to whom a device's data set belongs."""

    def share(client: int) -> Share:
        if client != own:
            raise RunError(f"client {client}: this device is client {own}")
        found = own_share(len(dataset.target_values), dataset.num_train, client, settings)
        return few(found, client, dataset, settings) if own in held_out(settings) else found

    return Population((own,), share)


def held_out(settings: Settings) -> tuple[int, ...]:
    """Return the clients that `unseen-clients` keeps out of training; raises `RunError`."""
    return listed.unseen(settings.unseen_clients, settings.num_clients, settings.seed)


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
