"""The proportions of every class are drawn from a Dirichlet distribution."""

import numpy as np

from fedapps.core import log
from fedapps.core.draws import partition_generator
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.core.words import number
from fedapps.data.partitioners.dealing import deal

MAX_DRAWS = 10_000
TOLD = 2**24  # proportions that are drawn without a word, in some seconds


def owners(labels: np.ndarray, settings: Settings) -> np.ndarray:
    """Divide every class by proportions from Dir(alpha); redraw until all clients have enough."""
    counts = _counts(np.bincount(labels), settings)
    return deal(labels, counts, partition_generator(settings.seed, "deal"))


def _counts(sizes: np.ndarray, settings: Settings) -> np.ndarray:
    """Return the first draw in which every client has `min-samples`: int64 [clients, classes].

    Draws are made in growing batches, all from one random stream, so the size of a batch affects
    nothing but speed.
    """
    clients, least = settings.num_clients, settings.min_samples
    if clients * least > sizes.sum():
        raise RunError(
            f"min-samples = {least}: {number(clients, 'client')} would need {clients * least} of"
            f" {number(sizes.sum(), 'sample')}; take at most {sizes.sum() // clients}"
        )
    rng = partition_generator(settings.seed, "dirichlet")
    largest = max(1, 2**18 // (clients * len(sizes)))  # draws in 2 MiB of proportions
    tried, batch, told = 0, 1, False
    while tried < MAX_DRAWS:
        batch = min(batch, MAX_DRAWS - tried)
        drawn = rng.dirichlet(np.full(clients, settings.alpha), size=(batch, len(sizes)))
        counts = _cut(drawn, sizes, settings.dirichlet_balance)
        enough = (counts.sum(axis=1) >= least).all(axis=1)
        good = enough & (counts.sum(axis=(1, 2)) == sizes.sum())
        if good.any():
            return counts[good.argmax()].T.astype(np.int64)
        tried, batch = tried + batch, min(2 * batch, largest)
        if not told and tried * drawn[0].size > TOLD:
            told = True
            log.info(
                f'partitioner = "dirichlet": none of {tried:,} draws with alpha ='
                f" {settings.alpha:g} gave all {number(clients, 'client')} min-samples = {least};"
                f" {MAX_DRAWS:,} are tried"
            )
    balance = "" if settings.dirichlet_balance else ", dirichlet-balance = true"
    raise RunError(
        f'partitioner = "dirichlet": none of {MAX_DRAWS:,} draws with alpha = {settings.alpha:g}'
        f" gave all {number(clients, 'client')} min-samples = {least};"
        f" take a larger alpha, fewer clients, a smaller min-samples{balance}"
    )


def _cut(drawn: np.ndarray, sizes: np.ndarray, balance: bool) -> np.ndarray:
    """Turn proportions [draws, classes, clients] into numbers of samples: float, same shape.

    With `balance`, a client that already holds its equal share of all samples gets none of the next
    class (as in the code of Yurochkin et al. 2019). If all clients that may get a class have drawn
    a proportion that is 0 in floating point, no client gets it, and the draw is incomplete.
    """
    fair = sizes.sum() / drawn.shape[2]
    counts = np.empty_like(drawn)
    held = np.zeros_like(drawn[:, 0])
    for label, size in enumerate(sizes):
        wanted = drawn[:, label] * (held < fair) if balance else drawn[:, label]
        edges = np.cumsum(wanted, axis=1)
        scale = np.where(edges[:, -1:] > 0, edges[:, -1:], 1)
        counts[:, label] = np.diff(np.rint(edges / scale * size), axis=1, prepend=0)
        held += counts[:, label]
    return counts
