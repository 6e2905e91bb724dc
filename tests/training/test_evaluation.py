"""Scores against NumPy: loss, class-wise counts, and the nearest class template."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.engine import checks
from fedapps.method import BaseClient, BaseStrategy, Plan, TrainingStats, put, rehearse
from fedapps.models import build
from fedapps.tasks import CLASSIFICATION, TASKS
from fedapps.tasks.classification import Classification
from fedapps.training import evaluation
from fedapps.training.batches import CHUNK
from fedapps.training.evaluation import nearest_template, score
from fedapps.training.workspace import workspace

LONG = 2 * CHUNK + 1  # more than fits into two forward passes


def test_score_makes_no_graph():
    head = nn.Linear(3, 2)
    outputs = []

    def predict(images):
        outputs.append(head(images.flatten(1)))
        return outputs[-1]

    score(predict, (torch.ones(4, 3, 1, 1), torch.zeros(4, dtype=torch.long)), CLASSIFICATION)
    assert not any(output.requires_grad for output in outputs)


class Watched(Classification):
    """Notes how many bytes of outputs it counts at once."""

    def __init__(self):
        self.seen = []

    def count(self, output, target):
        self.seen.append(output.nbytes)
        return super().count(output, target)


def test_not_all_outputs_are_in_memory_at_once():
    """5,000 samples of 4,096 classes are 82 MB of logits."""
    n, classes, task = 5000, 4096, Watched()
    labels = torch.arange(n) % classes
    where = torch.arange(n).reshape(n, 1, 1, 1)
    right = where.flatten() % 3 == 0

    def predict(images):
        found = torch.zeros(len(images), classes)
        found[torch.arange(len(images)), (labels + ~right)[images.flatten()] % classes] = 1
        return found

    result = score(predict, (where, labels), task)
    assert max(task.seen) <= 2**26 + CHUNK * classes * 4 < n * classes * 4 == sum(task.seen)
    assert (result.counts["right"] == np.bincount(labels[right], minlength=classes)).all()
    assert (result.counts["total"] == np.bincount(labels, minlength=classes)).all()
    z, top = classes - 1 + np.e, float(right.double().mean())
    assert result.loss == pytest.approx(np.log(z) - top, rel=1e-5)


@pytest.mark.parametrize("steps", [1, 40])
@pytest.mark.parametrize("task", ["classification", "tokens", "multilabel", "regression"])
def test_outputs_that_are_counted_in_parts_score_the_same(task, steps, monkeypatch):
    n, draws = LONG, torch.Generator().manual_seed(steps)
    targets = {
        "classification": torch.randint(7, (n,), generator=draws),
        "tokens": torch.randint(7, (n, steps), generator=draws),
        "multilabel": torch.rand(n, 7, generator=draws).round(),
        "regression": 5 + torch.randn(n, *[steps] * (steps > 1), generator=draws),
    }[task]
    shape = {"tokens": (steps, 7), "regression": (steps,)}.get(task, (7,))
    outputs = torch.randn(n, *shape, generator=draws)
    samples, task = (torch.arange(n), targets), TASKS[task]
    whole = score(lambda chosen: outputs[chosen], samples, task)
    monkeypatch.setattr(evaluation, "MOST", 0)
    parts = score(lambda chosen: outputs[chosen], samples, task)
    assert parts.loss == pytest.approx(whole.loss, rel=1e-6)
    for key, count in whole.counts.items():
        assert parts.counts[key].shape == count.shape
        np.testing.assert_allclose(parts.counts[key], count, rtol=1e-12)


def on_features(features):
    """A model whose body returns row i for "image" i."""
    body = nn.Embedding.from_pretrained(torch.from_numpy(features))
    body = nn.Sequential(nn.Flatten(0), body)
    return nn.Sequential(OrderedDict(body=body, head=nn.Linear(features.shape[1], 3)))


def brute_force(train, labels, test):
    """Predictions in float64, and how many test samples are too close to call in float32."""
    known = np.unique(labels)
    means = np.stack([train[labels == c].mean(0, dtype=np.float64) for c in known])
    distances = np.sqrt(((test.astype(np.float64)[:, None] - means[None]) ** 2).sum(2))
    nearest = np.sort(distances, 1)[:, :2]
    close = 0 if len(known) == 1 else (nearest[:, 1] - nearest[:, 0] < 1e-5).sum()
    return known[distances.argmin(1)], close


@settings(max_examples=50, deadline=None)
@given(
    train=st.one_of(st.integers(1, 40), st.just(LONG)),
    test=st.one_of(st.integers(1, 40), st.just(LONG)),
    classes=st.integers(2, 40),
    width=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
)
def test_nearest_template_by_brute_force(train, test, classes, width, seed):
    draws = np.random.default_rng(seed)
    features = draws.normal(size=(train + test, width)).astype(np.float32)
    present = draws.permutation(classes)[: draws.integers(1, classes + 1)]
    labels = draws.choice(present, train)
    where = torch.arange(train + test).reshape(-1, 1)

    outputs = nearest_template(
        on_features(features), ("body",), (where[:train], torch.from_numpy(labels)),
        where[train:], classes,
    )  # fmt: skip

    predicted, close = brute_force(features[:train], labels, features[train:])
    assert (outputs.argmax(1).numpy() != predicted).sum() <= close
    absent = np.setdiff1d(np.arange(classes), labels)
    assert (outputs[:, absent] == -torch.inf).all()


def test_distances_do_not_cancel():
    """Features far from zero and close to each other, as those after a ReLU may be."""
    draws = np.random.default_rng(0)
    centres = 100 + 0.05 * draws.normal(size=(30, 64))
    labels = np.arange(30).repeat(2)
    asked = np.arange(30).repeat(5)
    noise = 0.005 * draws.normal(size=(210, 64))
    features = (centres[np.concatenate([labels, asked])] + noise).astype(np.float32)
    where = torch.arange(210).reshape(-1, 1)
    assert (brute_force(features[:60], labels, features[60:])[0] == asked).all()
    train = where[:60], torch.from_numpy(labels)
    outputs = nearest_template(on_features(features), ("body",), train, where[60:], 30)
    assert (outputs.argmax(1).numpy() == asked).all()


def test_template_features_come_in_eval_mode_and_leave_the_statistics():
    model = build("lenet5", (1, 8, 8), 4, seed=0)
    draws = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for key, value in model.state_dict().items():
            if "running" in key:
                value.add_(torch.rand(value.shape, generator=draws))
    images = torch.randn(40, 1, 8, 8, generator=draws)
    labels = torch.randint(4, (40,), generator=draws)
    body = ("conv1", "conv2", "fc1", "fc2")
    before = {key: value.clone() for key, value in model.state_dict().items()}

    model.train()
    outputs = nearest_template(model, body, (images[:20], labels[:20]), images[20:], 4)
    after = model.state_dict()
    assert all(torch.equal(after[key], before[key]) for key in before)

    model.eval()
    with torch.no_grad():
        # one image after the other: no statistics of a batch
        rows = [model.fc2(model.fc1(model.conv2(model.conv1(x[None])))) for x in images]
    features = torch.cat(rows).numpy()
    predicted, close = brute_force(features[:20], labels[:20].numpy(), features[20:])
    assert close == 0
    assert (outputs.argmax(1).numpy() == predicted).all()


class OneEpoch(BaseStrategy):
    """Nothing is trained; an evaluation has one stage, or none."""

    def plan(self, round_, client):
        return self.exchange(round_, self.layout.names)

    def evaluation_plan(self, round_, client):
        stages = (self.stage(round_, self.layout.names),) if client else ()
        return Plan(round=round_, download=self.layout.names, stages=stages, upload=())


class SaysOne(BaseClient):
    """Its personalized model says class 1 of everything, in eval mode."""

    def personalize(self, plan):
        (bias,) = (key for key in self.layout.keys_of(self.layout.head) if "bias" in key)
        put(self.model, {bias: 1e6 * np.eye(10, dtype=np.float32)[1]})
        self.model.train()
        return TrainingStats(macs=7)

    def predict(self, images):
        assert not self.model.training
        return super().predict(images)


def test_personalize_comes_between_the_two_scores_of_a_plan_with_stages():
    run = rehearse(OneEpoch, SaysOne, 'model="lenet5" num-clients=3 alpha=10.0')
    found = run.evaluate(client=1)
    assert found["personalized_right"] == [0, found["initial_total"][1]] + 8 * [0]
    assert found["initial_right"] != found["personalized_right"] and found["finetune_macs"] == 7
    found = run.evaluate(client=0)
    assert found["initial_right"] == found["personalized_right"] and found["finetune_macs"] == 0


# Batch statistics of a single sample --------------------------------------------------------------

FEW = 'strategy="fedavg" num-clients=20 test-fraction=0.05 num-rounds=1 fraction-train=0.1'
LONE = f'{FEW} model="conv4" bn-stats="batch" finetune-epochs=0'  # 8 pixels, halved three times


def single(flat):
    """The clients with one test sample, counted in the data."""
    clients = workspace(config.read(flat)).population
    parts = enumerate(map(clients.share, clients.training))
    return [client for client, share in parts if len(share.test) == 1]


def test_a_lone_sample_for_batchnorm_is_refused(serial_run, flat_config, read_csv, monkeypatch):
    """Left out of the check, torch fails for exactly the clients that it is about."""
    few = single(flat_config(LONE))
    assert 0 < len(few) < 20
    with pytest.raises(RunError) as caught:
        serial_run(LONE)
    assert str(caught.value) == (
        f'bn-stats = "batch": client {few[0]} has a single test sample, so a BatchNorm in conv4 '
        'gets only one value per channel; use "shared" or "local", or a larger test-fraction'
    )
    monkeypatch.setattr(checks, "_check_scores", lambda strategy: None)
    failed = read_csv(serial_run(LONE), "events.csv")
    failed = [row for row in failed if row["kind"] == "failure"]
    assert {int(row["client"]) for row in failed} == set(few)
    assert all("more than 1 value per channel" in row["detail"] for row in failed)


ODD = 'model="conv4" bn-stats="batch" num-clients=60 min-samples=5 num-rounds=1'
TEMPLATES = "score-without-head=true"  # what it adds, FedAP and FedBABU do without it
TRAIN = ["fedap", "fedas", "fedbabu", "fedcmd", "fedem", "fedpac", "fedproto", "knnper"]


@pytest.mark.parametrize(("keys", "subset", "cure"), [
    *((f'strategy="{method}"', "train", "a larger min-samples") for method in TRAIN),
    ('strategy="fedfomo"', "validation", "a larger validation-fraction"),
    (f'strategy="fedap" {TEMPLATES}', "train", "a larger min-samples"),
    (f'strategy="fedbabu" {TEMPLATES}', "train", "a larger min-samples"),
    (f'strategy="fedavg" {TEMPLATES}', "train", "score-without-head=false"),
    ('strategy="fedavg"', "train", ""),
    ('strategy="fedcmd" fedcmd.layer="fc"', "train", ""),
])  # fmt: skip
def test_what_runs_in_eval_mode_is_looked_at(keys, subset, cure, flat_config):
    """Clients run samples of their own: for templates, features, statistics or weights."""
    share = (
        "test-fraction=0.9" if subset == "train" else "validation-fraction=0.1 test-fraction=0.5"
    )
    space = workspace(config.read(flat_config(f"{ODD} {share}", keys)))
    strategy = registry.strategy_class(space.settings.strategy)(space)
    shares = map(space.population.share, space.population.training)
    lone = [len(getattr(share, subset)) for share in shares].index(1)
    if not cure:
        checks.check_strategy(strategy)
        return
    said = rf"client {lone} has a single {subset} sample.*(,|) or {cure}$"
    with pytest.raises(RunError, match=said):
        checks.check_strategy(strategy)


@pytest.mark.parametrize("option", [
    'bn-stats="local"',
    'model="lenet5"',  # its BatchNorms see several pixels
    "test-fraction=0.3",
    'validation-fraction=0.3 evaluate-on="validation"',
    "evaluate-clients=1",  # that one has more
])  # fmt: skip
def test_what_can_be_scored_is_not_refused(option, serial_run, flat_config, read_rounds):
    few = single(flat_config(LONE, option))
    assert (few == []) == (option == "test-fraction=0.3")
    (row,) = read_rounds(serial_run(LONE, option))
    assert row["failures"] == 0
    assert row["evaluated"] == (1 if "clients" in option else 20)


def test_a_final_phase_scores_all_clients_so_all_are_looked_at(flat_config):
    flat, make = flat_config(LONE, 'evaluate-clients=3 strategy="fedseq"'), registry.strategy_class
    assert make("fedseq").final_phase
    with pytest.raises(RunError, match=rf"client {single(flat)[0]} has a single test sample"):
        checks.check_strategy(make("fedseq")(workspace(config.read(flat))))


@pytest.mark.parametrize(
    ("keys", "refused"), [("evaluate-clients=2", True), ("alpha=3.0 evaluate-clients=12", False)]
)
def test_attackers_are_not_scored_so_only_the_others_are_looked_at(
    keys, refused, serial_run, flat_config, read_csv
):
    """A run that the check does not concern tells who is scored."""
    these = (LONE, 'attack="label-flip" attackers=0.3 test-fraction=0.06', keys)
    rows = read_csv(serial_run(*these, 'bn-stats="shared"'), "clients.csv")
    scored = {int(row["client"]) for row in rows}
    lone = [client for client in single(flat_config(*these)) if client in scored]
    assert bool(lone) == refused
    strategy = registry.strategy_class("fedavg")(workspace(config.read(flat_config(*these))))
    if not refused:
        checks.check_strategy(strategy)
        return
    with pytest.raises(RunError, match=rf"client {lone[0]} has a single test sample"):
        checks.check_strategy(strategy)
