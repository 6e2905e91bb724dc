"""The weighted mean of client updates against NumPy, and the identities it obeys."""

import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps.core.errors import RunError
from fedapps.engine.returned import check_aggregate
from fedapps.method.aggregation import plain_mean, weighted_mean
from fedapps.method.update import ClientUpdate

SHAPES = {"conv.weight": (3, 2, 2), "fc.weight": (4, 5), "fc.bias": (4,)}


def updates_of(seed, n, scale=1.0):
    draws = np.random.default_rng(seed)
    return [
        ClientUpdate(
            client=client,
            arrays={k: (scale * draws.normal(size=s)).astype("f4") for k, s in SHAPES.items()},
            num_examples=1,
            weight=float(draws.integers(1, 1000)),
        )
        for client in range(n)
    ]


cases = st.builds(
    updates_of, seed=st.integers(0, 2**32 - 1), n=st.integers(1, 12),
    scale=st.sampled_from([1e-3, 1.0, 1e4]),
)  # fmt: skip


def largest(updates, key):
    return max(np.abs(update.arrays[key]).max() for update in updates)


def agree(a, b, updates):
    assert a.keys() == b.keys() == SHAPES.keys()
    for key in a:
        np.testing.assert_allclose(a[key], b[key], rtol=1e-6, atol=1e-7 * largest(updates, key))


@settings(max_examples=50, deadline=None)
@given(cases)
def test_mean_is_numpys_average(updates):
    weights = [update.weight for update in updates]
    means, total = weighted_mean(iter(updates))
    assert total == sum(weights)
    for key in SHAPES:
        stack = np.stack([update.arrays[key] for update in updates]).astype(np.float64)
        exact = np.average(stack, axis=0, weights=weights)
        assert means[key].dtype == np.float32 and means[key].shape == SHAPES[key]
        # float64 inside: nothing is lost but the last rounding to float32
        last_bit = np.spacing(np.abs(exact).astype(np.float32)) / 2
        noise = 1e-14 * largest(updates, key)
        assert (np.abs(means[key] - exact) <= last_bit * (1 + 1e-6) + noise).all()


@settings(max_examples=50, deadline=None)
@given(cases, st.data())
def test_mean_of_means_with_summed_weights_is_the_mean(updates, data):
    """What SuperNodes send with `presum` gives what all updates together give."""
    at = data.draw(st.integers(0, len(updates)))
    parts = [part for part in (updates[:at], updates[at:]) if part]
    summed = []
    for part in parts:
        mean, total = weighted_mean(part)
        silent = [replace(update, arrays={}, weight=0.0) for update in part[1:]]
        summed += [replace(part[0], arrays=mean, weight=total), *silent]
    means, total = weighted_mean(updates)
    again, same_total = weighted_mean(summed)
    assert total == same_total
    agree(means, again, updates)


def test_updates_are_read_one_by_one_and_left_as_they_are():
    held = updates_of(0, 5)
    copies = updates_of(0, 5)
    for update in held:
        for array in update.arrays.values():
            array.setflags(write=False)  # as the views of a message are
    weighted_mean(iter(held))
    for update, copy in zip(held, copies, strict=True):
        assert all(np.array_equal(update.arrays[key], copy.arrays[key]) for key in SHAPES)


def test_nothing_in_nothing_out():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert weighted_mean([]) == ({}, 0.0)
        assert weighted_mean([ClientUpdate(0, {}, 5, weight=5.0)]) == ({}, 5.0)


@settings(max_examples=50, deadline=None)
@given(cases, st.data())
def test_a_plain_mean_is_over_the_updates_that_carry_an_array(updates, data):
    """As NumPy's mean over those, whatever their weights; the count is of all updates."""
    carried = st.sets(st.sampled_from(sorted(SHAPES)))
    sets = [data.draw(carried) for _ in updates]
    part = [
        replace(update, arrays={key: update.arrays[key] for key in keys})
        for update, keys in zip(updates, sets, strict=True)
    ]
    means, count = plain_mean(iter(part))
    assert count == len(updates)
    assert means.keys() == set().union(*sets)
    for key, mean in means.items():
        stack = np.stack([update.arrays[key] for update in part if key in update.arrays])
        expected = stack.astype(np.float64).mean(axis=0)
        assert mean.dtype == np.float64
        np.testing.assert_allclose(mean, expected, rtol=1e-12, atol=1e-14 * largest(updates, key))
    ones = [replace(update, weight=1.0) for update in part]
    for key, mean in weighted_mean(ones)[0].items():
        np.testing.assert_array_equal(mean, means[key].astype(np.float32))


@pytest.mark.parametrize("value", [1e39, np.inf, np.nan])
def test_what_is_no_float32_is_not_aggregated(value):
    layout = SimpleNamespace(shapes=SHAPES, variances=())
    with pytest.raises(RunError, match=r"^round 3: aggregate gave fc.bias, which is not finite$"):
        check_aggregate(3, {"fc.bias": np.full(4, value)}, layout)
