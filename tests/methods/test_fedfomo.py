"""FedFomo: whose models a client mixes, and with what weights."""

import numpy as np
import pytest
import torch

from clients.fedfomo import FedFomoClient
from fedapps.core import config
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import put
from fedapps.training.workspace import Workspace
from strategies.fedfomo import FedFomo


def test_fedfomo_adds_up_what_a_client_thinks_of_another(small, flat_config):
    strategy = FedFomo(Workspace(config.read(flat_config(small, 'strategy="fedfomo"'))))
    for u in (0.5, -0.25):
        strategy.observe(ClientUpdate(0, strategy.arrays, 5, extras={"affinity/1": np.array([u])}))
    assert strategy.state["affinity"].tolist() == [[0, 0.25], [0, 0]]


def test_fedfomo_without_other_models_is_local_training(serial_run, fits):
    part = "validation-fraction=0.2 fedfomo.validation-fraction=0.2 num-rounds=3"
    serial_run(f'strategy="fedfomo" fedfomo.models=0 {part}')
    serial_run(f'strategy="local" local.match-compute=true {part}')
    half = len(fits) // 2
    for (mine, state, *_), (other, expected, *_) in zip(fits[:half], fits[half:], strict=True):
        assert mine.client == other.client and state.keys() == expected.keys()
        assert all(torch.equal(state[key], expected[key]) for key in state)


def test_fedfomo_keeps_the_best_and_explores(small, serial_run, strategy):
    serial_run(
        small,
        'strategy="fedfomo" num-clients=5 min-samples=8 fraction-train=1.0 fedfomo.models=2 '
        "fedfomo.epsilon=0.5 fedfomo.epsilon-decay=0.25",
    )
    method = strategy[-1]
    method.state["affinity"][0] = [0, 3, 1, 4, 2]
    assert method.others(3, 0) == method.others(99, 0) == [1, 3]  # no chance left
    first = [method.others(1, 0) for _ in range(3)]
    assert first[0] == first[1] == first[2]  # a function of round and client
    method.state["affinity"][1:] = method.state["affinity"][0]
    chosen = {tuple(method.others(1, client)) for client in range(5)}
    assert len(chosen) > 2 and all(len(others) == 2 for others in chosen)


def test_fedfomo_shuns_a_model_that_blows_up(small, flat_config):
    space = Workspace(config.read(flat_config(small, 'strategy="fedfomo"')))
    client = FedFomoClient(space, 0, {})
    mine = space.initial
    broken = {key: value * np.float32(1e30) for key, value in mine.items()}
    assert client.affinity(mine, broken, 1.0) == -1.0
    assert client.affinity(mine, mine, 1.0) == 0.0


def test_fedfomo_distances_are_of_parameters_alone(flat_config):
    """Running statistics, which may be far larger, change the loss and not the distance."""
    space = Workspace(config.read(flat_config('strategy="fedfomo" model="lenet5"')))
    client, mine = FedFomoClient(space, 0, {}), space.initial
    theirs = {key: value + np.float32(2.0) * key.endswith("running_mean")
              for key, value in mine.items()}  # fmt: skip
    bias = next(key for key in mine if key.startswith("classifier") and key.endswith("bias"))
    theirs[bias] = mine[bias] + np.arange(10, dtype=np.float32)
    put(space.model, theirs)
    loss = client.validation_loss()
    norm = np.linalg.norm(np.arange(10))
    assert client.affinity(mine, theirs, 9.0) == pytest.approx((9.0 - loss) / norm, rel=1e-6)


def test_fedfomo_explores_with_epsilon_at_first_and_less_in_each_round(flat_config):
    """All 39 like client 0 best, and take it unless they explore."""
    options = 'strategy="fedfomo" num-clients=40 partitioner="iid" model="lenet5" fedfomo.models=1'
    chances = "fedfomo.epsilon=0.9 fedfomo.epsilon-decay=0.4"
    strategy = FedFomo(Workspace(config.read(flat_config(options, chances))))
    strategy.state["sent"][:] = True
    strategy.state["affinity"][:, 0] = 1.0
    for round_, chance in ((1, 0.9), (2, 0.5), (3, 0.1), (4, 0.0)):
        liked = sum(strategy.others(round_, client) == [0] for client in range(1, 40))
        share = 1 - chance + chance / 39
        assert abs(liked - 39 * share) <= 4 * np.sqrt(39 * share * (1 - share)), round_


def test_fedfomo_no_model_costs_its_receivers_the_round(small, flat_config):
    """A model's values are within max-value, and so is what a client thinks of it."""
    options = 'strategy="fedfomo" model="cnn" max-value=1000.0'
    client = FedFomoClient(Workspace(config.read(flat_config(small, options))), 0, {})
    mine = client.workspace.initial
    huge = {key: value * np.float32(1e3 / np.abs(value).max()) for key, value in mine.items()}
    assert client.affinity(mine, huge, 1.0) == -1000.0


def test_fedfomo_does_not_favour_low_ids_among_those_liked_alike(flat_config):
    """With nobody measured each of nine others must come about equally often, low ids no more."""
    options = 'strategy="fedfomo" num-clients=10 fedfomo.models=3 fedfomo.epsilon=0.0'
    strategy = FedFomo(Workspace(config.read(flat_config(options))))
    strategy.state["sent"][:] = True
    chosen = [n for round_ in range(1, 301) for n in strategy.others(round_, 0)]
    counts = np.bincount(chosen, minlength=10)
    assert counts[0] == 0 and counts.sum() == 900
    assert counts[1:].min() > 70 and counts[1:].max() < 130  # 100 each; a deviation is 8
    strategy.state["affinity"][0, [9, 4]] = 0.2, 0.1
    assert all({4, 9} < set(strategy.others(round_, 0)) for round_ in range(1, 20))
