"""pFedSim and FedAP: FedAvg at first, then mixtures of what all sent last."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from clients import fedap
from fedapps import models
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.method import rehearse
from fedapps.models.blocks import of_images
from fedapps.models.layers import put
from fedapps.training.workspace import Workspace
from strategies.fedap import FedAP
from strategies.pfedsim import PFedSim, similarity


def test_heads_that_point_away_from_each_other_are_not_alike():
    a = np.random.default_rng(0).normal(size=(3, 4)).astype("f4")
    assert similarity({"w": a}, {"w": -a}) == 0


def test_the_warm_up_takes_the_share_of_the_rounds_that_a_decimal_number_is(flat_config):
    """0.57 x 100 is 56.99999999999999 in floating point."""
    keys = 'strategy="pfedsim" num-rounds=100 pfedsim.warmup=0.57'
    assert PFedSim(Workspace(config.read(flat_config(keys)))).warmup == 57


def test_pfedsim_refuses_heads_without_a_matrix(small, serial_run, monkeypatch):
    def make(shape, classes):
        body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 4))
        return nn.Sequential(body, nn.Linear(4, classes), nn.LayerNorm(classes))

    monkeypatch.setitem(models.MODELS, "scaled", of_images(make))
    keys = 'strategy="pfedsim" model="scaled" pfedsim.warmup=0.0'
    with pytest.raises(RunError, match=r"^head-layers = 1: .*, and 2 has none; use more"):
        serial_run(small, keys)
    serial_run(small, keys, "head-layers=2")


def test_a_run_that_is_all_warm_up_says_so(serial_run, capsys):
    serial_run('strategy="pfedsim" pfedsim.warmup=1.0')
    assert "warning: all 2 rounds are warm-up: nothing is personal" in capsys.readouterr().out


def test_fedap_asks_all_clients_once_and_sends_newcomers_batchnorms(serial_run, fits, read_rounds):
    rows = read_rounds(serial_run('strategy="fedap" model="lenet5" num-rounds=4 seed=1'))
    assert [row["clients"] for row in rows] == [3, 3, 6, 3]
    assert [row["phase"] for row in rows] == ["train-warmup"] * 2 + ["train"] * 2
    by_round = {t: {f[0].client: f for f in fits if f[2].plan.round == t} for t in (3, 4)}
    selected = {client for client, (_, _, r, _) in by_round[3].items() if r.plan.stages}
    for client, (*_, update) in by_round[3].items():
        assert bool(update.arrays) == (client in selected) and update.extras
    assert selected & by_round[4].keys() and by_round[4].keys() - selected
    for client, (made, _, request, update) in by_round[4].items():
        norms = {key for key in made.workspace.initial if key in made.layout.norms}
        assert norms and not norms & set(update.arrays) and not update.extras
        newcomer = client not in selected
        assert set(request.arrays) == set(update.arrays) | (norms if newcomer else set())


def test_fedap_measures_all_chunks_of_a_clients_samples():
    draws, seen = np.random.default_rng(0), []
    parts = [draws.normal(5 * n, n, (n, 3, 4, 4)).astype("f4") for n in (7, 2, 5)]
    for part in parts:
        fedap.note(seen, torch.nn.Identity(), (torch.from_numpy(part),), {})
    whole, axes = np.concatenate(parts).astype(np.float64), (0, 2, 3)
    expected = [whole.mean(axes), whole.std(axes)]
    np.testing.assert_allclose(fedap.statistics(seen), expected, rtol=1e-6)


def test_fedap_measures_batchnorms_without_weights(tiny_npz, monkeypatch):
    def make(shape, classes):
        norm = nn.BatchNorm1d(4, affine=False)
        body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), 4), norm)
        return nn.Sequential(body, nn.Linear(4, classes))

    monkeypatch.setitem(models.MODELS, "no-weights", of_images(make))
    keys = 'strategy="fedap" model="no-weights" num-clients=3 fraction-train=1.0 num-rounds=4'
    own = "fedap.warmup=0.25 fedap.lambda=0.4"
    run = rehearse(FedAP, fedap.FedAPClient, f"{tiny_npz} {keys} {own}")
    run.rounds(1)
    pretrained, moments = copy.deepcopy(run.strategy.arrays), []
    for client in range(3):
        made = run.make(client)
        put(made.model.eval(), pretrained)
        with torch.no_grad():
            inputs = made.model[0][:2](made.train_data[0]).double().numpy()
        moments.append(np.concatenate([inputs.mean(0), inputs.std(0)]))
    run.rounds(1)
    for client, own in enumerate(moments):
        near = np.array([0 if m is own else 1 / np.linalg.norm(m - own) for m in moments])
        weights = 0.6 * near / near.sum() + 0.4 * (np.arange(3) == client)
        np.testing.assert_allclose(run.strategy.weights(client), weights, rtol=1e-3)


def test_fedap_without_a_clients_statistics(serial_run, strategy):
    serial_run('strategy="fedap" model="lenet5" num-rounds=2')
    method = strategy[-1]
    row = method.weights(2)
    assert row.sum() == pytest.approx(1) and row[2] == 0.5 and (row > 0).all()
    method.state["known"][1] = False
    assert method.weights(2)[1] == 0 and method.weights(2).sum() == pytest.approx(1)
    np.testing.assert_array_equal(method.weights(1), np.eye(6)[1])
    for name in method.statistics:  # equal statistics: a distance of 0 counts as 1e-12
        method.state[name][3] = method.state[name][2]
    assert method.weights(2)[3] == pytest.approx(0.5)
