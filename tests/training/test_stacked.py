"""Clients that are trained together, against the trainer and the modules that have one client."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks.stacked import Bench
from fedapps.data.spec import WHOLE, Spec, image_spec
from fedapps.models import build
from fedapps.models.adapters import add_adapters
from fedapps.models.layers import layout_of, run, take
from fedapps.models.norms import use_batch_statistics
from fedapps.training.clipping import Threshold
from fedapps.training.costs import profile
from fedapps.training.draw import Draw
from fedapps.training.objective import Objective
from fedapps.training.plan import Clip, Stage
from fedapps.training.stacked.group import Group, chosen
from fedapps.training.stacked.model import StackedModel, UnstackableError, stack
from fedapps.training.stacked.run import Lesson, NotFiniteError
from fedapps.training.trainer import Trainer

IMAGE, SERIES, TOKENS = image_spec((3, 8, 8)), Spec((7, 3)), Spec((6,), WHOLE, 11)
CLASSES, EACH_TOKEN = Spec((5,)), Spec((6, 11))
LARGE = image_spec((3, 32, 32))
MODELS = {
    "mlp": (SERIES, CLASSES),
    "gru": (SERIES, CLASSES),
    "cnn1d": (SERIES, CLASSES),
    "lstm-char": (TOKENS, EACH_TOKEN),
    "transformer-tiny": (TOKENS, EACH_TOKEN),
    "cnn": (IMAGE, CLASSES),
    "lenet5": (IMAGE, CLASSES),
    "conv4": (IMAGE, CLASSES),
    "mobilenet": (IMAGE, CLASSES),
    "resnet18": (IMAGE, CLASSES),
    "vit-tiny": (IMAGE, CLASSES),
    "vgg-tiny-bn": (LARGE, CLASSES),
}
LONE = {"conv4", "mobilenet", "resnet18", "vgg-tiny-bn"}
TAKEN = {"even": (4, 4, 4), "uneven": (4, 1, 3)}  # places with a sample, of each of three clients


def draw_inputs(spec, count, draws):
    if spec.is_whole:
        return torch.randint(spec.choices, (count, *spec.shape), generator=draws)
    return torch.randn(count, *spec.shape, generator=draws)


def folded(parts, places):
    """Put samples of clients into as many places each; the others repeat the first sample."""
    full = [torch.cat([x, x[:1].expand(places - len(x), *x.shape[1:])]) for x in parts]
    return torch.cat(full)


@pytest.mark.parametrize("sizes", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize("name", MODELS)
def test_outputs_gradients_and_statistics_are_those_of_each_client(name, sizes):
    """In float64, where rounding hides nothing; a loss that weights each sample differently."""
    draws = torch.Generator().manual_seed(0)
    inputs, outputs = MODELS[name]
    model = build(name, inputs, outputs, seed=0).double().to(memory_format=torch.channels_last)
    state = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
    clients = [
        {k: v + 0.05 * torch.rand(v.shape, generator=draws) for k, v in state.items()}
        for _ in sizes
    ]
    parts = [draw_inputs(inputs, size, draws) for size in sizes]
    parts = [x if inputs.is_whole else x.double() for x in parts]
    if name in LONE:  # a BatchNorm would see a single value
        parts = [torch.cat([x, x + 1]) for x in parts]
        sizes = [len(x) for x in parts]
    stacked = StackedModel(model)
    stacked.load({key: stack([own[key] for own in clients]) for key in state})
    stacked.module.train()
    places = max(sizes)
    taken = (torch.arange(places) < torch.tensor(sizes)[:, None]).double()
    stacked.places.taken = None if len({*sizes}) == 1 else taken
    found = stacked.module(folded(parts, places)).unflatten(0, (len(sizes), places))
    weights = torch.rand(found.shape[2:], generator=draws).double()
    ((found.square() * weights).flatten(2).sum(2) * taken).sum().backward()
    for row, (own, x, size) in enumerate(zip(clients, parts, sizes, strict=True)):
        alone = copy.deepcopy(model).train()
        alone.load_state_dict(own, strict=False)
        wanted = alone(x)
        torch.testing.assert_close(found[row, :size], wanted, rtol=1e-6, atol=1e-9)
        (wanted.square() * weights).sum().backward()
        largest = max(float(p.grad.abs().max()) for p in alone.parameters())
        for key, parameter in stacked.module.named_parameters():
            gradient = alone.get_parameter(key).grad
            torch.testing.assert_close(
                parameter.grad[row], gradient, rtol=1e-5, atol=1e-7 * largest
            )
        for key, buffer in alone.named_buffers():
            if buffer.is_floating_point():
                torch.testing.assert_close(stacked.module.get_buffer(key)[row], buffer)


# Whole trainings ----------------------------------------------------------------------------------

SIZES = (23, 9, 16, 1, 17)  # batches of 8: some are short, and the clients' steps end apart
TRAIN = {"epochs": 2, "lr": 0.05}
CASES = {  # model, stages (the layers are a part of the model), what the trainer has
    "mlp": ("mlp", [{"momentum": 0.9, "weight_decay": 0.01}], {}),
    "gru": ("gru", [{"weight_decay": 0.1}], {}),
    "adam": ("mlp", [{"optimizer": "adam"}, {"optimizer": "adamw", "weight_decay": 0.1}], {}),
    "lenet5": ("lenet5", [{"momentum": 0.5, "prox_mu": 0.3}], {}),
    "batch statistics": ("lenet5", [{}], {"statistics": "batch"}),
    "cached prefix": ("lenet5", [{"part": "body"}, {"part": "head"}], {"cache_bytes": 2**20}),
    "prefix of some": ("cnn", [{"part": "head"}, {"part": "body"}], {"cache_bytes": 3000}),
    "no BatchNorm": ("lenet5", [{"part": "rest"}], {}),
    "augmentation": (
        "cnn",
        [{}],
        {"augment": "crop-flip", "border": torch.tensor([0.1, 0.2, 0.3])},
    ),
    "counted": ("mlp", [{"max_steps": 4}, {"batches": 3, "least": 2}], {}),
    "nothing": ("mlp", [{"epochs": 0}, {"part": ""}], {}),
    "adapters": ("vit-tiny", [{}], {"adapters": 2}),
}


def trainer_of(name, statistics="", adapters=0, **options):
    inputs, outputs = MODELS[name]
    model = build(name, inputs, outputs, seed=0)
    if statistics:
        use_batch_statistics(model)
    if adapters:
        add_adapters(model, adapters, 4.0, (), ("fc",), 0)
    model.to(memory_format=torch.channels_last)
    layout = layout_of(model, 1, "shared", False)
    token = 1 if inputs.is_whole else None
    return Trainer(profile(model, layout, inputs.shape, token), 8, **options)


def stages_of(trainer, changes):
    layout = trainer.layout
    parts = {
        "body": layout.body,
        "head": layout.head,
        "": (),
        "rest": layout.without_norms(layout.names),
    }
    for change in changes:
        own = dict(change)
        layers = parts[own.pop("part")] if "part" in own else layout.names
        yield Stage(layers=layers, **(TRAIN | own))


def clients_of(trainer, name, objective=None, thresholds=dict):
    """Return a lesson for each client, all of whose models are different, and what it has alone."""
    draws = torch.Generator().manual_seed(1)
    inputs, outputs = MODELS[name]
    state = trainer.model.state_dict()
    for client, size in enumerate(SIZES):
        entries = {
            key: state[key] * (1 + 0.1 * torch.rand(state[key].shape, generator=draws))
            for key in trainer.layout.keys_of(trainer.layout.names)
        }
        x = draw_inputs(inputs, size, draws)
        y = torch.randint(outputs.shape[-1], (size,), generator=draws)
        draw = Draw(3, "train", 2, client)
        yield Lesson(
            entries, (x, y), draw, objective or Objective(), thresholds(), cache_key=client
        )


def trained_alone(trainer, stages, lesson, thresholds):
    state = trainer.model.state_dict()
    for key, value in lesson.entries.items():
        state[key].copy_(value)
    done = trainer.train(
        lesson.data, stages, lesson.draw, lesson.objective, thresholds, lesson.cache_key
    )
    return {key: state[key].clone() for key in lesson.entries}, done


def check(trainer, stages, lessons, thresholds=dict):
    """Train the same both ways: equal up to rounding, and the costs are exactly the same."""
    alone = []
    for lesson in lessons:
        known = thresholds()
        alone.append((*trained_alone(trainer, stages, lesson, known), known))
    group = Group(trainer, len(lessons), {})
    assert group.problem == ""
    group.train(stages, lessons)
    for lesson, (entries, done, known) in zip(lessons, alone, strict=True):
        for key, value in entries.items():
            torch.testing.assert_close(lesson.entries[key], value, rtol=1e-5, atol=1e-5, msg=key)
        assert lesson.done.loss == pytest.approx(done.loss, rel=1e-5)
        done.loss = lesson.done.loss
        assert lesson.done == done
        for key, threshold in known.items():
            assert [*lesson.thresholds[key].arrived] == pytest.approx(
                [*threshold.arrived], rel=1e-4
            )


@pytest.mark.parametrize("case", CASES)
def test_a_group_trains_as_each_client_alone(case):
    name, changes, options = CASES[case]
    trainer = trainer_of(name, **options)
    stages = tuple(stages_of(trainer, changes))
    check(trainer, stages, [*clients_of(trainer, name)])


@pytest.mark.parametrize("clip", [
    Clip(percentile=60.0, max_norm=None, mode="batch", history=5),
    Clip(percentile=100.0, max_norm=0.3, mode="batch", history=5),
])  # fmt: skip
def test_each_client_clips_at_its_own_norms(clip):
    trainer = trainer_of("lenet5")
    stages = tuple(stages_of(trainer, [{"clip": clip}, {"clip": clip, "part": "head"}]))

    def thresholds():
        return {(stage.layers, clip): Threshold(clip, [0.2, 0.4]) for stage in stages}

    check(trainer, stages, [*clients_of(trainer, "lenet5", thresholds=thresholds)], thresholds)


def test_a_loss_of_ones_own_and_an_anchor():
    """The loss gets each client's batch without the places that are filled up."""
    trainer = trainer_of("mlp")
    state = trainer.model.state_dict()
    anchor = {key: torch.ones_like(value) for key, value in state.items()}

    def loss(outputs, targets):
        return (outputs.square().sum() + outputs.gather(1, targets[:, None]).sum()) / 50

    stages = tuple(stages_of(trainer, [{"prox_mu": 0.5}]))
    check(trainer, stages, [*clients_of(trainer, "mlp", Objective(loss, anchor=anchor))])


def test_an_anchor_without_what_is_pulled_is_refused_as_alone():
    trainer = trainer_of("mlp")
    key, *others = trainer.layout.keys_of(trainer.layout.names)
    objective = Objective(anchor={other: trainer.model.state_dict()[other] for other in others})
    stages = tuple(stages_of(trainer, [{"prox_mu": 0.5}]))
    lessons = [*clients_of(trainer, "mlp", objective)]
    with pytest.raises(ValueError, match=f"^anchor has no {key}: "):
        Group(trainer, len(lessons), {}).train(stages, lessons)


@pytest.mark.parametrize(("loss", "error", "told"), [
    (lambda model, x: x.square().mean() + next(model.parameters()).square().sum(),
     NotFiniteError, ""),
    (lambda model, x: (x + 1e-6 * torch.rand_like(x)).square().mean(),
     UnstackableError, "draws random numbers"),
], ids=["reads the model", "draws"])  # fmt: skip
def test_a_loss_that_is_not_trusted_is_left_to_each_client_alone(loss, error, told):
    """A group has no seed of its own: its numbers would be those of whatever came before."""
    trainer = trainer_of("mlp")
    objective = Objective(lambda outputs, targets: loss(trainer.model, outputs))
    lessons = [*clients_of(trainer, "mlp", objective)]
    before = [{key: value.clone() for key, value in own.entries.items()} for own in lessons]
    with pytest.raises(error, match=told):
        Group(trainer, 5, {}).train(tuple(stages_of(trainer, [{}])), lessons)
    for lesson, entries in zip(lessons, before, strict=True):
        assert all(torch.equal(lesson.entries[key], value) for key, value in entries.items())


def test_outputs_are_those_of_each_client():
    trainer = trainer_of("lenet5")
    lessons = [*clients_of(trainer, "lenet5")]
    inputs = [lesson.data[0] for lesson in lessons]
    inputs[0] = torch.cat([inputs[0]] * 20)  # more than one pass
    found = Group(trainer, 5, {}).outputs([own.entries for own in lessons], inputs)
    for own, x, outputs in zip(lessons, inputs, found, strict=True):
        alone = copy.deepcopy(trainer.model).eval()
        alone.load_state_dict(own.entries, strict=False)
        torch.testing.assert_close(outputs, run(alone, x, trainer.layout.names))


# What cannot be stacked ---------------------------------------------------------------------------


class Mixes(nn.Module):
    """Subtracts the mean of the batch."""

    def forward(self, x):
        return x - x.mean(0)


class OddWeights(nn.Module):
    """A module of one's own with weights: it runs by vmap."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))

    def forward(self, x):
        return (x * self.scale).cumsum(1)


class Around(OddWeights):
    """Has weights and a BatchNorm."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)


class OddGradient(nn.Module):
    """Its outputs mix nothing, but the gradient of each sample depends on the batch."""

    def forward(self, x):
        if x.requires_grad:
            x.register_hook(lambda gradient: gradient / gradient.norm())
        return x


@pytest.mark.parametrize(("middle", "problem"), [
    (OddWeights(), ""),
    (OddGradient(), "gradients"),
    (nn.PReLU(), ""),
    (nn.Conv1d(4, 4, 1, padding_mode="circular"), "cannot"),
    (Mixes(), "outputs for a sample depend on other samples"),
    (nn.Dropout(0.5), "as dropout does"),
    (nn.RReLU(), "draws random numbers"),
    (Around(), "BatchNorm"),
    (nn.BatchNorm1d(4, momentum=None), "momentum"),
])  # fmt: skip
def test_a_model_says_why_it_cannot_be_stacked(middle, problem):
    model = nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 2))
    if problem == "cannot":
        model = nn.Sequential(
            nn.Linear(3, 4), nn.Unflatten(1, (4, 1)), middle, nn.Flatten(), nn.Linear(4, 2)
        )
        problem = ""
    layout = layout_of(model, 1, "shared", False)
    trainer = Trainer(profile(model, layout, (3,)), 4)
    initial = take(model, layout.keys_of(layout.names))
    next(model.parameters()).data[0] = float("nan")  # training has diverged before
    found = Group(trainer, 2, initial).problem
    assert problem in found and bool(found) == bool(problem)


@pytest.mark.parametrize("hook", ["register_hook", "register_post_accumulate_grad_hook"])
def test_a_model_whose_parameters_have_hooks_is_not_stacked(hook):
    """A copy has none of them."""
    trainer = trainer_of("mlp")
    handle = getattr(next(trainer.model.parameters()), hook)(lambda found: None)
    assert "hook" in Group(trainer, 2, {}).problem
    handle.remove()
    assert Group(trainer, 2, {}).problem == ""


@pytest.mark.parametrize(("option", "problem"), [
    ({}, ""),
    ({"padding_idx": 5}, "Embedding with padding_idx"),
    ({"scale_grad_by_freq": True}, "or scale_grad_by_freq"),
])  # fmt: skip
def test_embeddings_with_gradients_of_their_own_kind_are_not_stacked(option, problem):
    """The check draws neither token 5 nor batches of different sizes."""
    model = nn.Sequential(nn.Embedding(11, 3, **option), nn.Flatten(), nn.Linear(18, 5))
    trainer = Trainer(profile(model, layout_of(model, 1, "shared", False), (6,), 1), 8)
    found = Group(trainer, 2, {}).problem
    assert problem in found and bool(found) == bool(problem)


def test_a_head_of_zeros_hides_nothing():
    """Neither at the begin, when all outputs are equal, nor after a training."""
    found = set()
    for trained in (False, True):
        model = nn.Sequential(nn.Sequential(nn.Linear(3, 4), Mixes()), nn.Linear(4, 2))
        for value in model[1].parameters():
            value.data.zero_()
        layout = layout_of(model, 1, "shared", False)
        initial = take(model, layout.keys_of(layout.names))
        if trained:
            model[1].weight.data.normal_()
        found.add(Group(Trainer(profile(model, layout, (3,)), 4), 2, initial).problem)
    assert len(found) == 1 and "depend on other samples" in found.pop()


# Speed --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gru", "lenet5"])
def test_a_clients_step_needs_a_tenth_of_the_kernels(name):
    """Counted by PyTorch's dispatcher, for 20 clients of 50 samples in batches of 10."""
    bench = Bench(name, torch.device("cpu"), 20)
    bench.calls(1), bench.calls(20)  # what is counted or copied once
    assert bench.calls(1) >= 10 * bench.calls(20)


def test_auto_takes_groups_of_small_models_only():
    assert chosen(trainer_of("mlp")) > 1
    assert chosen(trainer_of("vgg-tiny-bn")) == 0


@pytest.mark.parametrize(("weights", "size"), [
    (878_538, 50), (2_000_000, 50), (2_500_000, 40), (5_000_000, 20), (11_000_000, 0),
])  # fmt: skip
def test_auto_takes_groups_on_a_gpu_by_the_weights_of_the_model(weights, size):
    there = SimpleNamespace(parameters=lambda: iter([SimpleNamespace(is_cuda=True)]))
    layout = SimpleNamespace(names=("head",), count=lambda names: weights)
    assert chosen(SimpleNamespace(model=there, layout=layout)) == size
