"""pFedHN's certain facts (docs/papers/pfedhn.md); its twin has the formulas."""

import numpy as np

from clients.pfedhn import PFedHNClient
from fedapps.method import ClientUpdate, rehearse
from strategies.pfedhn import PFedHN


def test_models_that_come_back_as_they_were_change_nothing(tiny_npz):
    """The server computes again, to the last bit, what it has sent."""
    run = rehearse(
        PFedHN, PFedHNClient, f'{tiny_npz} strategy="pfedhn" model="lenet5" num-clients=6'
    )
    run.rounds(2)
    server = run.strategy
    before = {name: value.copy() for name, value in server.state.items()}
    updates = [
        ClientUpdate(i, server.download(3, i, server.plan(3, i)), 5, weight=5.0) for i in (0, 2, 5)
    ]
    server.aggregate(3, iter(updates))
    for name, value in before.items():
        np.testing.assert_array_equal(server.state[name], value, err_msg=name)


def test_the_server_tells_the_bytes_of_its_state(tiny_npz):
    keys = 'strategy="pfedhn" model="lenet5" num-clients=4 fraction-train=1.0'
    run = rehearse(PFedHN, PFedHNClient, f"{tiny_npz} {keys}")
    run.rounds(1)
    kept = sum(value.nbytes for value in run.strategy.state.values())
    assert kept * 0.98 <= run.strategy.state_bytes() <= kept
