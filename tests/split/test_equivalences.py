"""Split learning against what it must equal, in float64: plain training, FedAvg, plain loops."""

from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedapps.models.layers import take
from fedapps.split.rules import levelled
from tests.support.split_float64 import CLOSE, SPLIT, batches, fresh, play, sgd
from tests.support.split_rounds import opened


def trained_alone(strategy, rounds):
    """Ordinary training of the whole model on client 0's data, the optimizer new each round."""
    arrays = {key: value.copy() for key, value in strategy.workspace.initial.items()}
    for round_ in range(1, rounds + 1):
        model, buffers = fresh(strategy, arrays), {}
        for epoch in range(2):
            for x, y in batches(strategy, 0, round_, epoch):
                cross_entropy(model(x), y).backward()
                sgd(dict(model.named_parameters()), buffers)
        arrays = take(model, arrays)
    return arrays


@pytest.mark.parametrize("cut", [1, 2, 3])
@pytest.mark.parametrize("name", SPLIT)
def test_one_client_is_ordinary_training(world, name, cut):
    key = "fedfc.cuts" if name == "fedfc" else f"{name}.cut"
    value = f'"{cut}"' if name == "fedfc" else cut
    strategy = world(f'strategy="{name}" num-clients=1 {key}={value}')
    expected = trained_alone(strategy, rounds=2)
    found = play(strategy, rounds=2)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, **CLOSE)


def test_sflv1_with_parts_averaged_at_round_end_is_fedavg(world):
    split = play(world('strategy="sflv1" sflv1.sync="round" sflv1.cut=2 num-clients=3'), rounds=2)
    whole = play(world('strategy="fedavg" num-clients=3'), rounds=2)
    for key, value in whole.items():
        np.testing.assert_allclose(split[key], value, **CLOSE)


def test_sflv2_steps_after_each_client_in_an_order_of_its_own(world, monkeypatch):
    """Against a plain loop; over many waves every client comes first at least once."""
    from fedapps.core.draws import generator
    from strategies.sflv2 import SFLv2

    strategy = world('strategy="sflv2" sflv2.cut=2 sflv2.order="batch" num-clients=3')
    server, buffers, seen = fresh(strategy, strategy.arrays), {}, []
    step = SFLv2.step

    def record(self, round_, wave):
        kept = [(s.client, s.data.detach().clone(), s.labels.clone()) for s in wave]
        answers = step(self, round_, wave)
        order = generator(0, "sflv2", 1, *wave[0].step).permutation(len(wave))
        seen.append(kept[order[0]][0])
        for _, data, labels in (kept[i] for i in order):
            x = data.requires_grad_()
            cross_entropy(server.l4(server.l3(x)), labels).backward()
            sgd({k: p for k, p in server.named_parameters() if k[:2] in ("l3", "l4")}, buffers)
            torch.testing.assert_close(answers[_].gradient, x.grad, **CLOSE)
        return answers

    monkeypatch.setattr(SFLv2, "step", record)
    found = play(strategy)
    for key in ("l3.0.weight", "l4.bias"):
        np.testing.assert_allclose(found[key], server.state_dict()[key], **CLOSE)
    assert set(seen) == {0, 1, 2}


def test_sflv2_trains_all_epochs_of_one_client_before_those_of_the_next(world):
    """Against a plain loop: each client from the round's layers, one server part for all."""
    from fedapps.core.draws import generator

    strategy = world('strategy="sflv2" sflv2.cut=2 sflv2.order="client" num-clients=3')
    begin = {key: value.copy() for key, value in strategy.arrays.items()}
    model, server, ends, orders = fresh(strategy, begin), {}, {}, []
    for round_ in (1, 2, 3):
        order = generator(0, "sflv2", round_).permutation(3).tolist()
        orders.append(order)
        server = {}
        for client in order:
            for key, value in model.state_dict().items():
                if key[:2] in ("l1", "l2"):
                    value.copy_(torch.from_numpy(begin[key]))
            own = {}
            for epoch in range(2):
                for x, y in batches(strategy, client, round_, epoch):
                    cross_entropy(model(x), y).backward()
                    parameters = dict(model.named_parameters())
                    sgd({k: p for k, p in parameters.items() if k[:2] in ("l1", "l2")}, own)
                    sgd({k: p for k, p in parameters.items() if k[:2] in ("l3", "l4")}, server)
            ends[client] = take(model, begin)
        sizes = np.array([strategy.count(client, "train") for client in range(3)])
        begin = {
            key: ends[order[-1]][key]
            if key[:2] in ("l3", "l4")
            else np.average([ends[c][key] for c in range(3)], axis=0, weights=sizes)
            for key in begin
        }
    found = play(strategy, rounds=3)
    for key, value in begin.items():
        np.testing.assert_allclose(found[key], value, **CLOSE)
    assert orders[-1] == [2, 1, 0], "an order of the seed's, not the clients' own"


def test_split_learning_hands_layers_on_from_client_to_client(world):
    strategy = world('strategy="splitlearning" splitlearning.cut=2 num-clients=3')
    model = fresh(strategy, strategy.arrays)
    server = {}
    for client in range(3):
        own = {}
        for epoch in range(2):
            for x, y in batches(strategy, client, 1, epoch):
                cross_entropy(model(x), y).backward()
                parameters = dict(model.named_parameters())
                sgd({k: p for k, p in parameters.items() if k[:2] in ("l1", "l2")}, own)
                sgd({k: p for k, p in parameters.items() if k[:2] in ("l3", "l4")}, server)
    found = play(strategy)
    for key, value in model.state_dict().items():
        np.testing.assert_allclose(found[key], value, **CLOSE)


def test_split_learning_goes_on_from_what_a_failed_client_had_received(world):
    strategy = world('strategy="splitlearning" splitlearning.cut=2 num-clients=4')
    received, session = {}, SimpleNamespace(tokens=range(4), relayed={})

    def waves(clients, relay):
        (client,) = clients
        received[client] = {key: float(value.ravel()[0]) for key, value in relay.items()}
        if client != 1:
            session.relayed[client] = {"l1.bias": np.full(3, client)}
        return []

    session.waves = waves
    strategy.serve(1, session)
    keys = strategy.layout.shared(("l1", "l2"))
    assert received.pop(0) == {key: strategy.arrays[key].ravel()[0] for key in keys}
    assert received == {1: {"l1.bias": 0}, 2: {"l1.bias": 0}, 3: {"l1.bias": 2}}
    assert strategy.client_layers == {"l1.bias": pytest.approx([3, 3, 3])}


@pytest.mark.parametrize("name", ["fedfc", "sflv1", "sflv2"])
def test_oversampling_recycles_the_batches_of_clients_with_fewer(world, name):
    together = 'sflv2.order="batch"'
    strategy = world(f'strategy="{name}" num-clients=3 {name}.oversample=true {together}')
    waves, step = [], type(strategy).step

    def record(round_, wave):
        waves.append({s.client: s.labels.tolist() for s in wave})
        return step(strategy, round_, wave)

    strategy.step = record
    play(strategy)
    own = {c: [y.tolist() for _, y in batches(strategy, c, 1, 0)] for c in range(3)}
    most = max(len(batches_) for batches_ in own.values())
    assert min(len(batches_) for batches_ in own.values()) < most
    for i, wave in enumerate(waves[:most]):
        assert wave == {c: own[c][i % len(own[c])] for c in range(3)}
    assert len(waves) == 2 * most


@pytest.mark.parametrize("name", ["fedfc", "sflv1", "sflv2"])
def test_oversampling_costs_no_client_more_than_the_limit(world, name):
    """Whatever one device claims to have; the others have 2, 3 and 4 batches of up to 8."""
    limit = f"{name}.oversample=true {name}.oversample-limit=3"
    strategy = world(f'strategy="{name}" num-clients=4 {limit}')
    claimed = {0: 16, 1: 2**39, 2: 24, 3: 32}
    strategy.devices = {client: {"train": count} for client, count in claimed.items()}
    with strategy.running():
        plans = opened(strategy, 1)
        assert {c: plan.stages[0].batches for c, plan in plans.items() if c != 1} == {
            0: 9, 2: 9, 3: 9,
        }  # fmt: skip
        assert strategy._session.rules.batches == {0: 9, 1: 2**36, 2: 9, 3: 9}
        strategy._session.abort()


def test_oversampling_in_a_simulation_has_no_limit(world):
    """There the server knows what each client has."""
    strategy = world('strategy="sflv1" sflv1.oversample=true sflv1.oversample-limit=1')
    with strategy.running():
        plans = opened(strategy, 1)
        most = max(map(strategy.batches, plans))
        assert {plan.stages[0].batches for plan in plans.values()} == {most}
        assert most > min(map(strategy.batches, plans))
        strategy._session.abort()


@given(
    st.dictionaries(st.integers(0, 99), st.integers(1, 50), min_size=2, max_size=9),
    st.integers(51, 2**40),
    st.integers(1, 20),
)
def test_less_than_half_of_the_clients_cost_the_others_no_more_than_the_limit(own, claim, limit):
    honest = max(own.values())
    claims = {-1 - i: claim + i for i in range((len(own) - 1) // 2)}
    found = levelled(own | claims, limit)
    assert all(own[c] <= found[c] <= max(own[c], limit * honest) for c in own)
    assert set(levelled(own).values()) == {honest}


def test_parts_made_for_threads_are_alike_and_carry_no_hooks(world):
    """They are copies of one model, made before the threads start."""
    space = world('strategy="fedfc"').workspace
    parts = [space.restricted(("l1", "l2")) for _ in range(8)]
    with ThreadPoolExecutor(8) as threads:
        macs = list(threads.map(lambda p: p.trainer.profile.layer_macs("l2"), parts))
    assert len(set(macs)) == 1
    assert not any(m._forward_hooks for part in parts for m in part.model.modules())
    assert all(part.data is space.data for part in parts)
