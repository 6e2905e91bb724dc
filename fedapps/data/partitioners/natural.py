"""Clients that exist: each group of the data, such as a person or a hospital, is a client."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedapps.core.draws import generator
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.core.words import alike, in_a_cell, number, some
from fedapps.data.dataset import Dataset
from fedapps.data.partitioners.dealing import NOBODY

NEEDED = (
    "groups in the .npz, client-column of a table, or a folder with a file or a folder for each"
    " client (a folder that holds files of samples is a class; it lies in one for its client)"
)


@dataclass(frozen=True)
class Found:
    """The owner of each sample, int64 [N] (-1: nobody), and the names of the clients.

    `told` says which groups are no clients, if the seed has drawn those that are, and who is who.
    """

    owners: np.ndarray
    names: tuple[str, ...]
    told: tuple[str, ...] = ()


def clients_of(dataset: Dataset, settings: Settings, known: Sequence[str] = ()) -> Found:
    """Return the clients that the data name, and their samples.

    Clients are in the order of their names, or of their numbers if all are numbers. A group with
    fewer than `min-samples` samples to train on (to train and test on with `split="merged"`) or
    without any to be tested on is no client. With `num-clients`, so many are drawn. Those who are
    `known` as clients of a run that is over keep their numbers, and nobody else is a client. Raises
    `RunError` if the data do not say who a sample is from, if one who is known is not left, or if
    too few groups are.
    """
    if dataset.groups is None:
        more = "" if dataset.columns else "".join(f"; {line}" for line in dataset.told)
        who = f"{dataset.name} does not say who a sample is from"
        raise RunError(f'partitioner = "natural": {who}: {NEEDED}{more}')
    names, group = np.unique(dataset.groups, return_inverse=True)
    official, wanted = settings.split == "official", settings.num_clients
    pool, tests = np.split(group, [dataset.num_train]) if official else (group, group)
    enough = np.bincount(pool, minlength=len(names)) >= settings.min_samples
    tested = np.bincount(tests, minlength=len(names)) > 0
    left = np.flatnonzero(enough & tested)
    texts = names.astype(str)
    if known:
        left = _still_there(texts, left, dataset, settings, known)
    if len(left) < max(wanted, 1):
        cure = "; ".join(_cures(enough, tested, wanted))
        because = f" ({'; '.join(dataset.told)})" if dataset.told else ""
        raise RunError(
            f"num-clients = {wanted}: {len(left)} of {number(len(names), 'group')} have"
            f" min-samples = {settings.min_samples} samples; {cure}{because}"
        )
    left, told = (left, []) if known else _numbered(texts, left, settings)
    owner_of = np.full(len(names), NOBODY)
    owner_of[left] = np.arange(len(left))
    named = texts[left].tolist()
    same = alike("clients", texts.tolist())  # also those with few samples, as misspelled ones have
    told = [*_left_out(texts, enough, tested, settings), *told, *same]
    if len(named) < len(texts):
        numbered = [f"{client} = {name}" for client, name in enumerate(named)]
        told.append(f"the clients are {some(numbered)}")
    return Found(owner_of[group], tuple(named), tuple(told))


def _still_there(
    texts: np.ndarray, left: np.ndarray, dataset: Dataset, settings: Settings, known: Sequence[str]
) -> np.ndarray:
    """Return the places of those who are `known`, in order; raises `RunError` if one is not `left`.

    In the table that has kept their names, tabs and ends of lines are blanks.
    """
    places = defaultdict[str, list[int]](list)
    for place in left.tolist():
        places[in_a_cell(texts[place])].append(place)
    lost = [name for name, count in Counter(known).items() if len(places[name]) < count]
    if lost:
        raise RunError(
            f"{dataset.name}: client {lost[0]} of the run is not there, or has too few samples"
            f" (min-samples = {settings.min_samples}); put back what the run had, or use models"
            " exported before"
        )
    return np.array([places[name].pop(0) for name in known])


def _cures(enough: np.ndarray, tested: np.ndarray, wanted: int) -> Iterator[str]:
    """Say what gives more clients, or needs fewer; only what helps."""
    some_left = (enough & tested).any()
    if wanted and some_left:
        yield "num-clients = 0 takes all of them"
    if untested := int((enough & ~tested).sum()):
        yield f'{untested} more have no test sample: split = "merged" gives some'
    elif not enough.all() and (len(enough) >= wanted or not some_left):
        yield "lower min-samples for more"


def _left_out(
    texts: np.ndarray, enough: np.ndarray, tested: np.ndarray, settings: Settings
) -> list[str]:
    """Tell which groups are no clients, by reason: too few samples, or none to be tested on."""
    samples = "training samples" if settings.split == "official" else "samples"
    reasons = {
        f"have fewer than min-samples = {settings.min_samples} {samples} and take no part": ~enough,
        'have no test sample and take no part (split = "merged" gives some)': enough & ~tested,
    }
    return [
        f"{out.sum()} of {number(len(texts), 'group')} {why}: {some(texts[out].tolist())}"
        for why, out in reasons.items()
        if out.any()
    ]


def _numbered(
    texts: np.ndarray, left: np.ndarray, settings: Settings
) -> tuple[np.ndarray, list[str]]:
    """Return the places of the groups `left` that are clients, in order; and tell of a draw."""
    told, count, wanted = list[str](), len(left), settings.num_clients
    if wanted:
        left = np.sort(generator(settings.seed, "natural").permutation(left)[:wanted])
    if 0 < wanted < count:
        told.append(
            f"num-clients = {wanted} of {number(count, 'group')}: seed = {settings.seed} draws"
            " them, and another seed draws others; num-clients = 0 takes all"
        )
    if all(text.removeprefix("-").isdecimal() for text in texts):
        left = np.array(sorted(left.tolist(), key=lambda place: int(texts[place])))
    return left, told
