"""FedAMP: the weights of mixtures; its twin has the training."""

import numpy as np
from threadpoolctl import threadpool_limits

from fedapps.core import config
from fedapps.training.workspace import Workspace
from strategies.fedamp import FedAMP


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
