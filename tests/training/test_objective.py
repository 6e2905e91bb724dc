"""What a method's author can change of local training, each against a few lines of plain torch."""

from collections import OrderedDict
from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedapps.core.errors import RunError
from fedapps.models.layers import layout_of, run
from fedapps.training.costs import Costs, TrainingStats, profile
from fedapps.training.draw import Draw
from fedapps.training.inner_steps import descend, pull, restored, swapped
from fedapps.training.objective import Objective
from fedapps.training.plan import Clip, Stage
from fedapps.training.trainer import Trainer

DRAW = Draw(seed=5, phase="train", round=3, client=2)
SIZE, CLASSES, BATCH = 11, 3, 4
MEBI = 2**20


@pytest.fixture
def data():
    draws = torch.Generator().manual_seed(3)
    return torch.randn(SIZE, 6, generator=draws), torch.randint(CLASSES, (SIZE,), generator=draws)


@pytest.fixture
def trainer():
    """6 -> 5 -> 4 -> 3, linear: 30, 20 and 12 multiply-accumulates a sample."""
    torch.manual_seed(1)
    layers = {"a": nn.Linear(6, 5), "b": nn.Linear(5, 4), "c": nn.Linear(4, CLASSES)}
    model = nn.Sequential(OrderedDict(layers))
    layout = layout_of(model, 1, "shared", False)
    return Trainer(profile(model, layout, (6,)), BATCH, cache_bytes=MEBI)


def stage(layers, epochs=1, lr=0.1, **options):
    return Stage(layers=tuple(layers), epochs=epochs, lr=lr, **options)


def batches(data, epochs):
    """The batches of a training, in order."""
    for epoch in range(epochs):
        for chosen in DRAW.order(epoch, SIZE).split(BATCH):
            yield data[0][chosen], data[1][chosen]


def close(model, wanted):
    for mine, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", [None, "batch", "sample"])
def test_only_parameters_beside_a_frozen_model(trainer, data, clip):
    offset = nn.Parameter(torch.zeros(CLASSES))
    wanted, before = torch.zeros(CLASSES, requires_grad=True), deepcopy(trainer.model)
    for images, labels in batches(data, 2):
        loss = cross_entropy(before(images).detach() + wanted, labels)
        (gradient,) = torch.autograd.grad(loss, wanted)
        wanted = (wanted - 0.1 * gradient).detach().requires_grad_()
    objective = Objective(
        forward=lambda model, x, layers: run(model, x, layers) + offset,
        parameters=(offset,),
        macs=7,
    )
    clipping = clip and Clip(percentile=50, max_norm=1e-9, mode=clip, history=9)
    done = trainer.train(data, (stage([], 2, clip=clipping, prox_mu=9.0),), DRAW, objective)
    torch.testing.assert_close(offset, wanted)
    close(trainer.model, before)
    assert all(p.grad is None for p in trainer.model.parameters())
    assert (done.samples, done.batches) == (2 * SIZE, 2 * 3)
    assert done.macs == 2 * SIZE * (30 + 20 + 12 + 7)  # forward through all, and the author's own
    assert done.cost_paper == 2 * 3 * CLASSES


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_second_head_on_a_frozen_body_that_runs_once(trainer, data, use_cache):
    trainer.cache_bytes *= use_cache
    head = nn.Linear(4, CLASSES)
    body, wanted = deepcopy(trainer.model[:2]), deepcopy(head)
    own = torch.optim.SGD(wanted.parameters(), 0.1)
    for images, labels in batches(data, 3):
        own.zero_grad()
        cross_entropy(wanted(body(images)), labels).backward()
        own.step()
    seen = []

    def forward(model, x, layers):
        seen.append(layers)
        return head(run(model, x, layers[: layers.index("c")]))

    objective = Objective(
        forward=forward, parameters=tuple(head.parameters()), macs=2 * 12, start="c"
    )
    done = trainer.train(data, (stage([], 3),), DRAW, objective)
    close(head, wanted)
    assert set(seen) == {("c",) if use_cache else ("a", "b", "c")}
    once = SIZE * (30 + 20) if use_cache else 3 * SIZE * (30 + 20)
    assert done.macs == once + 3 * SIZE * (12 + 24)  # the model's own head counts as a pass
    assert done.cost_paper == 3 * 3 * (4 * CLASSES + CLASSES)


def test_start_moves_the_cached_prefix_before_the_first_trained_layer(trainer, data):
    """An adapter after `a` is trained with the head; `a` is cached, `b` is not."""
    adapter = nn.Parameter(torch.zeros(5))
    wanted, shift = deepcopy(trainer.model), nn.Parameter(torch.zeros(5))
    own = torch.optim.SGD([shift, *wanted.c.parameters()], 0.1)
    for images, labels in batches(data, 2):
        own.zero_grad()
        cross_entropy(wanted.c(wanted.b(wanted.a(images) + shift)), labels).backward()
        own.step()
    seen = []

    def forward(model, x, layers):
        seen.append(layers)
        return run(model, x + adapter, layers)

    objective = Objective(forward=forward, parameters=(adapter,), start="b")
    trainer.train(data, (stage(["c"], 2),), DRAW, objective)
    torch.testing.assert_close(adapter, shift)
    close(trainer.model, wanted)
    assert set(seen) == {("b", "c")}
    with pytest.raises(RunError, match='layer "z": the model has a, b, c'):
        trainer.train(data, (stage([]),), DRAW, Objective(parameters=(adapter,), start="z"))


def test_after_step_is_not_called_for_a_rejected_step(trainer, data):
    calls, losses = [], iter([1.0, float("nan"), 1.0])

    def loss(logits, labels):
        return cross_entropy(logits, labels) * next(losses)

    clip = Clip(percentile=100, max_norm=5.0, mode="batch", history=9)
    objective = Objective(loss, after_step=lambda model: calls.append(torch.is_grad_enabled()))
    done = trainer.train(data, (stage("abc", clip=clip),), DRAW, objective)
    assert (done.batches, done.rejected, calls) == (2, 1, [False, False])


def test_a_rejected_step_adds_nothing_but_each_of_its_batches(trainer, data):
    """Of three steps of two batches, the second has a gradient that is not finite."""
    losses, before = [], deepcopy(trainer.model)

    def loss(logits, labels):
        value = cross_entropy(logits, labels)
        losses.append((value.item(), len(labels)))
        return value * float("nan") if len(losses) == 4 else value

    def both(backward, batches):
        for batch in batches:
            backward(batch)

    objective = Objective(loss, gradients=both, batches=2)
    clip = Clip(percentile=100, max_norm=5.0, mode="batch", history=9)
    part = stage("abc", epochs=2, lr=1e-9, passes=2, clip=clip)
    done = trainer.train(data, (part,), DRAW, objective)
    taken = losses[:2] + losses[4:]
    assert (done.batches, done.rejected, len(losses)) == (4, 2, 6)
    assert done.samples == sum(size for _, size in taken)
    assert done.loss == pytest.approx(sum(value * size for value, size in taken), rel=1e-5)
    close(trainer.model, before)


def test_any_number_of_inner_steps(trainer, data):
    """What they compute, pFedMe's twin knows; each gradient counts, and all must be declared."""

    def gradients(backward, batches):
        for _ in range(15):
            backward(batches[0])

    objective = Objective(gradients=gradients)
    done = trainer.train(data, (stage("abc", passes=15),), DRAW, objective)
    assert (done.samples, done.batches) == (15 * SIZE, 15 * 3)
    with pytest.raises(ValueError, match=r"^passes = 14: a step computed 15 gradients; declare"):
        trainer.train(data, (stage("abc", passes=14),), DRAW, objective)


def test_inner_values_come_back_when_an_inner_step_fails(trainer):
    before = deepcopy(trainer.model)
    with pytest.raises(ZeroDivisionError), restored(trainer.model.parameters()):
        for parameter in trainer.model.parameters():
            parameter.grad = torch.ones_like(parameter)
        descend(trainer.model.parameters(), 0.5)
        assert (trainer.model.a.bias == before.a.bias - 0.5).all()
        assert trainer.model.a.bias.grad is None
        raise ZeroDivisionError
    close(trainer.model, before)


def test_a_pull_is_the_gradient_of_half_the_squared_distance():
    p, q = nn.Parameter(torch.tensor([1.0, -2.0])), nn.Parameter(torch.tensor([4.0]))
    anchor = [torch.tensor([0.5, 1.0]), torch.tensor([1.0])]
    p.square().sum().backward()  # q has no gradient yet
    pull([p, q], 3.0, anchor)
    close_to = torch.testing.assert_close
    close_to(p.grad, torch.tensor([2.0 + 3.0 * 0.5, -4.0 - 3.0 * 3.0]))
    close_to(q.grad, torch.tensor([9.0]))
    pull([p, q], 0.5)
    close_to(q.grad, torch.tensor([9.0 + 0.5 * 4.0]))


@pytest.mark.parametrize("live", ["named_parameters", "state_dict"])
def test_an_anchor_of_live_parameters_is_where_they_were_when_training_began(trainer, data, live):
    """Moving along with the model, it would pull nowhere: FedProx would be FedAvg."""
    model, stages = trainer.model, (stage("abc", epochs=2, prox_mu=1.0),)
    start = deepcopy(model.state_dict())
    trainer.train(data, stages, DRAW)
    wanted = deepcopy(model)
    model.load_state_dict(start)
    trainer.train(data, stages, DRAW, Objective(anchor=dict(getattr(model, live)())))
    for mine, theirs in zip(model.parameters(), wanted.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_an_anchor_of_numpy_arrays_is_one_line(trainer, data):
    """`take` and `self.kept` give such arrays."""
    anchor = {key: value.detach().numpy() for key, value in trainer.model.named_parameters()}
    with pytest.raises(ValueError, match=r"^anchor has a\.weight as a ndarray: must be a tensor, "):
        trainer.train(data, (stage("a", prox_mu=0.1),), DRAW, Objective(anchor=anchor))


def test_an_anchor_without_what_is_pulled_is_one_line_that_names_it(trainer, data):
    half = {"b.weight": torch.zeros(4, 5), "c.bias": torch.zeros(CLASSES)}
    stages = (stage("bc", prox_mu=0.5), stage("a"))
    with pytest.raises(ValueError, match=r"^anchor has no b\.bias, c\.weight: prox_mu pulls all"):
        trainer.train(data, stages, DRAW, Objective(anchor=half))
    trainer.train(data, (stage("b"), stage("a")), DRAW, Objective(anchor=half))  # nothing is pulled


def test_swapped_values_are_trained_in_the_model_s_place():
    p, beside = nn.Parameter(torch.ones(2)), torch.full((2,), 5.0)
    with pytest.raises(ZeroDivisionError), swapped([p], [beside]):
        assert p.tolist() == [5.0, 5.0] and beside.tolist() == [1.0, 1.0]
        p.grad = torch.ones(2)
        descend([p], 2.0)
        raise ZeroDivisionError
    assert p.tolist() == [1.0, 1.0] and beside.tolist() == [3.0, 3.0]


def test_costs_add_up_and_leave_the_training_s_own_figures():
    done = TrainingStats(loss=3.0, samples=6, batches=2, macs=10, cost_paper=20)
    done.spend(Costs(macs=1, cost_paper=2))
    done.spend(TrainingStats(loss=9.0, samples=9, batches=9, macs=100, cost_paper=200))
    assert done == TrainingStats(loss=3.0, samples=6, batches=2, macs=111, cost_paper=222)
    assert done.mean_loss == 0.5


def test_parameters_that_no_step_would_move_are_refused(trainer, data):
    """As in a copy of the model, some of whose layers are frozen at that moment."""
    frozen = nn.Parameter(torch.zeros(3), requires_grad=False)
    with pytest.raises(ValueError, match=r"^parameters of the objective: one has requires_grad=F"):
        trainer.train(data, (stage(["c"]),), DRAW, Objective(parameters=(frozen,)))


def test_a_step_without_backward_is_refused(trainer, data):
    """It would train, but its loss and all of its costs would be reported as zero."""

    def gradients(backward, batches):
        images, labels = batches[0]
        cross_entropy(trainer.model(images), labels).backward()

    with pytest.raises(ValueError, match=r"^a step did not call backward: without it, neither its"):
        trainer.train(data, (stage("abc"),), DRAW, Objective(gradients=gradients))
