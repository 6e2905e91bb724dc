"""Which client has which samples: a pure function of labels and settings, in every process.

First a partitioner decides which client owns which samples of a pool (`fedapps.data.partitioners`).
Then each client's samples are split here into training, test and validation samples: by a draw,
or with `split="last"` by their order.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from fedapps.core.config import LAST
from fedapps.core.data_settings import OF_PARTITIONERS
from fedapps.core.draws import partition_generator
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.core.words import number
from fedapps.data.partitioners import PARTITIONERS
from fedapps.data.partitioners.dealing import Parts, allot, deal, samples_by_client


@dataclass(frozen=True)
class Share:
    """One client's samples: int64 indices into the labels of the data set, sorted."""

    train: np.ndarray
    test: np.ndarray
    validation: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


class Shares(Sequence[Share]):
    """The shares of all clients, each of which is split when it is asked for.

    `samples` are the client's samples, or its training samples if it has `tests` of its own.
    Raises `RunError` if a client has too few.
    """

    def __init__(
        self, settings: Settings, labels: np.ndarray, samples: Parts, tests: Parts | None = None
    ) -> None:
        self.settings, self.labels = settings, labels
        self.samples, self.tests = samples, tests
        for client in np.flatnonzero(self._too_few()).tolist():
            self[client]  # says why

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, client: Any) -> Any:
        test = self.tests[client] if self.tests else None
        return _share(self.samples[client], test, self.labels, client, self.settings)

    def _too_few(self) -> np.ndarray:
        """Tell without a split which clients can have too few samples for one: bool [clients]."""
        s, sizes = self.settings, self.samples.sizes
        few = np.zeros(len(sizes), bool)
        if not self.tests:
            few |= _counted(sizes, s.test_fraction, s)[1] == 0
        if s.validation_fraction:
            sizes = sizes if self.tests else _left(self.samples, self.labels, s)
            few |= _counted(sizes, s.validation_fraction, s)[1] == 0
        return few


def shares(
    labels: np.ndarray, num_train: int, settings: Settings, owners: np.ndarray | None = None
) -> Shares:
    """Distribute a data set over `num-clients` clients; no sample is used twice.

    `labels` is int64 [N]; the first `num_train` samples are the official training set. With
    `split="merged"` or "last", all N samples are partitioned, and each client's samples are split
    by `test-fraction`. With `split="official"`, the training set is partitioned, and the test set
    is distributed in the same way, class by class. Then `validation-fraction` of each client's
    training samples is held out. `owners`, int64 [N], are the clients of all samples if the data
    say them. Raises `RunError` if the data do not allow these settings.
    """
    clients = settings.num_clients
    if settings.split != "official":
        if owners is not None:
            return Shares(settings, labels, samples_by_client(owners, clients))
        return Shares(settings, labels, _partition(labels, settings))
    if owners is None:
        train = _partition(labels[:num_train], settings)
        test = _follow(train, labels, num_train, settings)
    else:
        train, test = (samples_by_client(p, clients) for p in np.split(owners, [num_train]))
    return Shares(settings, labels, train, Parts(test.order + num_train, test.edges))


def own_share(labels: np.ndarray, num_train: int, client: int, settings: Settings) -> Share:
    """Return the share of a client with its own data: all samples, split as they are.

    `labels` is int64 [N]; the first `num_train` samples are the training part. Data without a test
    part are split by `test-fraction`. `validation-fraction` of the training samples is held out.
    Raises `RunError` if there are too few.
    """
    own, test = np.split(np.arange(len(labels)), [num_train])
    return _share(own, test if len(test) else None, labels, client, settings)


def held(sizes: np.ndarray | int, fraction: float) -> np.ndarray:
    """Return how many of so many samples a fraction is, rounded half up: never none, never all."""
    wanted = np.floor(fraction * np.asarray(sizes) + 0.5).astype(np.int64)
    return np.minimum(np.maximum(1, wanted), np.asarray(sizes) - 1)


def class_counts(labels: np.ndarray, shares: Sequence[Share]) -> np.ndarray:
    """Count the training samples by client and class: int64 [clients, classes]."""
    classes = int(labels.max()) + 1
    return np.stack([np.bincount(labels[share.train], minlength=classes) for share in shares])


def _partition(labels: np.ndarray, settings: Settings) -> Parts:
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
    few = np.flatnonzero(parts.sizes < 2)
    if len(few):
        raise RunError(
            f'partitioner = "{settings.partitioner}": client {few[0]} would get'
            f" {number(parts.sizes[few[0]], 'sample')} of {pool}; a client needs at least 2"
        )
    return parts


def _share(
    train: np.ndarray, test: np.ndarray | None, labels: np.ndarray, client: int, settings: Settings
) -> Share:
    """Return a client's share; without `test` samples, it gives away training samples for these.

    Then it gives away `validation-fraction` of those that are left. Raises `RunError` if a part
    would be empty.
    """
    if test is None:
        fraction, has = settings.test_fraction, number(len(train), "sample")
        train, test = _divided(train, labels, fraction, "split", client, settings)
        if not len(test):
            raise _too_few(f'split = "{settings.split}"', client, has, fraction, settings)
    if not settings.validation_fraction:
        return Share(train, test)
    fraction, has = settings.validation_fraction, number(len(train), "training sample")
    train, held_out = _divided(train, labels, fraction, "validation", client, settings)
    if not len(held_out):
        raise _too_few(f"validation-fraction = {fraction:g}", client, has, fraction, settings)
    return Share(train, test, held_out)


def _divided(
    samples: np.ndarray,
    labels: np.ndarray,
    fraction: float,
    step: str,
    client: int,
    settings: Settings,
) -> tuple[np.ndarray, np.ndarray]:
    """Take a fraction of a client's samples; return those that stay, and the ones taken; sorted."""
    if settings.split != LAST:
        shuffled = partition_generator(settings.seed, step, client).permutation(samples)
        size = int(held(len(samples), fraction))
        return np.sort(shuffled[size:]), np.sort(shuffled[:size])
    _, of, sizes = np.unique(labels[samples], return_inverse=True, return_counts=True)
    stay, taken = _counted(sizes, fraction, settings)
    if not taken.any():  # as with one sample of each class
        of, sizes = np.zeros_like(of), np.array([len(samples)])
        stay, taken = _counted(sizes, fraction, settings)
    place = np.empty_like(of)  # of each sample, among those of its class
    place[np.argsort(of, kind="stable")] = np.concatenate([*map(np.arange, sizes)])
    return samples[place < stay[of]], samples[place >= (sizes - taken)[of]]


def _counted(sizes: np.ndarray, fraction: float, settings: Settings) -> tuple[np.ndarray, ...]:
    """Return how many of so many samples stay, and how many are taken: all and none of too few.

    With split=last, those before the taken ones that share rows with them are in neither part.
    """
    taken = held(sizes, fraction)
    stay = sizes - taken - _overlapping(settings)
    enough = (taken > 0) & (stay > 0)
    return np.where(enough, stay, sizes), np.where(enough, taken, 0)


def _left(parts: Parts, labels: np.ndarray, settings: Settings) -> np.ndarray:
    """Return how many samples each client has left after the split for its test: [clients]."""
    sizes, fraction, clients = parts.sizes, settings.test_fraction, len(parts)
    whole, _ = _counted(sizes, fraction, settings)
    if settings.split != LAST:
        return whole
    classes = int(labels.max()) + 1
    of_class = np.repeat(np.arange(clients) * classes, sizes) + labels[parts.order]
    kinds, counts = np.unique(of_class, return_counts=True)
    both = _counted(counts, fraction, settings)
    stay, taken = (np.bincount(kinds // classes, n, minlength=clients) for n in both)
    return np.where(taken > 0, stay, whole).astype(np.int64)


def _overlapping(settings: Settings) -> int:
    """Return how many windows before those of a later part are left out, as they share rows."""
    if settings.split != LAST or not settings.window:
        return 0
    return (settings.window - 1) // (settings.window_step or settings.window)


def _too_few(key: str, client: int, has: str, fraction: float, settings: Settings) -> RunError:
    """Say how many samples a client needs to give a fraction away, and what would help."""
    between = _overlapping(settings)
    needs = next(n for n in count(between + 2) if n - held(n, fraction) > between)
    why = ", as windows that share rows with later ones are left out" if between else ""
    if settings.on_devices:
        cure = "take more data"
    elif "min-samples" in OF_PARTITIONERS[settings.partitioner]:
        cure = "raise min-samples"
    else:
        cure = "take fewer clients"
    cure += ", or raise window-step" if between else ""
    return RunError(f"{key}: client {client} has {has}, it needs {needs}{why}; {cure}")


def _follow(train: Parts, labels: np.ndarray, num_train: int, settings: Settings) -> Parts:
    """Partition the official test set like the training set: same places, or same proportions.

    The indices that are returned begin at 0.
    """
    test_owners, test = PARTITIONERS[settings.partitioner].test_owners, labels[num_train:]
    if test_owners is not None:
        owners = test_owners(test, settings)
    else:
        clients, classes = len(train), int(labels.max()) + 1
        places = np.repeat(np.arange(clients) * classes, train.sizes) + labels[train.order]
        counts = np.bincount(places, minlength=clients * classes).reshape(clients, classes)
        wanted = counts / np.maximum(counts.sum(axis=0), 1)
        sizes = np.bincount(test, minlength=classes)
        owners = deal(test, allot(wanted, sizes), partition_generator(settings.seed, "deal-test"))
    parts = samples_by_client(owners, settings.num_clients)
    few = np.flatnonzero(parts.sizes == 0)
    if len(few):
        raise RunError(
            f'split = "official": client {few[0]} would have no test sample'
            f" ({number(len(parts), 'client')}, {number(len(owners), 'test sample')});"
            ' take fewer clients, or split = "merged"'
        )
    return parts
