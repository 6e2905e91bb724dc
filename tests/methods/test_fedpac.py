"""FedPAC: alignment, centroids and the mixture of heads, in float64 and plain autograd."""

import numpy as np
import pytest
import scipy.optimize
import torch
from scipy.optimize import minimize
from torch.nn.functional import mse_loss

from fedapps.training.draw import Draw
from strategies.fedpac import head_weights, shortened
from tests.support.references import (
    BATCH,
    LR,
    assert_close,
    ce,
    features,
    final,
    grad,
    moved,
    reference,
)

BODY = ("body.1.weight", "body.1.bias")


def part(p, body):
    return {key: value for key, value in p.items() if (key in BODY) == body}


def statistics(p, x, y):
    """Class means [3, 4], v and counts of a model's features."""
    found = features(p, x)
    count = torch.bincount(y, minlength=3).double()
    means = torch.stack([found[y == k].sum(0) / max(1, int(count[k])) for k in range(3)])
    v, n = 0.0, len(y)
    for k in range(3):
        of_class = found[y == k]
        if len(of_class):
            share = len(of_class) / n
            v += share * float((of_class @ of_class.T).trace()) / len(of_class)
            v -= share**2 * float(means[k] @ means[k])
    return means, v / n, count


def two_weights(h, v, i):
    """The weight of client 0 among two, by the derivative of the objective."""
    far = float(((h[0] - h[1]) ** 2).sum())
    own = (v[1 - i] + far) / (v[0] + v[1] + far)
    return [own, 1 - own] if i == 0 else [1 - own, own]


def test_three_rounds_of_fedpac(small, serial_run, flat_config, fits):
    options = 'strategy="fedpac" num-rounds=3 fedpac.lambda=0.7 local-epochs=1'
    serial_run(small, options)
    ref = reference(flat_config, small, options)
    body, heads, centroids = part(ref.start, True), [part(ref.start, False)] * 2, None
    for round_ in (1, 2, 3):
        trained, first, own = [], [], []
        for i in (0, 1):
            x, y = ref.data(i)
            p = body | heads[i]
            first.append(statistics(p, x, y))
            targets = first[i][0]
            if centroids is not None:
                targets = torch.where(centroids[1][:, None], centroids[0], targets)

            def aligned(p, x, y, targets=targets, pulls=centroids is not None):
                return ce(p, x, y) + 0.7 * pulls * mse_loss(features(p, x), targets[y])

            for epoch, loss, of_body in ((0, ce, False), (1, aligned, True)):
                for chosen in Draw(0, "train", round_, i).order(epoch, len(y)).split(BATCH):
                    g = part(grad(p, x[chosen], y[chosen], loss), of_body)
                    p = p | moved(part(p, of_body), g, -LR)
            own.append(statistics(p, x, y))
            trained.append(p)
        body = part(ref.mean(trained), True)
        count = torch.stack([one[2] for one in own])
        total = sum(n[:, None] * one[0] for n, one in zip(count, own, strict=True))
        centroids = total / count.sum(0).clamp(min=1)[:, None], count.sum(0) > 0
        h = [one[0] * one[2][:, None] / one[2].sum() for one in first]
        heads = []
        for i in (0, 1):
            a = two_weights(h, [one[1] for one in first], i)
            heads.append({k: a[0] * trained[0][k] + a[1] * trained[1][k] for k in part(p, False)})
        last = trained
    for client in (0, 1):
        assert_close(final(fits, client)[1].arrays, last[client])


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
