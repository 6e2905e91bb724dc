"""SCAFFOLD's certain facts (docs/papers/scaffold.md); its twin has the formulas."""

import numpy as np
import torch

from clients.scaffold import ScaffoldClient
from fedapps.method import rehearse, replace
from fedapps.method.local import begin
from strategies.scaffold import Scaffold

# A batch is all samples of a client, so their order does not matter.
BASE = 'strategy="scaffold" num-clients=4 local-epochs=3'


def rehearsal(tiny_npz, keys):
    whole = tiny_npz.replace("batch-size=8", "batch-size=1000")
    return rehearse(Scaffold, ScaffoldClient, f"{whole} {BASE} {keys}")


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
        begin(again.client_class(again.strategy.workspace, client, kept))
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
