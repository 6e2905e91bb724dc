"""FedFC against one joint graph in float64, at equal and at mixed cuts."""

import msgspec
import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from fedapps.core import config
from fedapps.method.update import ClientUpdate
from fedapps.split.rules import Smashed
from strategies.fedfc import FedFC
from tests.support.split_float64 import CLOSE, LR, batches, double, fresh, play, sgd


def test_fedfc_with_equal_cuts_trains_the_server_on_the_joined_batches(world, monkeypatch):
    strategy = world('strategy="fedfc" fedfc.cuts="2" num-clients=3')
    waves, step = [], FedFC.step

    def record(self, round_, wave):
        waves.append([(s.data.detach().clone(), s.labels.clone()) for s in wave])
        return step(self, round_, wave)

    monkeypatch.setattr(FedFC, "step", record)
    central, buffers = fresh(strategy, strategy.arrays), {}
    found = play(strategy)
    for wave in waves:
        x = torch.cat([data for data, _ in wave])
        loss = cross_entropy(central.l4(central.l3(x)), torch.cat([y for _, y in wave]))
        loss.backward()
        sgd({k: p for k, p in central.named_parameters() if k[:2] in ("l3", "l4")}, buffers)
    assert {len(wave) for wave in waves} != {3}  # some have fewer batches and wait
    for key in ("l3.0.weight", "l3.0.bias", "l4.weight", "l4.bias"):
        np.testing.assert_allclose(found[key], central.state_dict()[key], **CLOSE)


def joint(strategy, cuts, round_=1):
    """FedFC as one autograd graph a step: every client its own copy, the server one."""
    clients = {c: fresh(strategy, strategy.workspace.initial) for c in cuts}
    server = fresh(strategy, strategy.workspace.initial)
    names = list(strategy.layout.names)
    buffers = {who: {} for who in [*clients, "server"]}
    passed = dict.fromkeys(names, 0)
    for epoch in range(2):
        data = {c: batches(strategy, c, round_, epoch) for c in cuts}
        for i in range(max(len(own) for own in data.values())):
            x, labels = None, []
            for index, name in enumerate(names[min(cuts.values()) :], min(cuts.values())):
                for c, cut in cuts.items():
                    if cut == index and i < len(data[c]):
                        own, y = data[c][i]
                        for layer in names[:cut]:
                            own = getattr(clients[c], layer)(own)
                        x = own if x is None else torch.cat([x, own])
                        labels.append(y)
                if x is not None:
                    x = getattr(server, name)(x)
                    passed[name] += len(x)
            cross_entropy(x, torch.cat(labels)).backward()
            for who, model in [*clients.items(), ("server", server)]:
                sgd(dict(model.named_parameters()), buffers[who])
    return clients, server, passed


def test_fedfc_leaves_copies_out_that_were_not_trained(world):
    """Client 0 had no batch that it could train on, and the server saw none of this round."""
    strategy = world('strategy="fedfc" fedfc.cuts="2,1,2" num-clients=3')
    plans = {client: strategy.plan(1, client) for client in range(3)}
    strategy.prepare(1, plans)
    shapes, updates = strategy.layout.shapes, []
    for client, plan in plans.items():
        names = plan.up(strategy.layout)
        arrays = {name: np.full(shapes[name], float(client)) for name in names}
        updates.append(ClientUpdate(client, arrays, 9, {"batches": client}))
    found = strategy.aggregate(1, iter(updates))
    found = {key.partition(".")[0]: set(value.ravel()) for key, value in found.items()}
    assert found == {"l1": {1.5}, "l2": {2.0}}


@pytest.mark.parametrize("weighting", ["plain", "samples"])
def test_fedfc_with_mixed_cuts_is_one_joint_graph_and_averages_copies(world, weighting):
    cuts = {0: 3, 1: 1, 2: 2}
    strategy = world(
        f'strategy="fedfc" fedfc.cuts="3,1,2" num-clients=3 fedfc.weighting="{weighting}"'
    )
    clients, server, passed = joint(strategy, cuts)
    sizes = {c: len(strategy.workspace.samples(c, "train")[1]) for c in cuts}
    found = play(strategy)
    for key in found:
        layer = key.partition(".")[0]
        index = strategy.layout.names.index(layer)
        copies = [(sizes[c], clients[c]) for c, cut in cuts.items() if index < cut]
        if passed[layer]:
            copies.append((passed[layer] / 2, server))  # of two epochs
        weights = [1.0 if weighting == "plain" else n for n, _ in copies]
        values = [model.state_dict()[key].numpy() for _, model in copies]
        expected = np.average(values, axis=0, weights=weights)
        np.testing.assert_allclose(found[key], expected, **CLOSE)


def test_gradients_of_vgg16_are_of_the_joint_graph(flat_config, monkeypatch, make_npz, tmp_path):
    """At one step: the client's part of the gradient at every join, and so all that follows."""
    torch.set_default_dtype(torch.float64)
    try:
        path = make_npz(tmp_path / "vgg.npz", train=40, test=8, side=32)
        settings = config.read(
            flat_config(
                f'strategy="fedfc" dataset="{path}" model="vgg16" num-clients=4 batch-size=2 '
                'fraction-train=1.0 partitioner="iid" fedfc.cuts="2,4,7,10"'
            )
        )
        strategy = FedFC(double(settings))
        model, names = strategy.workspace.model, strategy.layout.names
        model.requires_grad_(True)
        strategy.part = strategy.server_part(1, names[2:])
        leaves, joined, labels = [], None, []
        wave = []
        for client, cut in enumerate((2, 4, 7, 10)):
            x, y = (part[:2] for part in strategy.workspace.samples(client, "train"))
            for name in names[:cut]:
                x = model.get_submodule(name)(x)
            x.retain_grad()
            leaves.append(x)
            labels.append(y)
            wave.append(Smashed(client, (0, 0), x.detach().clone().requires_grad_(), y))
        for index, name in enumerate(names[2:], 2):
            if index in (2, 4, 7, 10):
                own = leaves[(2, 4, 7, 10).index(index)]
                joined = own if joined is None else torch.cat([joined, own])
            joined = model.get_submodule(name)(joined)
        cross_entropy(joined, torch.cat(labels)).backward()
        answers = strategy.step(1, wave)
        for client, leaf in enumerate(leaves):
            assert leaf.grad.abs().max() > 1e-6
            torch.testing.assert_close(answers[client].gradient, leaf.grad, **CLOSE)
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("model", ["four-linear", "four-with-norm"])
def test_fedfc_is_sflv1_up_to_the_clients_learning_rate(model, world, make_npz, tmp_path):
    """Equal cuts and equal batches: the client's gradient is smaller by 1/K, and nothing else.

    With BatchNorms on the server, if these see each client's part by itself.
    """
    path = make_npz(tmp_path / "even.npz", train=96, test=24)
    even = f'dataset="{path}" partitioner="iid" split="official" num-clients=3 model="{model}"'
    first = world(f'strategy="fedfc" fedfc.cuts="2" fedfc.statistics="client" {even}')
    plan = first.plan

    def faster(round_, client):
        made = plan(round_, client)
        stage = msgspec.structs.replace(made.stages[0], lr=3 * LR)
        return msgspec.structs.replace(made, stages=(stage,))

    first.plan = faster
    found = play(first)
    expected = play(world(f'strategy="sflv1" sflv1.cut=2 {even}'))
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, **CLOSE)


def test_batchnorms_see_the_joined_batch_or_each_clients_part(world):
    """Against the formula: each column of what is normalized together has mean 0."""
    found = {}
    for statistics in ("joined", "client"):
        told = f'fedfc.cuts="2" fedfc.statistics="{statistics}" num-clients=2'
        strategy = world(f'strategy="fedfc" model="four-with-norm" {told}')
        strategy.part = strategy.server_part(1, ("l3", "l4"))
        seen = []
        norm = strategy.part.space.model.l3[0]
        norm.register_forward_hook(lambda module, inputs, out, seen=seen: seen.append(out))
        wave = []
        for client, size in enumerate((5, 3)):
            data = (torch.arange(10.0 * size).reshape(size, 10) + client).sin().requires_grad_()
            wave.append(Smashed(client, (0, 0), data, torch.zeros(size, dtype=torch.int64)))
        answers = strategy.step(1, wave)
        assert [len(answers[s.client].gradient) for s in wave] == [5, 3]
        found[statistics] = seen
    assert [len(out) for out in found["joined"]] == [8]
    assert [len(out) for out in found["client"]] == [5, 3]
    for out in (*found["joined"], *found["client"]):
        np.testing.assert_allclose(out.detach().mean(0), 0, atol=1e-12)


def test_momentum_of_layers_that_get_their_first_gradient_late(world):
    """With mixed cuts a wave may pass by some layers: they keep still, momentum included."""
    strategy = world('strategy="fedfc" num-clients=1')
    part = strategy.server_part(1, ("l3", "l4"))
    model, buffers = fresh(strategy, strategy.arrays), {}
    x = torch.linspace(-1, 1, 20).reshape(2, 10)
    y = torch.tensor([0, 1])
    for layers in (("l4",), ("l3", "l4"), ("l4",), ("l3", "l4")):
        inputs = x if len(layers) == 2 else x[:, :8]
        cross_entropy(part.run(inputs, layers), y).backward()
        part.step()
        out = inputs
        for layer in layers:
            out = getattr(model, layer)(out)
        cross_entropy(out, y).backward()
        sgd(dict(model.named_parameters()), buffers)
    for key, value in part.arrays().items():
        np.testing.assert_allclose(value, model.state_dict()[key], **CLOSE)
