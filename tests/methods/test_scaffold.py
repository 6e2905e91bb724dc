"""SCAFFOLD's certain facts (docs/papers/scaffold.md), beside the formulas in plain PyTorch."""

import numpy as np
import pytest
import torch
from torch.func import functional_call, grad
from torch.nn.functional import cross_entropy

from clients.scaffold import ScaffoldClient
from fedapps.method import rehearse, replace
from fedapps.method.local import begin
from strategies.scaffold import Scaffold

# A batch is all samples of a client, so their order does not matter.
BASE = 'strategy="scaffold" num-clients=4 local-epochs=3'


def rehearsal(tiny_npz, keys):
    whole = tiny_npz.replace("batch-size=8", "batch-size=1000")
    return rehearse(Scaffold, ScaffoldClient, f"{whole} {BASE} {keys}")


@pytest.mark.parametrize(("momentum", "decay", "eta_g"), [(0.0, 0.0, 1.0), (0.6, 0.02, 1.5)])
def test_rounds_are_those_of_algorithm_1(tiny_npz, momentum, decay, eta_g):
    """Three rounds with two of four clients; c_i+ by option II, or as the mean gradient."""
    keys = f"fraction-train=0.5 momentum={momentum} weight-decay={decay}"
    run = rehearsal(tiny_npz, f"{keys} scaffold.global-lr={eta_g}")
    space, lr = run.strategy.workspace, run.strategy.settings.lr
    x = {key: torch.tensor(value) for key, value in space.initial.items()}
    c = {key: torch.zeros_like(value) for key, value in x.items()}
    own = {client: dict(c) for client in range(4)}

    def loss(y, images, labels):
        return cross_entropy(functional_call(space.model, y, (images,)), labels)

    for round_ in (1, 2, 3):
        chosen, sent, changes = run.strategy.select(round_), [], []
        for client in chosen:
            y, seen, velocity = dict(x), [], {key: 0.0 for key in x}
            for _ in range(3):  # one batch per epoch
                g = grad(loss)(y, *space.samples(client, "train"))
                seen.append(g)
                for k in y:
                    step = g[k] - own[client][k] + c[k] + decay * y[k]
                    velocity[k] = momentum * velocity[k] + step
                    y[k] = y[k] - lr * velocity[k]
            new = {k: sum(g[k] for g in seen) / 3 for k in y}
            if not momentum:
                new = {k: own[client][k] - c[k] + (x[k] - y[k]) / (3 * lr) for k in y}
            changes.append({key: new[key] - own[client][key] for key in new})
            sent.append(y)
            own[client] = new
        x = {k: x[k] + eta_g * ((sent[0][k] + sent[1][k]) / 2 - x[k]) for k in x}
        c = {key: c[key] + (changes[0][key] + changes[1][key]) / 4 for key in c}
        run.rounds(1)
        for key in x:
            np.testing.assert_allclose(run.strategy.arrays[key], x[key], atol=1e-5)
            np.testing.assert_allclose(run.strategy.state[f"c/{key}"], c[key], atol=1e-4)
    assert max(float(value.abs().max()) for value in c.values()) > 0.01


def test_c_is_the_mean_of_all_c_i(tiny_npz):
    run = rehearsal(tiny_npz, 'fraction-train=0.5 model="lenet5" momentum=0.5')
    run.rounds(4)
    assert len(run.clients) > 2
    for name, c in run.strategy.state.items():
        key = f"own/{name.removeprefix('c/')}"
        total = sum(state[key].numpy().astype(float) for state in run.clients.values())
        np.testing.assert_allclose(c, total / 4, atol=1e-6)
    assert {n.removeprefix("c/") for n in run.strategy.state} == set(run.layout.parameters)


def test_one_client_is_fedavg(tiny_npz, serial_run, read_model):
    keys = "num-clients=1 fraction-train=1.0 num-rounds=3 momentum=0.5"
    one, two = (
        read_model(serial_run(tiny_npz, f"{keys} strategy={n}")) for n in ("scaffold", "fedavg")
    )
    for key, value in one.items():
        np.testing.assert_allclose(value, two[key], atol=1e-6)


def test_a_run_that_grows_keeps_the_mean(tiny_npz):
    run = rehearsal(tiny_npz, "fraction-train=1.0")
    run.rounds(1)
    before = {name: c.copy() for name, c in run.strategy.state.items()}
    run.strategy.grow(2)
    assert all(np.array_equal(c, before[name] / 2) for name, c in run.strategy.state.items())


def test_clients_that_are_held_out_do_not_count_when_a_run_grows(tiny_npz):
    """N is 1 of two clients at first, and 3 of four then."""
    run = rehearsal(tiny_npz, 'fraction-train=1.0 unseen-clients="1"')
    for c in run.strategy.state.values():
        c += 6.0
    run.strategy.grow(2)
    assert all((c == 2.0).all() for c in run.strategy.state.values())


def test_in_a_devices_next_run_c_is_the_mean_of_all_again(tiny_npz):
    """The server's c begins at 0, so what clients have kept of c_i must not count."""
    run, again = (rehearsal(tiny_npz, "fraction-train=1.0") for _ in range(2))
    run.rounds(2)
    again.clients = run.clients
    for client, kept in run.clients.items():
        made = again.make(client)
        made.state = kept
        begin(made)
        assert not any(name.startswith("own/") for name in kept)
    again.rounds(2)
    for name, c in again.strategy.state.items():
        own = [kept[name.replace("c/", "own/")].numpy() for kept in again.clients.values()]
        np.testing.assert_allclose(c, np.mean(own, 0), atol=1e-6)


def test_without_a_step_c_i_stays(tiny_npz):
    """As of a client all of whose batches were skipped."""
    run = rehearsal(tiny_npz, "fraction-train=1.0")
    run.rounds(1)
    before = {key: value.clone() for key, value in run.clients[0].items()}
    update = run.train(0, replace(run.strategy.plan(2, 0), stages=()))
    assert any(value.any() for value in before.values())
    assert all(torch.equal(value, run.clients[0][key]) for key, value in before.items())
    assert not any(change.any() for change in update.extras.values())
