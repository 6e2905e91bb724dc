"""Robust means against NumPy and SciPy: each rule on random arrays, with and without outliers."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedapps.core.errors import RunError
from fedapps.method.aggregation import plain_mean
from fedapps.method.robust import SMOOTHING, STEP, average, expected_attackers
from fedapps.method.update import ClientUpdate, replace

SHAPES = {"conv.weight": (3, 2, 2), "fc.weight": (2, 5), "fc.bias": (2,)}
RULES = ["median", "trimmed-mean", "krum", "multi-krum", "geometric-median", "clipped"]


def arrays_of(draws, scale=1.0):
    return {k: (scale * draws.normal(size=s)).astype("f4") for k, s in SHAPES.items()}


def round_of(seed, count, outliers, far=1e4):
    """A model and updates near it; the first `outliers` of them are far away."""
    draws = np.random.default_rng(seed)
    model = arrays_of(draws)
    moves = [arrays_of(draws, far if i < outliers else 0.1) for i in range(count)]
    return model, [
        ClientUpdate(i, {k: model[k] + move[k] for k in SHAPES}, i + 1, weight=10.0**i)
        for i, move in enumerate(moves)
    ]


def rule(name, share=0.2, radius=0.0):
    return SimpleNamespace(aggregation=name, robust_share=share, clip_radius=radius)


def vector(arrays):
    return np.concatenate([np.asarray(arrays[key], "f8").ravel() for key in SHAPES])


def result(name, model, updates, share=0.2, radius=0.0, state=None):
    state = {} if state is None else state
    return vector(average(rule(name, share, radius), iter(updates), model, state))


def by_hand(name, w, x, f, radius=0.0):
    """The rules as their papers write them, on vectors x [m, d]."""
    m = len(x)
    if name == "median":
        middle = np.sort(x, axis=0)
        return (middle[(m - 1) // 2] + middle[m // 2]) / 2
    if name == "trimmed-mean":
        return np.array([np.mean(sorted(entry)[f : m - f]) for entry in x.T])
    if name in ("krum", "multi-krum"):
        scores = []
        for i in range(m):
            others = sorted(np.sum((x[i] - x[j]) ** 2) for j in range(m) if j != i)
            scores.append(sum(others[: max(1, m - f - 2)]))
        order = np.argsort(scores, kind="stable")
        return x[order[0]] if name == "krum" else x[order[: m - f]].mean(0)
    if name == "geometric-median":
        return minimize(lambda z: np.linalg.norm(x - z, axis=1).sum(), np.median(x, 0)).x
    distances = np.linalg.norm(x - w, axis=1)
    limit = radius or np.median(distances)
    scales = np.minimum(1, limit / distances)
    return w + np.mean((x - w) * scales[:, None], axis=0)


def test_attackers_are_the_share_that_a_decimal_number_is():
    """0.29 x 100 is 28.999999999999996 in floating point."""
    assert expected_attackers(rule("median", 0.29), 100) == 29


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=25)
@given(seed=st.integers(0, 2**32 - 1), count=st.integers(5, 12), bad=st.booleans())
def test_a_rule_is_that_of_its_paper(name, seed, count, bad):
    """With and without outliers; sample counts, which are the clients' own claims, do not count."""
    f = expected_attackers(rule(name), count)
    model, updates = round_of(seed, count, f if bad else 0)
    x = np.array([vector(update.arrays) for update in updates])
    found, w = result(name, model, updates), vector(model)
    if name == "geometric-median":  # no minimum is lower than ours, up to what nu smooths
        ours, theirs = (
            np.linalg.norm(x - z, axis=1).sum() for z in (found, by_hand(name, w, x, f))
        )
        assert ours <= theirs * (1 + 1e-6) + count * SMOOTHING
    else:
        np.testing.assert_allclose(found, by_hand(name, w, x, f), rtol=1e-5, atol=1e-5)
    claimed = [replace(update, weight=1.0, num_examples=7) for update in updates]
    assert (found == result(name, model, claimed)).all()


@settings(max_examples=25)
@given(st.integers(0, 2**32 - 1), st.integers(1, 9))
def test_without_attackers_rules_are_the_mean(seed, count):
    model, updates = round_of(seed, count, 0)
    mean = vector(plain_mean(updates)[0])
    for name, share, radius in (("trimmed-mean", 0.0, 0.0), ("multi-krum", 0.0, 0.0),
                                ("clipped", 0.2, 1e6)):  # fmt: skip
        found = result(name, model, updates, share, radius)
        np.testing.assert_allclose(found, mean, rtol=1e-6, atol=1e-7)
    same = [replace(update, arrays=updates[0].arrays) for update in updates]
    for name in RULES:
        np.testing.assert_allclose(result(name, model, same), vector(same[0].arrays), atol=1e-6)


def test_krum_returns_one_of_the_updates_to_the_last_bit():
    model, updates = round_of(3, 9, 1)
    found = result("krum", model, updates)
    assert any((found == vector(update.arrays)).all() for update in updates)


def test_clipping_is_centered_on_the_last_step():
    """Two rounds by hand: the second center is the model plus what the first round moved."""
    model, updates = round_of(5, 8, 0)
    state = {}
    first = result("clipped", model, updates, radius=0.2, state=state)
    step = np.concatenate([state[STEP + key].ravel() for key in SHAPES])
    w = vector(model)
    np.testing.assert_allclose(w + step, first, atol=1e-6)
    x = np.array([vector(update.arrays) for update in updates])
    second = result("clipped", model, updates, radius=0.2, state=state)
    expected = by_hand("clipped", w + step, x, 0, radius=0.2)
    np.testing.assert_allclose(second, expected, rtol=1e-5, atol=1e-6)
    assert not np.allclose(first, second)


def test_different_layers_are_refused():
    model, updates = round_of(0, 3, 0)
    updates[2] = replace(updates[2], arrays={"fc.bias": updates[2].arrays["fc.bias"]})
    with pytest.raises(RunError, match="clients 0 and 2 upload different layers"):
        result("median", model, updates)
