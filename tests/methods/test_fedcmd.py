"""FedCMD's parts: the score against SciPy, the votes, the mixtures, bad settings."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

from clients.fedcmd import FedCMDClient, w2
from fedapps import models
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.method import rehearse
from fedapps.method.update import ClientUpdate
from fedapps.models.blocks import of_images
from fedapps.training.batches import chunks
from fedapps.training.workspace import Workspace
from strategies.fedcmd import FedCMD, majority

FC = ("fc1", "fc2", "classifier")


def client_of(flat_config, *options, client=0):
    space = Workspace(config.read(flat_config('strategy="fedcmd" model="lenet5"', *options)))
    return FedCMDClient(space, client, {})


def scaled(values):
    """Min-max scaled values in float64; 0 where they are constant."""
    values = np.asarray(values, np.float64).ravel()
    width = np.ptp(values)
    return (values - values.min()) / width if width else np.zeros_like(values)


def distance(a, b):
    """W2 of two normal distributions: of their means and of their deviations."""
    (m, s), (n, t) = (stats.norm(*g).stats("mv") for g in (a, b))
    return np.sqrt((m - n) ** 2 + (np.sqrt(s) - np.sqrt(t)) ** 2)


@pytest.mark.parametrize("scaling", ["minmax", "none"])
@pytest.mark.parametrize("encoding", ["index", "onehot"])
def test_score_by_scipys_gaussians(flat_config, encoding, scaling):
    options = f'fedcmd.label-encoding="{encoding}" num-clients=2 partitioner="iid"'
    options += f' fedcmd.scaling="{scaling}"'
    rescaled = scaled if scaling == "minmax" else np.asarray
    client = client_of(flat_config, options)
    x, y = client.train_data
    assert len(chunks(x)) > 1
    model, outputs = client.model.eval(), []
    with torch.no_grad():
        z = x
        for layer in model:
            z = layer(z)
            outputs.append(z.numpy())
    codes = y.numpy() / 9 if encoding == "index" else np.eye(10)[y.numpy()]
    labels = (codes.mean(), codes.std())
    inputs = stats.norm.fit(rescaled(x.numpy()))
    gaps = [
        distance(g, labels) - distance(g, inputs)
        for g in (stats.norm.fit(rescaled(out)) for out in outputs)
    ]
    plan = strategy_of(client).warmup_plan(1, 0)
    client.after_training(plan)
    expected = np.abs(np.diff(gaps))
    np.testing.assert_allclose(client.sends["scores/s"], expected, rtol=1e-4, atol=1e-6)
    assert client.sends["scores/s"].shape == plan.sends["scores/s"] == (4,)


def strategy_of(client):
    return registry.strategy_class("fedcmd")(client.workspace)


def test_distance_of_gaussians_by_their_quantiles():
    """W2 on the line is the L2 distance of the quantile functions."""
    a, b = (0.3, 0.2), (0.5, 0.05)
    q = (np.arange(400_000) + 0.5) / 400_000
    one, two = (stats.norm.ppf(q, *g) for g in (a, b))
    assert w2(a, b) == pytest.approx(np.sqrt(np.mean((one - two) ** 2)), rel=1e-4)


def test_a_constant_has_mean_and_deviation_0(flat_config):
    client = client_of(flat_config)
    x, y = client.train_data
    client.workspace.data._cache.put((0, "train"), (torch.full_like(x, 7.0), y), 0)
    assert client.gaussians()[0].tolist() == [0.0, 0.0]


def test_ties_go_to_the_layer_nearer_the_output():
    assert majority(np.array([0, 2, 2, 0])) == 2
    assert majority(np.array([0, 1, 0, 1])) == 3
    assert majority(np.array([0, 2, 0, 1])) == 1


def test_rounds_choose_and_not_all_ballots_together(flat_config):
    """Ten ballots are for fc1 and eight for fc2, but fc2 won two rounds of three."""
    strategy = strategy_of(client_of(flat_config, "num-rounds=30"))
    strategy.state["votes"] = np.array([[0, 0, 6, 0, 0], [0, 0, 2, 4, 0], [0, 0, 2, 4, 0]])
    assert strategy.layout.names[strategy.chosen] == "fc2"


def test_a_round_without_votes_has_no_say(flat_config):
    """Without the rounds in which all clients failed, fc2 won the only one."""
    strategy = strategy_of(client_of(flat_config, "num-rounds=30"))
    strategy.state["votes"] = np.array([[0, 0, 0, 0, 0], [0, 0, 1, 2, 0], [0, 0, 0, 0, 0]])
    told = []
    strategy.event = lambda round_, client, kind, text: told.append((round_, kind, text))
    strategy.end_warmup()
    assert told == [(2, "chosen", "fc2"), (3, "personal-layer", "fc2")]


def test_a_clients_own_tie_goes_to_the_layer_nearer_the_output(flat_config):
    strategy = strategy_of(client_of(flat_config, "num-rounds=10"))
    votes = []
    strategy.event = lambda round_, client, kind, text: votes.append(text)
    scores = np.array([0.1, 0.2, 0.2, 0.5], np.float32)  # conv2, fc1, fc2, classifier
    strategy.observe(1, ClientUpdate(0, {}, 1, extras={"scores/s": scores}))
    assert votes[-1] == "fc2"
    assert strategy.state["votes"].tolist() == [[0, 0, 0, 1, 0]]


def test_personal_layers_that_point_away_from_each_other_do_not_mix(flat_config):
    strategy = strategy_of(client_of(flat_config, "num-rounds=10"))
    strategy.state["votes"] = np.array([[0, 0, 0, 1, 0]])  # fc2
    strategy.event = lambda *event: None
    strategy.end_warmup()
    phi = np.random.default_rng(0).normal(size=strategy.state["phi"].shape[1])
    strategy.state["phi"][[0, 1, 4]] = np.outer([1, 1, -1], phi)
    strategy.state["last_trained"][[0, 1, 4]] = 2
    np.testing.assert_allclose(strategy.similarities(0), [1, 1, 0, 0, 0, 0], atol=1e-6)
    np.testing.assert_allclose(strategy.similarities(4), np.eye(6)[4], atol=1e-6)


def test_candidates(flat_config):
    assert strategy_of(client_of(flat_config)).candidates() == FC
    everything = client_of(flat_config, 'fedcmd.candidates="all"')
    assert strategy_of(everything).candidates() == ("conv2", *FC)


@pytest.mark.parametrize(("option", "line"), [
    ("fedcmd.selection-fraction=0.0", "fedcmd.selection-fraction = 0.0: must be float > 0"),
    (
        'fedcmd.layer="fc1" fedcmd.other-layer="fc9" fedcmd.other-clients="3"',
        'fedcmd.other-layer = "fc9": layer "fc9": the model has conv1, ',
    ),
    ('fedcmd.layer="fc9"', 'fedcmd.layer = "fc9": layer "fc9": the model has conv1, '),
    ('fedcmd.other-clients="1"', "fedcmd.other-clients and fedcmd.other-layer go together"),
    (
        'fedcmd.layer="fc1" fedcmd.other-layer="fc2" fedcmd.other-clients="1,9"',
        'fedcmd.other-clients = "1,9": must be clients from 0 to 5, such as 3,7,12',
    ),
])  # fmt: skip
def test_bad_settings(flat_config, option, line):
    with pytest.raises(RunError) as caught:
        strategy = strategy_of(client_of(flat_config, "num-rounds=10", option))
        strategy.plan(1, 0)
    assert str(caught.value).startswith(line)


@pytest.mark.parametrize("weighting", ["cosine", "uniform"])
def test_a_model_of_convolutions_needs_other_candidates(tiny_npz, monkeypatch, weighting):
    def make(shape, classes):
        pool = nn.Sequential(nn.Conv2d(4, classes, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(nn.Conv2d(shape[0], 4, 3), nn.ReLU(), pool)

    monkeypatch.setitem(models.MODELS, "convolutions", of_images(make))
    keys = f'{tiny_npz} strategy="fedcmd" model="convolutions" fedcmd.weighting="{weighting}"'
    with pytest.raises(RunError, match=r'^fedcmd.candidates = "fc": convolutions has no .*"all"$'):
        rehearse(FedCMD, FedCMDClient, keys)
    rehearse(FedCMD, FedCMDClient, f'{keys} fedcmd.candidates="all"').rounds(2)
