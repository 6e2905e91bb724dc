"""pFedMe's certain facts (docs/papers/pfedme.md), each by a computation of its own."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from clients.pfedme import PFedMeClient
from fedapps import models
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.method import put, rehearse
from fedapps.models.blocks import of_images
from fedapps.models.grouping import freeze_as_built
from strategies.pfedme import PFedMe

# A batch is all samples of a client, so their order does not matter.
BASE = 'strategy="pfedme" model="cnn" num-clients=3 fraction-train=1.0 batch-size=1000'


@pytest.fixture
def rehearsal(flat_config, tiny_npz):
    """Return make(options, client=) -> a rehearsal of pFedMe: three clients, all of them train."""

    def make(options, client=PFedMeClient):
        return rehearse(PFedMe, client, config.read(flat_config(tiny_npz, BASE, options)))

    return make


def kept(run, client, prefix="theta/"):
    """What a client keeps, without the prefix."""
    return {
        key.removeprefix(prefix): value.numpy()
        for key, value in run.clients[client].items()
        if key.startswith(prefix)
    }


def close(some, others, rtol=1e-4, atol=1e-6):
    assert some.keys() == others.keys()
    for key, value in some.items():
        np.testing.assert_allclose(value, others[key], rtol=rtol, atol=atol, err_msg=key)


def algorithm_1(run, client, rounds, steps, eta, eta_p, lambda_, mu=0.0):
    """Local rounds on all samples of a client, by autograd on h_i; w and every theta_r."""
    made = run.make(client)
    x, y = made.train_data
    put(made.model, run.strategy.arrays)
    w, theta, thetas = deepcopy(made.model).train(), deepcopy(made.model).train(), []
    for _ in range(rounds):
        for _ in range(steps):
            h = cross_entropy(theta(x), y)
            for p, q in zip(free(theta), free(w), strict=True):
                h = h + lambda_ / 2 * (p - q.detach()).square().sum() + mu / 2 * p.square().sum()
            gradients = torch.autograd.grad(h, free(theta))
            with torch.no_grad():
                for p, gradient in zip(free(theta), gradients, strict=True):
                    p -= eta_p * gradient
        thetas.append(arrays_of(theta))
        with torch.no_grad():
            for p, q in zip(theta.parameters(), w.parameters(), strict=True):
                q -= eta * lambda_ * (q - p)
    return arrays_of(w), thetas


def free(model):
    """The parameters that the author of the model has not frozen."""
    return [p for p in model.parameters() if p.requires_grad]


def arrays_of(model):
    return {key: value.numpy().copy() for key, value in model.state_dict().items()}


def trained(run, client=0):
    """The upload and theta_i after a client's work in round 1."""
    upload = run.train(client, run.strategy.plan(1, client)).arrays
    return upload, kept(run, client)


def test_frozen_weights_do_not_decay(rehearsal, monkeypatch):
    """They are the same in theta as in w, so that what is trained is what is scored."""

    def make(shape, classes):
        frozen = nn.Sequential(nn.Flatten(), nn.Linear(torch.Size(shape).numel(), 6))
        model = nn.Sequential(frozen.requires_grad_(False), nn.Linear(6, 6), nn.Linear(6, classes))
        model[1].bias.requires_grad_(False)
        freeze_as_built(model)
        return model

    monkeypatch.setitem(models.MODELS, "frozen", of_images(make))
    keys = "pfedme.inner-steps=3 pfedme.inner-lr=0.05 pfedme.local-rounds=4 weight-decay=0.1"
    run = rehearsal(f'model="frozen" lr=0.03 pfedme.lambda=10.0 {keys}')
    w, thetas = algorithm_1(run, 0, 4, 3, eta=0.03, eta_p=0.05, lambda_=10.0, mu=0.1)
    for found, right in zip(trained(run), (w, thetas[-1]), strict=True):
        close(found, {key: right[key] for key in ("1.weight", "2.weight", "2.bias")})


@pytest.mark.parametrize(("rounds", "size"), [(1, 8), (7, 8), (7, 1000), (3, 9)])
def test_local_rounds_count_batches(rehearsal, rounds, size):
    run = rehearsal(f"batch-size={size} pfedme.local-rounds={rounds} pfedme.inner-steps=2")
    done = run.train(0, run.strategy.plan(1, 0)).metrics
    assert done["batches"] == 2 * rounds


def test_local_rounds_count_no_batch_that_is_skipped(rehearsal):
    """A BatchNorm of conv4 cannot take the one sample that each epoch leaves over."""
    samples = len(rehearsal("").make(0).train_data[1])
    options = 'model="conv4" pfedme.local-rounds=4 pfedme.inner-steps=1'
    run = rehearsal(f"batch-size={samples - 1} {options}")
    done = run.train(0, run.strategy.plan(1, 0)).metrics
    assert done["batches"] == 4 and done["skipped"] > 0


@pytest.mark.parametrize("lr", [0.2, 0.25])
def test_a_step_that_diverges_is_refused(rehearsal, lr):
    with pytest.raises(RunError, match=r"^lr x pfedme.lambda = .*: must be below 2"):
        rehearsal(f"lr={lr} pfedme.lambda=10.0")


def test_a_step_to_theta_or_beyond_is_warned_of(rehearsal, caplog):
    rehearsal("lr=0.09 pfedme.lambda=10.0")
    assert not caplog.records
    rehearsal("lr=0.1 pfedme.lambda=10.0")
    rehearsal("lr=0.15 pfedme.lambda=10.0")
    assert [r.getMessage() for r in caplog.records] == [
        "lr x pfedme.lambda = 1: w becomes theta, which is FedAvg with a pull",
        "lr x pfedme.lambda = 1.5 is above 1: w overshoots theta",
    ]


def accuracy(run, client, arrays):
    made = run.make(client)
    put(made.model, arrays)
    images, labels = made.test_data
    with torch.no_grad():
        return float((made.model.eval()(images).argmax(1) == labels).float().mean())


def test_scored_are_theta_w_and_what_was_uploaded(rehearsal):
    run = rehearsal('model="lenet5" score-last=true batch-size=8 lr=0.01 pfedme.local-rounds=6')
    upload = run.train(0, run.strategy.plan(1, 0)).arrays
    close(kept(run, 0, "last/"), upload, rtol=0, atol=0)
    run.strategy.arrays.update(
        {key: np.flip(value, 0).copy() for key, value in run.strategy.arrays.items()}
    )  # a w that is none of the others
    figures = run.evaluate(0)
    theta = accuracy(run, 0, kept(run, 0))
    assert figures["accuracy_initial"] == figures["accuracy_personalized"] == pytest.approx(theta)
    assert figures["accuracy_global"] == pytest.approx(accuracy(run, 0, run.strategy.arrays))
    assert figures["accuracy_last_local"] == pytest.approx(accuracy(run, 0, upload))
    assert figures["finetune_batches"] == 0


def test_a_client_never_selected_has_the_initial_model(rehearsal):
    run = rehearsal("lr=0.01 pfedme.local-rounds=6")
    initial = run.strategy.workspace.initial
    run.train(0, run.strategy.plan(1, 0))
    wanted = accuracy(run, 2, {key: np.asarray(value) for key, value in initial.items()})
    assert run.evaluate(2)["accuracy_personalized"] == pytest.approx(wanted)


def test_a_newcomer_predicts_with_theta_after_a_round_from_w(rehearsal):
    keys = "lr=0.03 pfedme.lambda=10.0 pfedme.inner-steps=3 pfedme.inner-lr=0.05"
    run = rehearsal(f'{keys} pfedme.local-rounds=4 unseen-clients="2"')
    run.rounds()
    plan, made = run.strategy.newcomer_plan(1, 2), run.make(2)
    made.evaluate_round(plan, run.strategy.newcomer_download(1, 2, plan))
    found = arrays_of(made.model)
    _, thetas = algorithm_1(run, 2, 4, 3, eta=0.03, eta_p=0.05, lambda_=10.0)
    close(found, thetas[-1])


def test_the_shared_model_is_scored_with_the_clients_own_batchnorms_of_it(rehearsal):
    """With `bn-local` their scales and shifts stay on the client, and theta_i's are others."""
    expected, found = [], []

    class Noting(PFedMeClient):
        def before_scoring(self, plan):
            expected.append(float(self.score(self.test_data).loss))
            done = super().before_scoring(plan)
            assert float(self.score(self.test_data).loss) != expected[-1]
            found.append(self.shared.loss)
            return done

    options = 'model="lenet5" bn-local=true lr=0.3 pfedme.lambda=5.0 batch-size=8 local-epochs=3'
    run = rehearsal(options, Noting)
    trained(run)
    run.evaluate(client=0)
    assert found == expected and len(found) == 1
