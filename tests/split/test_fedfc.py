"""FedFC: untrained copies, BatchNorms, late momentum, SFLv1; its twin has mixed and equal cuts."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy

import fedapps
from fedapps.engine.finished import FinishedRun
from fedapps.method.update import ClientUpdate
from fedapps.split.rules import Smashed
from tests.support.split_float64 import CLOSE, fresh, sgd


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


def test_the_shared_model_of_a_run_with_a_cut_for_each_client_is_there(
    serial_run, tiny_npz, read_model
):
    """Cuts are those of the run's clients; whoever comes later gets the whole model."""
    options = 'strategy="fedfc" fedfc.cuts="1,2,1" num-clients=3 num-rounds=1'
    folder = serial_run(f"{tiny_npz} {options}")
    plan, model = FinishedRun.open(folder).newcomer_plan(), read_model(folder)
    assert plan.newcomer and {name.partition(".")[0] for name in model} == {*plan.download}
    found = fedapps.load(folder).model(None).module.state_dict()
    assert all((found[key].numpy() == value).all() for key, value in model.items())


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
