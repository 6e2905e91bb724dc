"""pFedHN's certain facts (docs/papers/pfedhn.md); its twin has the formulas."""

from itertools import pairwise

import numpy as np

from clients.fedavg import FedAvgClient
from clients.pfedhn import PFedHNClient
from fedapps.core.draws import generator
from fedapps.method import ClientUpdate, rehearse
from strategies.fedavg import FedAvg
from strategies.pfedhn import PFedHN


def layers(sizes):
    """Hidden layers (w, b) as torch would draw them, from the draws of seed 0."""
    for k, (wide, out) in enumerate(pairwise(sizes)):
        draws, bound = generator(0, "pfedhn", k), 1 / np.sqrt(wide)
        yield draws.uniform(-bound, bound, (out, wide)), draws.uniform(-bound, bound, out)


def forward(hidden, v):
    """What goes into each layer; the last one are the features of the output layer."""
    inputs = [v]
    for k, (w, b) in enumerate(hidden):
        inputs.append(w @ inputs[-1] + b)
        if k < len(hidden) - 1:
            inputs[-1] = np.maximum(inputs[-1], 0)
    return inputs


def test_the_first_round_trains_as_fedavg_and_then_clients_differ(tiny_npz):
    """theta_i becomes theta + (alpha / m) sum_j (1 + f_i f_j) (trained_j - theta)."""
    keys = f'{tiny_npz} model="lenet5" num-clients=4 fraction-train=0.5 momentum=0.5'
    size = "pfedhn.hidden-size=100 pfedhn.hidden-layers=3"
    run = rehearse(PFedHN, PFedHNClient, f'{keys} strategy="pfedhn" pfedhn.hyper-lr=0.3 {size}')
    plain = rehearse(FedAvg, FedAvgClient, f'{keys} strategy="fedavg"')
    server, chosen = run.strategy, run.strategy.select(1)
    trained = {i: run.train(i, server.plan(1, i)) for i in chosen}
    for i, update in trained.items():
        other = plain.train(i, plain.strategy.plan(1, i)).arrays
        assert all(np.array_equal(value, other[key]) for key, value in update.arrays.items())
    server.arrays |= server.aggregate(1, iter(trained.values()))
    plain.rounds(1)
    hidden = [*layers([server.options.embedding_size, *[100] * 4])]
    f = [forward(hidden, server.embedding(i))[-1] for i in range(4)]
    for i in range(4):
        model = server.download(2, i, server.plan(2, i))
        for key, value in server.workspace.initial.items():
            if key not in server.layout.parameters:  # the mean BatchNorm statistics
                np.testing.assert_array_equal(model[key], plain.strategy.arrays[key])
                continue
            moved = sum((1 + f[i] @ f[j]) * (u.arrays[key] - value) for j, u in trained.items())
            np.testing.assert_allclose(model[key], value + 0.3 / 2 * moved, rtol=1e-4, atol=1e-5)


def test_models_that_come_back_as_they_were_change_nothing(tiny_npz):
    """The server computes again, to the last bit, what it has sent."""
    run = rehearse(PFedHN, PFedHNClient, f'{tiny_npz} strategy="pfedhn"')
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
