"""FedAMP: the weights of mixtures; its twin has the training."""

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from fedapps.core import config
from fedapps.training.workspace import Workspace
from strategies.fedamp import FedAMP


@pytest.mark.parametrize("similarity", ["distance", "cosine"])
def test_weights_are_those_of_the_equations(flat_config, small, similarity):
    options = (
        f'strategy="fedamp" num-clients=5 min-samples=4 fedamp.similarity="{similarity}" '
        "fedamp.step=3.0 fedamp.sigma=9.0 fedamp.own-weight=0.2"
    )
    strategy = FedAMP(Workspace(config.read(flat_config(small, options))))
    draws = np.random.default_rng(0)
    w = {}
    for j in (0, 1, 3, 4):  # client 2 has sent nothing
        w[j] = {k: (v + draws.normal(size=v.shape) * 0.02 * (1 + j)).astype("f4")
                for k, v in strategy.arrays.items()}  # fmt: skip
        strategy.keep_last(j, w[j])
        strategy.state["sent"][j] = True
    flat = {j: np.concatenate([w[j][k].ravel() for k in w[j]]).astype(float) for j in w}
    for i in w:
        others = [j for j in w if j != i]
        if similarity == "distance":
            xi = [3 * np.exp(-((flat[i] - flat[j]) ** 2).sum() / 9) / 9 for j in others]
            xi = np.array(xi) / max(1, sum(xi))
        else:
            norm = {j: np.sqrt((flat[j] ** 2).sum()) for j in w}
            xi = np.exp([9 * (flat[i] * flat[j]).sum() / norm[i] / norm[j] for j in others])
            xi = 0.8 * xi / xi.sum()
        row = strategy.weights(i)
        np.testing.assert_allclose(row[others], xi, rtol=1e-9)
        assert row[2] == 0 and (row >= 0).all() and row.sum() == pytest.approx(1)
        u = strategy.download(2, i, strategy.plan(2, i))
        for key, value in u.items():
            expected = sum(row[j] * w[j][key].astype(float) for j in w)
            np.testing.assert_allclose(value, expected, rtol=1e-6, atol=1e-7)
    assert strategy.weights(2)[2] >= 0  # its own is the initial model
    strategy.state["sent"][:] = False
    assert strategy.weights(0).tolist() == [1, 0, 0, 0, 0]


def test_a_model_of_zeros_resembles_no_other_one(flat_config, small):
    keys = 'strategy="fedamp" fedamp.similarity="cosine" fedamp.sigma=2.0 fedamp.own-weight=0.2'
    strategy = FedAMP(Workspace(config.read(flat_config(small, keys, "num-clients=3"))))
    for client, factor in enumerate((0.0, 1.0, 2.0)):
        strategy.keep_last(client, {k: factor * v for k, v in strategy.arrays.items()})
        strategy.state["sent"][client] = True
    e = np.exp([2.0 * 0, 2.0 * 1])
    np.testing.assert_allclose(strategy.weights(0), [0.2, 0.4, 0.4])
    np.testing.assert_allclose(
        strategy.weights(1), [0.8 * e[0] / e.sum(), 0.2, 0.8 * e[1] / e.sum()]
    )
    sent = strategy.download(2, 1, strategy.plan(2, 1))
    assert all(np.isfinite(value).all() for value in sent.values())


def test_weights_do_not_depend_on_the_threads_of_blas(flat_config, tiny_npz):
    """Of models that are large enough for several threads, and close enough that cosines differ."""
    keys = 'strategy="fedamp" fedamp.similarity="cosine" num-clients=6 min-samples=4 model="conv4"'
    strategy = FedAMP(Workspace(config.read(flat_config(tiny_npz, keys))))
    draws, rows = np.random.default_rng(0), set()
    for client in range(6):
        near = {k: v + draws.normal(size=v.shape) * 0.02 for k, v in strategy.arrays.items()}
        strategy.keep_last(client, {k: v.astype("f4") for k, v in near.items()})
    strategy.state["sent"][:] = True
    assert len(strategy.vector(0)) > 10_000
    for threads in (1, 2):
        with threadpool_limits(threads, "blas"):
            rows.add(np.concatenate([strategy.weights(i) for i in range(6)]).tobytes())
    assert len(rows) == 1
