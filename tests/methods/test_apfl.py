"""APFL's certain facts (docs/papers/apfl.md); its twin has the formulas."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from clients.apfl import APFLClient
from fedapps.core import config
from fedapps.method import put, rehearse, take
from strategies.apfl import APFL

WHOLE = "batch-size=1000"  # a batch is all samples of a client: no order of theirs matters
FIXED = "apfl.adaptive=false"


@pytest.fixture
def rehearsal(flat_config, tiny_npz):
    """Return make(options, strategy, client) -> a rehearsal: all of three clients, equal n_i."""
    base = 'partitioner="iid" num-clients=3 fraction-train=1.0 batch-size=12'

    def make(options="", strategy=APFL, client=APFLClient):
        name = f'strategy="{strategy.__module__.split(".")[1]}"'
        return rehearse(strategy, client, config.read(flat_config(tiny_npz, base, name, options)))

    return make


def mine(run, client):
    """What a client keeps: v_i with the mixture's statistics, and alpha_i."""
    entries = {key.removeprefix("mine/"): value for key, value in run.clients[client].items()}
    return entries, float(entries.pop("alpha"))


def tensors(arrays):
    return {key: torch.as_tensor(deepcopy(value)) for key, value in arrays.items()}


def mixed(alpha, v, w):
    return {key: alpha * v[key] + (1 - alpha) * w[key] for key in w}


def accuracy(client, state):
    put(client.model, {key: value.numpy() for key, value in state.items()})
    images, labels = client.test_data
    return (client.model.eval()(images).argmax(1) == labels).double().mean().item()


def close(some, others):
    assert some.keys() == others.keys()
    for key in some:
        np.testing.assert_allclose(some[key], others[key], rtol=1e-4, atol=1e-6, err_msg=key)


def algorithm_1(client, received, steps, lr):
    """Steps on all of a client's samples, from v = w; autograd gives what v and alpha need."""
    x, y = client.train_data
    model, alpha = deepcopy(client.model).train(), torch.tensor(0.5, requires_grad=True)
    w, v = ({k: t.requires_grad_() for k, t in tensors(received).items()} for _ in range(2))
    optimizer = torch.optim.SGD([*w.values(), *v.values(), alpha], lr)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(functional_call(model, w, x), y).backward()
        fixed = {key: value.detach() for key, value in w.items()}
        cross_entropy(functional_call(model, mixed(alpha, v, fixed), x), y).backward()
        optimizer.step()
        alpha.data.clamp_(0, 1)
    return w, v, alpha.item()


def test_what_is_scored_is_the_mixture_with_the_received_w(rehearsal):
    run = rehearsal("score-last=true lr=0.1")
    run.rounds(2)
    uploads = {c: run.train(c, run.strategy.plan(3, c)).arrays for c in (0, 1)}
    w = tensors(run.strategy.arrays)  # they have trained again, the server has not aggregated
    run.clients[2] = {}  # as if never selected
    for client in range(3):
        scored = run.evaluate(client)
        state = mine(run, client) if client < 2 else (run.strategy.workspace.initial, 0.5)
        v, made = tensors(state[0]), run.make(client)
        right = accuracy(made, mixed(state[1], v, w))
        assert scored["accuracy_initial"] == scored["accuracy_personalized"] == right
        assert scored["accuracy_global"] == accuracy(made, w)
        if client < 2:
            last = accuracy(made, mixed(state[1], v, tensors(uploads[client])))
            assert scored["accuracy_last_local"] == last


def test_alpha_stays_a_share_at_every_step(rehearsal):
    seen = []

    class Watched(APFLClient):
        def step(self, model):
            super().step(model)
            seen.append(self.alpha)

    run = rehearsal('apfl.alpha-steps="batch" apfl.initial-alpha=0.001 lr=0.1', client=Watched)
    run.rounds(1)
    assert all(0 <= alpha <= 1 for alpha in seen) and 0.0 in seen and len(set(seen)) > 2


def test_a_fixed_alpha_stays(rehearsal):
    run = rehearsal(f"{FIXED} apfl.initial-alpha=0.3")
    run.rounds(1)
    assert mine(run, 0)[1] == pytest.approx(0.3)


def test_both_gradients_of_a_step_draw_the_same(rehearsal):
    draws = []

    class Noisy(APFLClient):
        def loss(self, logits, labels):
            draws.append(torch.rand(()).item())  # a dropout mask
            return super().loss(logits, labels)

    run = rehearsal(client=Noisy)
    run.train(0, run.strategy.plan(1, 0))
    assert draws[::2] == draws[1::2] and len(set(draws)) == len(draws) // 2 > 1


def test_a_newcomer_predicts_with_the_mixture_after_a_round_from_the_shared_w(rehearsal):
    keys = 'local-epochs=3 lr=0.1 apfl.alpha-steps="batch" unseen-clients="2"'
    run = rehearsal(f"{WHOLE} {keys}")
    run.rounds(2)
    w, plan, made = dict(run.strategy.arrays), run.strategy.newcomer_plan(2, 2), run.make(2)
    made.evaluate_round(plan, run.strategy.newcomer_download(2, 2, plan))
    found = take(made.model, [*w])
    with_w, v, alpha = algorithm_1(run.make(2), w, 3, 0.1)
    w, v = ({key: value.detach() for key, value in of.items()} for of in (with_w, v))
    close(found, mixed(alpha, v, w))
    assert any(np.abs(found[key] - value.numpy()).max() > 1e-4 for key, value in w.items())


def test_no_gpu_is_asked_for_its_random_numbers_in_training_on_the_cpu(rehearsal, monkeypatch):
    """A process that has asked one cannot train in forks."""
    asked = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: asked.append("devices") or 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: asked.append(device))
    rehearsal().rounds(1)
    assert asked == []
