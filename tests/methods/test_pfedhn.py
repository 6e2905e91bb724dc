"""pFedHN: rounds by hand in NumPy, and its certain facts (docs/papers/pfedhn.md)."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from clients.fedavg import FedAvgClient
from clients.pfedhn import PFedHNClient
from fedapps.core.draws import generator
from fedapps.method import ClientUpdate, rehearse
from strategies.fedavg import FedAvg
from strategies.pfedhn import PFedHN
from tests.support.references import assert_close, final, reference, sgd


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


def backward(hidden, output, inputs, d):
    """Products of d with the Jacobians: of each hidden layer, of the output layer, of v."""
    found = [(np.outer(d, inputs[-1]), d)]
    d = output[0].T @ d
    for k in reversed(range(len(hidden))):
        found.insert(0, (np.outer(d, inputs[k]), d))
        d = hidden[k][0].T @ d * ((inputs[k] > 0) if k else 1)
    return found, d


@pytest.mark.parametrize("personal", ["false", "true"])
def test_three_rounds_of_algorithm_1(small, serial_run, flat_config, fits, strategy, personal):
    """One step of the server a round, with the mean of both clients' products."""
    options = (
        f'strategy="pfedhn" num-rounds=3 local-epochs=1 pfedhn.personal-head={personal} '
        "pfedhn.hyper-lr=0.7 pfedhn.embedding-lr=3.0 "
        "pfedhn.embedding-size=3 pfedhn.hidden-size=5 pfedhn.hidden-layers=2"
    )
    serial_run(small, options)
    ref = reference(flat_config, small, options)
    made = [key for key in ref.start if personal == "false" or key.startswith("body")]
    ends = np.cumsum([ref.start[key].numel() for key in made])

    def flat(p):
        return np.concatenate([p[key].numpy().ravel() for key in made])

    def model(theta):
        parts = zip(made, np.split(theta, ends[:-1]), strict=True)
        return {key: torch.from_numpy(part).reshape(ref.start[key].shape) for key, part in parts}

    phi = [*layers([3, 5, 5, 5]), (np.zeros((ends[-1], 5)), flat(ref.start))]
    first = [generator(0, "pfedhn-embedding", i).standard_normal(3) for i in (0, 1)]
    v, heads = list(first), [{k: w for k, w in ref.start.items() if k not in made}] * 2
    for round_ in (1, 2, 3):
        products, sent = [], []
        for i in (0, 1):
            inputs = forward(phi[:-1], v[i])
            theta = phi[-1][0] @ inputs[-1] + phi[-1][1]
            trained = sgd(model(theta) | heads[i], ref.batches(i, round_))
            heads[i] = {key: trained[key] for key in heads[i]}
            sent.append({key: trained[key] for key in made})
            found, dv = backward(phi[:-1], phi[-1], inputs, theta - flat(trained))
            products.append(found)
            v[i] = v[i] - 3.0 * dv
        phi = [
            tuple(p - 0.7 * (a + b) / 2 for p, a, b in zip(*three, strict=True))
            for three in zip(phi, *products, strict=True)
        ]
    server = strategy[-1]
    for i in (0, 1):
        state, update = final(fits, i)
        assert_close(update.arrays, sent[i])
        assert_close({key: state[f"model/{key}"].numpy() for key in heads[i]}, heads[i])
        np.testing.assert_allclose(server.state[f"v/{i}"], v[i], rtol=1e-4, atol=1e-5)
        assert np.abs(v[i] - first[i]).max() > 1e-3
    for k, (w, b) in enumerate(phi[:-1]):
        np.testing.assert_allclose(server.state[f"hn/w{k}"], w, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(server.state[f"hn/b{k}"], b, rtol=1e-4, atol=1e-5)
    whole = np.concatenate([server.state[f"hn/w/{key}"].reshape(-1, 5) for key in made])
    np.testing.assert_allclose(whole, phi[-1][0], rtol=1e-4, atol=1e-5)
    mean = model(phi[-1][0] @ forward(phi[:-1], (v[0] + v[1]) / 2)[-1] + phi[-1][1])
    assert_close({key: server.arrays[key] for key in made}, mean)


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
