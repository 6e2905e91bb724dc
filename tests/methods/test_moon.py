"""MOON's certain facts (docs/papers/moon.md), beside the formulas in plain PyTorch."""

import copy

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from clients.moon import MOONClient
from fedapps.method import put, rehearse
from strategies.moon import MOON

KEYS = 'strategy="moon" num-clients=3 fraction-train=1.0 local-epochs=3'


def rehearsal(tiny_npz, keys):
    """A batch is all samples of a client, so their order does not matter."""
    return rehearse(MOON, MOONClient, f"{tiny_npz.replace('=8', '=1000')} {KEYS} {keys}")


def unit(model, x):
    """Features, each of length 1."""
    z = torch.nn.Sequential(*[*model.children()][:-1])(x).flatten(1)
    return z / z.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("model", ["cnn", "lenet5"])
def test_a_client_minimizes_equation_4(tiny_npz, model):
    """The second round of a client: w_i^prev is what it has uploaded in the first."""
    mu, tau = 4.0, 0.3
    run = rehearsal(tiny_npz, f'model="{model}" moon.mu={mu} moon.temperature={tau}')
    first = run.train(0, run.strategy.plan(1, 0)).arrays
    moved = {k: v * np.float32(0.9) for k, v in run.strategy.arrays.items()}  # by the other clients
    run.strategy.arrays.update(moved)
    w, glob, prev = (copy.deepcopy(run.strategy.workspace.model).eval() for _ in range(3))
    for one, arrays in ((w, moved), (glob, moved), (prev, first)):
        put(one, arrays)
    x, y = run.make(0).train_data
    for _ in range(3):
        w.train()
        z = unit(w, x)
        up, down = (torch.exp((z * unit(other, x).detach()).sum(1) / tau) for other in (glob, prev))
        loss = cross_entropy(w(x), y) - mu * torch.log(up / (up + down)).mean()
        loss.backward()
        with torch.no_grad():
            for p in w.parameters():
                p -= 0.05 * p.grad
                p.grad = None
    found = run.train(0, run.strategy.plan(2, 0)).arrays
    for key in run.layout.parameters:
        np.testing.assert_allclose(found[key], state(w)[key], atol=2e-5, err_msg=key)
    assert max(float(np.abs(found[key] - moved[key]).max()) for key in moved) > 1e-3


def state(model):
    return {key: value.numpy().copy() for key, value in model.state_dict().items()}


def test_round_1_is_fedavgs_and_with_mu_0_all_are(tiny_npz, serial_run, read_model):
    base = tiny_npz, "momentum=0.5 local-epochs=2"
    pairs = [("num-rounds=1", "moon.mu=5.0"), ("num-rounds=3", "moon.mu=0.0")]
    for rounds, mu in pairs:
        average = read_model(serial_run(*base, f'strategy="fedavg" {rounds}'))
        mine = read_model(serial_run(*base, f'strategy="moon" {mu} {rounds}'))
        for key, value in average.items():
            np.testing.assert_allclose(mine[key], value, atol=1e-6, err_msg=key)
    other = read_model(serial_run(*base, 'strategy="moon" moon.mu=5.0 num-rounds=3'))
    assert any(np.abs(other[key] - value).max() > 1e-3 for key, value in average.items())
