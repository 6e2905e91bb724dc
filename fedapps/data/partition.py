"""Which client has which samples: a pure function of labels and settings, in every process.

First a partitioner decides which client owns which samples of a pool (`fedapps.data.partitioners`).
Then each client's samples are split here into training, test and validation samples.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from fedapps.core.draws import partition_generator
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.core.words import number
from fedapps.data.partitioners import PARTITIONERS
from fedapps.data.partitioners.dealing import allot, deal, samples_by_client


@dataclass(frozen=True)
class Share:
    """One client's samples: int64 indices into the labels of the data set, sorted."""

    train: np.ndarray
    test: np.ndarray
    validation: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


def shares(
    labels: np.ndarray, num_train: int, settings: Settings, owners: np.ndarray | None = None
) -> tuple[Share, ...]:
    """Distribute a data set over `num-clients` clients; no sample is used twice.

    `labels` is int64 [N]; the first `num_train` samples are the official training set. With
    `split="merged"`, all N samples are partitioned, and each client's samples are split by
    `test-fraction`. With `split="official"`, the training set is partitioned, and the test set is
    distributed in the same way, class by class. Then `validation-fraction` of each client's
    training samples is held out. `owners`, int64 [N], are the clients of all samples if the data
    say them. Raises `RunError` if the data do not allow these settings.
    """
    if settings.split == "merged":
        own = _partition(labels, settings) if owners is None else _owned(owners, settings)
        parts = [_split(part, client, settings) for client, part in enumerate(own)]
    elif owners is None:
        train = _partition(labels[:num_train], settings)
        test = _follow(train, labels, num_train, settings)
        parts = [Share(*pair) for pair in zip(train, test, strict=True)]
    else:
        train, test = (_owned(part, settings) for part in np.split(owners, [num_train]))
        parts = [Share(*pair) for pair in zip(train, [t + num_train for t in test], strict=True)]
    if not settings.validation_fraction:
        return tuple(parts)
    return tuple(_hold_out(part, client, settings) for client, part in enumerate(parts))


def own_share(size: int, num_train: int, client: int, settings: Settings) -> Share:
    """Return the share of a client with its own data: all `size` samples, split as they are.

    Data without test samples are split by `test-fraction`. `validation-fraction` of the training
    samples is held out. Raises `RunError` if there are too few.
    """
    if num_train < size:
        share = Share(np.arange(num_train), np.arange(num_train, size))
    elif size < 2:
        raise RunError(f"client {client} has {number(size, 'sample')}; it needs at least 2")
    else:
        share = _split(np.arange(size), client, settings)
    return _hold_out(share, client, settings) if settings.validation_fraction else share


def class_counts(labels: np.ndarray, shares: Sequence[Share]) -> np.ndarray:
    """Count the training samples by client and class: int64 [clients, classes]."""
    return _counts_of_parts(labels, [share.train for share in shares])


def _owned(owners: np.ndarray, settings: Settings) -> list[np.ndarray]:
    return samples_by_client(owners, settings.num_clients)


def _partition(labels: np.ndarray, settings: Settings) -> list[np.ndarray]:
    """Partition a pool over the clients; return each client's sorted indices, at least 2."""
    clients, pool = settings.num_clients, len(labels)
    if 2 * clients > pool:
        raise RunError(
            f"num-clients = {clients}: {number(clients, 'client')} for {number(pool, 'sample')};"
            " a client needs at least 2; take fewer clients or more data"
        )
    find = PARTITIONERS[settings.partitioner].owners
    assert find is not None, "the data say who has which samples"
    parts = samples_by_client(find(labels, settings), clients)
    for client, part in enumerate(parts):
        if len(part) < 2:
            raise RunError(
                f'partitioner = "{settings.partitioner}": client {client} would get'
                f" {number(len(part), 'sample')} of {pool}; a client needs at least 2"
            )
    return parts


def _split(part: np.ndarray, client: int, settings: Settings) -> Share:
    """Shuffle a client's samples and split them into training and test samples, both not empty."""
    shuffled = partition_generator(settings.seed, "split", client).permutation(part)
    wanted = math.floor(settings.test_fraction * len(part) + 0.5)
    num_test = min(max(1, wanted), len(part) - 1)
    return Share(np.sort(shuffled[num_test:]), np.sort(shuffled[:num_test]))


def _hold_out(share: Share, client: int, settings: Settings) -> Share:
    """Move some training samples to validation: at least one moves, and at least one stays."""
    if len(share.train) < 2:
        raise RunError(
            f"validation-fraction = {settings.validation_fraction:g}: client {client} has"
            f" {number(len(share.train), 'training sample')}, it needs 2; raise min-samples"
        )
    shuffled = partition_generator(settings.seed, "validation", client).permutation(share.train)
    wanted = math.floor(settings.validation_fraction * len(shuffled) + 0.5)
    held = min(max(1, wanted), len(shuffled) - 1)
    return Share(np.sort(shuffled[held:]), share.test, np.sort(shuffled[:held]))


def _follow(
    train: Sequence[np.ndarray], labels: np.ndarray, num_train: int, settings: Settings
) -> list[np.ndarray]:
    """Partition the official test set like the training set: same places, or same proportions."""
    test_owners = PARTITIONERS[settings.partitioner].test_owners
    if test_owners is not None:
        owners = test_owners(labels[num_train:], settings)
    else:
        counts = _counts_of_parts(labels, train)
        wanted = counts / np.maximum(counts.sum(axis=0), 1)
        test = labels[num_train:]
        sizes = np.bincount(test, minlength=counts.shape[1])
        owners = deal(test, allot(wanted, sizes), partition_generator(settings.seed, "deal-test"))
    parts = samples_by_client(owners, settings.num_clients)
    for client, part in enumerate(parts):
        if len(part) == 0:
            raise RunError(
                f'split = "official": client {client} would have no test sample'
                f" ({number(len(parts), 'client')}, {number(len(owners), 'test sample')});"
                ' take fewer clients, or split = "merged"'
            )
    return [part + num_train for part in parts]


def _counts_of_parts(labels: np.ndarray, parts: Sequence[np.ndarray]) -> np.ndarray:
    classes = int(labels.max()) + 1
    return np.stack([np.bincount(labels[part], minlength=classes) for part in parts])
