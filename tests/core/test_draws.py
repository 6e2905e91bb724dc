"""Draws: pure functions of the seed and of what they are for, and even ones."""

import zlib
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


def test_size_is_the_floor_of_the_exact_product():
    """In float64, 0.29 x 100 is below 29; a fraction of two decimals must not feel that."""
    pairs = [*product(range(1, 101), (1, 7, 10, 50, 100, 200, 1000))]
    assert (29, 100) in [(p, n) for p, n in pairs if int(p / 100 * n) != p * n // 100]
    for percent, n in pairs:
        assert len(sample_clients(0, 1, n, percent / 100)) == max(percent * n // 100, 1)


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
