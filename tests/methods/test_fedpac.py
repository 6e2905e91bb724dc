"""FedPAC: the weights of the mixture of heads; its twin has all else."""

import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import minimize

from strategies.fedpac import head_weights, shortened


def test_head_weights_are_the_minimum_on_the_simplex():
    """Against scipy's general solver, from the objective as the paper writes it."""
    draws = np.random.default_rng(0)
    for m in (1, 2, 5, 8):
        h, v = draws.normal(size=(m, 12)) * draws.uniform(0.1, 2), draws.uniform(0.01, 1, m)

        def objective(a, h=h, v=v):
            return (a**2 * v).sum() + ((a @ (h[0] - h)) ** 2).sum()

        found = head_weights(h, v, 0)
        best = minimize(objective, np.ones(m) / m, bounds=[(0, 1)] * m, options={"ftol": 1e-14},
                        constraints={"type": "eq", "fun": lambda a: a.sum() - 1}).x  # fmt: skip
        assert found.sum() == 1 or abs(found.sum() - 1) < 1e-12
        np.testing.assert_allclose(found, best, atol=2e-3)
        assert objective(found) <= objective(best) * 1.01  # small weights are dropped


@pytest.mark.parametrize(("m", "size", "rank"), [(1, 12, 1), (8, 900, 8), (8, 900, 3), (9, 5, 5)])
def test_the_weights_of_shortened_features_are_the_same(m, size, rank):
    draws = np.random.default_rng(m)
    base = draws.normal(size=(rank, size))
    h, v = base[draws.integers(0, rank, m)] + draws.normal(size=(m, rank)) @ base, draws.random(m)
    short = shortened(h)
    assert short.shape == (m, min(m, size))
    for i in range(m):
        found, whole = head_weights(short, v, i), head_weights(h, v, i)
        np.testing.assert_allclose(found, whole, rtol=0, atol=1e-12)


def test_a_weighting_takes_no_longer_for_more_features(small, serial_run, monkeypatch):
    """Two clients, three classes, four features: C d = 12 rows would be 15 with the others."""
    shapes, solve = [], scipy.optimize.nnls

    def watched(matrix, target):
        shapes.append(matrix.shape)
        return solve(matrix, target)

    monkeypatch.setattr(scipy.optimize, "nnls", watched)
    serial_run(small, 'strategy="fedpac" num-rounds=1 local-epochs=1')
    assert shapes == [(2 + 2 + 1, 2)] * 2


@pytest.mark.parametrize("m", [500, 1000, 1001])
def test_among_very_many_equal_clients_all_weigh_the_same(m):
    """Although each weight is then below the one that is dropped."""
    found = head_weights(np.zeros((m, 1)), np.ones(m), 0)
    np.testing.assert_allclose(found, 1 / m, rtol=1e-9)
