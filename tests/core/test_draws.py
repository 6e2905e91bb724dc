"""Draws: pure functions of the seed and of what they are for, and even ones."""

import zlib
from fractions import Fraction
from itertools import pairwise, product

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps.core.draws import generator, sample_clients
from fedapps.training.draw import Draw

# Frozen values of `test_the_scheme_is_the_one_of_published_runs`
SAMPLE = 4044060355
FIRST = [19, 21, 57, 66, 67, 75, 81, 91, 95, 97]
LATER = [1, 2, 12, 14, 15]
ORDER = [1, 3, 0, 4, 6, 5, 2, 7]
CROPS = [[0, 1, 8, 3], [5, 8, 1, 4], [False, True, False, False]]
TORCH = 6547140472696104969


@settings(max_examples=100, deadline=None)
@given(percent=st.integers(1, 100), clients=st.integers(1, 1000))
def test_size_is_the_floor_of_the_exact_product(percent, clients):
    """In float64, 0.29 x 100 is below 29; a fraction of two decimals must not feel that."""
    exact = max(Fraction(percent, 100) * clients // 1, 1)
    assert len(sample_clients(0, 1, clients, percent / 100)) == exact


def test_all_float_traps_of_two_decimals_up_to_1000_clients():
    traps = [
        (percent, n)
        for percent, n in product(range(1, 101), (10, 50, 100, 200, 1000))
        if int(percent / 100 * n) != percent * n // 100
    ]
    assert (29, 100) in traps
    for percent, n in traps:
        assert len(sample_clients(0, 1, n, percent / 100)) == percent * n // 100


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**40), round_=st.integers(1, 1000), clients=st.integers(1, 200),
    fraction=st.floats(0.001, 1),
)  # fmt: skip
def test_sample_is_ascending_without_repetition_and_repeatable(seed, round_, clients, fraction):
    chosen = sample_clients(seed, round_, clients, fraction)
    assert all(a < b for a, b in pairwise(chosen))
    assert set(chosen) <= set(range(clients))
    assert all(type(client) is int for client in chosen)
    np.random.seed(seed % 2**32)  # the global state plays no part
    assert sample_clients(seed, round_, clients, fraction) == chosen


def test_every_client_has_the_same_chance():
    """3 of 10 in 4,000 rounds: chi-squared below its 0.999 quantile, for clients and for pairs."""
    rounds = 4000
    counts, pairs = np.zeros(10), np.zeros((10, 10))
    for round_ in range(1, rounds + 1):
        chosen = sample_clients(0, round_, 10, 0.3)
        counts[chosen] += 1
        pairs[np.ix_(chosen, chosen)] += 1
    expected = 0.3 * rounds
    # without replacement the statistic is (1 - 3/10) 10/9 times a chi-squared of 9 degrees
    assert ((counts - expected) ** 2 / expected).sum() / (0.7 * 10 / 9) < 27.9
    together = pairs[np.triu_indices(10, 1)]
    assert np.abs(together - rounds * 3 / 10 * 2 / 9).max() < 4 * np.sqrt(rounds / 15)


def test_rounds_and_seeds_differ():
    samples = {tuple(sample_clients(s, r, 100, 0.1)) for s in range(10) for r in range(1, 51)}
    assert len(samples) == 500


def test_no_two_streams_are_the_same():
    """Seeds, phases, purposes, rounds, clients and epochs: all small numbers against each other."""
    small = range(4)
    keys = [
        (seed, f"{phase}-{purpose}", *rest)
        for seed, phase, purpose in product(
            small, ("train", "finetune", "server"), ("shuffle", "augment")
        )
        for rest in product(small, repeat=3)
    ]
    firsts = {generator(*key).integers(2**63) for key in keys}
    assert len(firsts) == len(keys)


def test_the_draws_of_one_training_differ():
    draws = [
        Draw(seed, phase, round_, client)
        for seed, phase, round_, client in product((0, 1), ("train", "finetune"), (1, 2), (0, 1))
    ]
    orders = {tuple(d.order(e, 50).tolist()) for d in draws for e in range(3)}
    crops = {d.crops(e, 50)[0].tobytes() for d in draws for e in range(3)}
    assert len(orders) == len(crops) == 3 * len(draws)
    assert len({d.torch_seed() for d in draws}) == len(draws)
    assert all(0 <= d.torch_seed() < 2**63 for d in draws)


def test_the_scheme_is_the_one_of_published_runs():
    """Frozen: a change here changes every run that was ever reported."""
    assert zlib.crc32(b"sample") == SAMPLE
    assert sample_clients(0, 1, 100, 0.1) == FIRST
    assert sample_clients(7, 30, 20, 0.25) == LATER
    rule = np.random.default_rng([7, SAMPLE, 30]).choice(20, 5, replace=False)
    assert sorted(rule.tolist()) == LATER
    draw = Draw(seed=1, phase="train", round=2, client=3)
    assert draw.order(4, 8).tolist() == ORDER
    rule = np.random.default_rng([1, zlib.crc32(b"train-shuffle"), 2, 3, 4]).permutation(8)
    assert rule.tolist() == ORDER
    top, left, flip = draw.crops(0, 4)
    assert [top.tolist(), left.tolist(), flip.tolist()] == CROPS
    assert draw.torch_seed() == TORCH
