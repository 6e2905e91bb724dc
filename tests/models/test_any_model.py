"""A model need not be an `nn.Sequential`: its layers are cut by names."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.functional import cross_entropy

from fedapps import models
from fedapps.core import registry
from fedapps.core.config import parse, read
from fedapps.core.errors import RunError
from fedapps.engine.rounds import Rounds
from fedapps.method import rehearse
from fedapps.models.blocks import of_images
from fedapps.models.layers import layout_of, run
from fedapps.models.modes import eval_mode, freeze_all_but
from fedapps.split.strategy import SplitStrategy
from fedapps.training.costs import profile
from fedapps.training.draw import Draw
from fedapps.training.objective import Objective
from fedapps.training.plan import Stage
from fedapps.training.stacked.group import Group
from fedapps.training.stacked.run import Lesson
from fedapps.training.trainer import Trainer
from fedapps.training.workspace import Workspace
from tests.support.methods import each_method, moves


class Branches(nn.Module):
    """Two branches that are added; a scale beside them; dropout between, which has no state."""

    def __init__(self):
        super().__init__()
        self.left, self.right = nn.Linear(6, 5), nn.Linear(6, 5)
        self.drop = nn.Dropout(0.5)
        self.scale = nn.Parameter(torch.ones(5))
        self.norm = nn.BatchNorm1d(5)
        self.fc = nn.Linear(5, 3)

    def forward(self, x):
        return self.fc(self.norm(self.drop(self.left(x) + self.right(x)) * self.scale))


def layout(model, head=1):
    return layout_of(model, head, "shared", False)


def test_children_are_the_layers():
    found = layout(Branches())
    assert found.names == ("scale", "left", "right", "norm", "fc")  # PyTorch's own order
    assert found.keys["scale"] == ("scale",)
    assert found.head == ("fc",)
    assert not found.can_be_cut
    assert found.modules["drop"] == {"right"}  # it comes after it


def test_a_model_declares_its_layers():
    model = Branches()
    model.layers = {"arms": ("left", "right"), "middle": ("scale", "norm"), "fc": "fc"}
    found = layout(model)
    assert found.names == ("arms", "middle", "fc")
    assert found.keys["arms"] == ("left.weight", "left.bias", "right.weight", "right.bias")
    assert found.norms_of(found.names) == ("middle:norms",)
    assert found.keys_of(("middle:rest",)) == ("scale",)


class Constant(nn.Module):
    """Divides by constants, which are a buffer."""

    def __init__(self, size):
        super().__init__()
        self.register_buffer("by", torch.linspace(1, 2, size))

    def forward(self, x):
        return x / self.by


def constants():
    """Layers a and b, with what has only buffers at the begin, between them and at the end."""
    return nn.Sequential(OrderedDict(
        first=Constant(6), flat=nn.Flatten(), a=nn.Linear(6, 5), relu=nn.ReLU(),
        norm=nn.BatchNorm1d(5, affine=False), b=nn.Linear(5, 3), last=Constant(3),
    ))  # fmt: skip


def test_children_with_buffers_alone_belong_to_the_layer_before_them():
    model = constants()
    found = layout(model)
    assert found.names == ("a", "b") and found.head == ("b",)
    statistics = ("norm.running_mean", "norm.running_var")
    assert found.keys["a"] == ("first.by", "a.weight", "a.bias", *statistics)
    assert found.keys["b"] == ("b.weight", "b.bias", "last.by")
    x = torch.rand(4, 6)
    assert torch.equal(run(model.eval(), run(model, x, ("a",)), ("b",)), model(x))
    model.layers = {"a": ("first", "a", "norm"), "b": "b", "last": "last"}
    with pytest.raises(RunError, match="head-layers = 1: last has no parameters to train"):
        layout(model)


def test_a_stage_with_nothing_to_train_takes_no_step():
    """The BatchNorms of `constants`, which have statistics alone; of a client and of a group."""
    model = constants()
    found = layout(model)
    trainer = Trainer(profile(model, found, (6,)), batch_size=4)
    norms, keys = found.norms_of(found.names), found.keys_of(found.names)
    stages = [Stage(layers=layers, epochs=1, lr=0.1) for layers in (norms, ("b",))]
    data, draw = (torch.randn(8, 6), torch.arange(8) % 3), Draw(0, "train", 1, 0)
    before = {key: model.state_dict()[key].clone() for key in keys}
    copies = [{key: value.clone() for key, value in before.items()} for _ in range(2)]
    lessons = [Lesson(copy, data, draw, Objective(), {}) for copy in copies]
    Group(trainer, 2, {}).train(stages, lessons)
    model.load_state_dict(before, strict=False)
    done = trainer.train(data, tuple(stages), draw)
    assert norms == ("a:norms",) and done.batches == lessons[0].done.batches == 2
    for key in keys:
        now = model.state_dict()[key]
        assert torch.equal(now, before[key]) == (key not in ("b.weight", "b.bias"))
        torch.testing.assert_close(lessons[1].entries[key], now)


@pytest.mark.parametrize(("layers", "message"), [
    ({"a": ("left", "right"), "fc": "fc"}, "scale is in no layer"),
    ({"a": "*", "fc": "fc"}, "fc.weight is in the layers a and fc"),
    ({"a": "*", "fc": "fd"}, r"layer fc = \('fd',\): nothing in the model matches"),
    ({"a-b": "*"}, 'layer "a-b": must be a word'),
])  # fmt: skip
def test_layers_that_do_not_fit_the_model_are_refused(layers, message):
    model = Branches()
    model.layers = layers
    with pytest.raises(RunError, match=message):
        layout(model)


def test_a_tensor_that_two_layers_share_is_refused_and_one_within_a_layer_travels_once():
    model = nn.Module()
    model.embed, model.out = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    model.fc = nn.Linear(4, 4)
    model.out.weight = model.embed.weight
    with pytest.raises(RunError, match=r"embed and out share the tensor out\.weight"):
        layout(model)
    model.layers = {"ends": ("embed", "out"), "fc": "fc"}
    assert layout(model).keys["ends"] == ("embed.weight",)


def test_frozen_layers_of_such_a_model_neither_move_nor_count():
    """Against plain PyTorch, with the frozen layers in eval mode."""
    torch.manual_seed(0)
    model, free = Branches(), Branches()
    free.load_state_dict(model.state_dict())
    found = layout(model)
    trainer = Trainer(profile(model, found, (6,)), 4, cache_bytes=2**20)
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    stage = Stage(layers=("fc",), epochs=2, lr=0.1)
    assert trainer.cached_prefix(("fc",), 8) == ()
    draw = Draw(0, "train", 1, 0)
    done = trainer.train((x, y), (stage,), draw)
    free.eval()
    for epoch in range(2):
        for chosen in draw.order(epoch, 8).split(4):
            loss = cross_entropy(free(x[chosen]), y[chosen])
            gradients = torch.autograd.grad(loss, [*free.fc.parameters()])
            for p, g in zip(free.fc.parameters(), gradients, strict=True):
                p.data -= 0.1 * g
    for key, value in model.state_dict().items():
        torch.testing.assert_close(value, free.state_dict()[key])
    # forward 30 + 30 + 15, and once more for the weight of fc; no gradient passes further down
    assert done.macs == 2 * 8 * (75 + 15)


def test_a_part_of_the_layers_cannot_run_alone():
    line = "Branches: only an nn.Sequential can run some of its layer"
    with pytest.raises(RunError, match=line):
        run(Branches(), torch.zeros(2, 6), ("left",))


def test_macs_of_recurrent_layers_and_attention_by_hand():
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.gru = nn.GRU(3, 4, batch_first=True)
            self.mix = nn.MultiheadAttention(4, 2, batch_first=True)
            self.fc = nn.Linear(4, 2)

        def forward(self, x):
            x, _ = self.gru(x)
            x, _ = self.mix(x, x, x)
            return self.fc(x[:, -1])

    model = Mixed()
    found = layout(model)
    gru, mix = 5 * (12 * 3 + 12 * 4), 4 * 5 * 16 + 2 * 25 * 4
    facts = profile(model, found, (5, 3))
    assert facts.forward_macs(found.names) == gru + mix + 8
    assert facts.step_macs(("fc",), "gru") == gru + mix + 2 * 8
    assert facts.step_macs(found.names, "gru") == 2 * gru + 3 * mix + 3 * 8
    assert np.prod(found.shapes["gru.weight_ih_l0"]) == 36


@pytest.fixture
def whole_cnn(monkeypatch):
    """The model "whole": a small network that is no Sequential, with BatchNorm."""

    class Whole(nn.Module):
        def __init__(self, classes):
            super().__init__()
            self.stem = nn.Sequential(nn.Flatten(), nn.Linear(64, 12))
            self.mid = nn.Linear(12, 12)
            self.norm = nn.BatchNorm1d(12)
            self.fc = nn.Linear(12, classes)

        def forward(self, x):
            x = torch.relu(self.stem(x))
            return self.fc(x + torch.relu(self.norm(self.mid(x))))

    spec = of_images(lambda shape, classes: Whole(classes))
    monkeypatch.setitem(models.MODELS, "whole", spec)


CONFIG = (
    'model="whole" num-clients=3 fraction-train=1.0 num-rounds=2 min-samples=10 batch-size=32 '
    'local-epochs=2 finetune-epochs=1 device="cpu"'
)


@pytest.mark.parametrize("method", each_method())
def test_every_method_trains_such_a_model_or_says_why_not(method, whole_cnn, tmp_path, data_root):
    options = [CONFIG, f'strategy="{method}" runs-dir="{tmp_path}" data-root="{data_root}"']
    settings = read(parse(options))
    strategy_class = registry.strategy_class(method)
    if strategy_class.needs_cut or issubclass(strategy_class, SplitStrategy):
        why = "(runs single layers|cuts the model)"
        with pytest.raises(RunError, match=f'model = "whole": {method} {why}'):
            Rounds(strategy_class(Workspace(settings)))
        return
    if method == "centralized":
        settings = read(parse([*options, 'centralized.trainable="full"']))
    Rounds(strategy_class(Workspace(settings)))
    made = rehearse(strategy_class, registry.client_class(method), settings)
    assert moves(made)
    figures = made.evaluate(client=0)
    assert len(figures["personalized_right"]) == 10
    assert "without_head" not in figures


@pytest.mark.parametrize(("method", "more"), [
    ("fedrod", "head-layers=2"), ("fedfc", 'fedfc.cuts="auto"'),
])  # fmt: skip
def test_copies_of_layers_have_what_has_no_parameters(
    method, more, monkeypatch, tmp_path, data_root
):
    """An activation between two layers of a Sequential is a child of its own, without a key."""

    def loose(shape, classes):
        one, two, three = nn.Linear(64, 12), nn.Linear(12, 12), nn.Linear(12, classes)
        return nn.Sequential(nn.Flatten(), one, nn.ReLU(), two, nn.ReLU(), three)

    monkeypatch.setitem(models.MODELS, "loose", of_images(loose))
    options = [CONFIG.replace("whole", "loose"), f'strategy="{method}" runs-dir="{tmp_path}"', more]
    space = Workspace(read(parse([*options, f'data-root="{data_root}"'])))
    client = registry.client_class(method)(space, 0, {})
    if method == "fedfc":
        seconds = client.answer("layer-seconds")
        assert len(seconds) == 3 and min(seconds) > 0
        return
    features = run(client.model, client.train_data[0], client.layout.body)
    generic = run(client.model, features, client.layout.head)
    assert torch.equal(client.personal_head(features), generic)
    client.personal_head.requires_grad_(requires_grad=False)[0].weight.zero_()
    assert torch.equal(run(client.model, features, client.layout.head), generic)


def test_the_figure_without_a_head_needs_a_body_that_runs_alone(whole_cnn):
    settings = read(parse([CONFIG, "score-without-head=true"]))
    with pytest.raises(RunError, match="score-without-head = true: needs the body"):
        Rounds(registry.strategy_class("fedavg")(Workspace(settings)))


class Dropping(nn.LSTM):
    """Somebody's own recurrent layer, which drops weights as AWD-LSTM does."""

    def forward(self, x):
        """Return the outputs [b, steps, units]."""
        weight = functional.dropout(self.weight_hh_l0, 0.5, self.training)
        return functional.linear(x, weight)


def test_recurrent_layers_of_ones_own_drop_nothing_while_they_are_frozen():
    own, x = Dropping(4, 4), torch.ones(9, 4)
    model = nn.Sequential(OrderedDict(own=own, head=nn.Linear(4, 2)))
    found = layout_of(model, 1, "shared", False)
    freeze_all_but(model, found, ("head",))
    assert torch.equal(own(x), functional.linear(x, own.weight_hh_l0))


@pytest.mark.parametrize("cls", [nn.GRU, nn.LSTM, nn.RNN])
def test_recurrent_layers_without_dropout_are_never_in_eval_mode(cls):
    """They compute the same in both, and cuDNN has their gradients in training mode only."""
    model = nn.ModuleDict({"plain": cls(3, 4, 2), "drop": cls(4, 4, 2, dropout=0.5)})
    eval_mode(model)
    assert [model["plain"].training, model["drop"].training] == [True, False]
    found, x = [], torch.randn(5, 2, 3)
    for mode in (True, False):
        inputs = x.clone().requires_grad_()
        outputs, _ = model["plain"].train(mode)(inputs)
        weights = [*model["plain"].parameters()]
        found.append([outputs, *torch.autograd.grad(outputs.square().sum(), [inputs, *weights])])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
