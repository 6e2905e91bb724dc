"""Layers and slices: what belongs to which layer, what travels, and what never does."""

from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedapps import models
from fedapps.core import registry
from fedapps.core.errors import RunError
from fedapps.models import build, declare_part
from fedapps.models.blocks import chain, of_images
from fedapps.models.grouping import copied
from fedapps.models.layers import layout_of, put, run, take
from fedapps.models.norms import use_batch_statistics

NAMES = ["cnn", "lenet5", "conv4", "mobilenet", "resnet18"]
STATISTICS = ("running_mean", "running_var")


def misnamed():
    """A BatchNorm called `conv` in a layer called `fc`, a linear called `bn`, another of each."""
    return chain(
        fc=chain(bn=nn.Linear(4, 6), conv=nn.BatchNorm1d(6)),
        norm=nn.BatchNorm1d(6),
        bn=nn.Linear(6, 3),
    )


@cache
def make(name, bn_stats="shared", shape=(3, 32, 32)):
    """A model to look at: it is made once and no test changes it."""
    model = misnamed() if name == "misnamed" else build(name, shape, 10, seed=0)
    if bn_stats == "batch":
        use_batch_statistics(model)
    return model


def expected_keys(model, layer, bn_stats="shared", bn_local=False):
    """The keys of a layer that travel, by a walk over its modules."""
    keys = []
    for path, module in model.get_submodule(layer).named_modules(prefix=layer):
        norm = isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
        own = [f"{path}.{key}" for key, _ in module.named_parameters(recurse=False)]
        keys += [] if norm and bn_local else own
        if norm and bn_stats == "shared" and not bn_local:
            keys += [f"{path}.{key}" for key in STATISTICS]
    return keys


@st.composite
def cases(draw):
    name = draw(st.sampled_from([*NAMES, "misnamed"]))
    bn_stats = draw(st.sampled_from(["shared", "local", "batch"]))
    model = make(name, bn_stats)
    names = [layer for layer, _ in model.named_children()]
    chosen = draw(st.lists(st.sampled_from(names), unique=True))
    return model, bn_stats, draw(st.booleans()), chosen


@settings(max_examples=60, deadline=None)
@given(cases())
def test_shared_and_personal_are_what_a_walk_over_the_modules_finds(case):
    model, bn_stats, bn_local, chosen = case
    layout = layout_of(model, 1, bn_stats, bn_local)
    in_order = [name for name, _ in model.named_children() if name in chosen]
    expected = {key for name in in_order for key in expected_keys(model, name, bn_stats, bn_local)}
    position = {key: i for i, key in enumerate(model.state_dict())}

    shared = layout.shared(tuple(chosen))
    assert set(shared) == expected
    assert list(shared) == sorted(shared, key=position.get)  # model order, each key once

    personal = layout.personal(tuple(chosen))
    floats = {k for k, v in model.state_dict().items() if v.is_floating_point()}
    assert len(personal) + len(shared) == len(floats)
    assert set(personal) == floats - expected


@settings(max_examples=40, deadline=None)
@given(cases())
def test_slices_stand_in_model_order(case):
    model, bn_stats, bn_local, chosen = case
    layout = layout_of(model, 1, bn_stats, bn_local)
    in_order = tuple(name for name, _ in model.named_children() if name in chosen)
    assert layout.slice(chosen) == layout.slice(chosen[::-1]) == in_order
    layers = [model.get_submodule(name) for name in in_order]
    assert layout.count(chosen) == sum(p.numel() for m in layers for p in m.parameters())
    assert layout.keys_of(tuple(chosen)) == tuple(
        f"{name}.{key}"
        for name, module in zip(in_order, layers, strict=True)
        for key, value in module.state_dict().items()
        if value.is_floating_point()
    )


@settings(max_examples=40, deadline=None)
@given(cases())
def test_prefix_ends_at_the_first_trained_layer(case):
    model, bn_stats, bn_local, chosen = case
    names = [name for name, _ in model.named_children()]
    first = min((names.index(name) for name in chosen), default=len(names))
    layout = layout_of(model, 1, bn_stats, bn_local)
    assert layout.prefix(tuple(chosen)) == tuple(names[:first])


@pytest.mark.parametrize("name", NAMES)
def test_integer_counters_are_in_no_list(name):
    model = make(name)
    layout = layout_of(model, 1, "shared", False)
    counters = {k for k, v in model.state_dict().items() if not v.is_floating_point()}
    norms = sum(isinstance(m, nn.BatchNorm2d) for m in model.modules())
    assert len(counters) == norms  # there is something to leave out
    listed = {*layout.shapes, *layout.keys_of(layout.names), *layout.personal(()), *layout.stays}
    assert not counters & listed


def test_unknown_layer_is_named_with_the_layers_there_are():
    layout = layout_of(make("cnn"), 1, "shared", False)
    for ask in (layout.slice, layout.keys_of, layout.shared, layout.personal, layout.count):
        with pytest.raises(RunError, match=r'layer "fc3".* conv1, conv2, fc1, fc2') as error:
            ask(("conv1", "fc3"))
        assert "\n" not in str(error.value)


def test_a_text_in_place_of_a_slice_is_no_list_of_letters():
    layout = layout_of(make("cnn"), 1, "shared", False)
    line = r'^"conv1" is not a slice: write \("conv1",\), with a comma$'
    with pytest.raises(RunError, match=line):
        layout.keys_of(("conv1"))  # noqa: UP034, the slip


def test_head_is_the_last_layers_and_leaves_a_body():
    for head_layers, head in ((1, ["fc2"]), (3, ["conv2", "fc1", "fc2"])):
        layout = layout_of(make("cnn"), head_layers, "shared", False)
        assert list(layout.head) == head
        assert layout.body + layout.head == ("conv1", "conv2", "fc1", "fc2")
    for head_layers in (4, 5):
        with pytest.raises(RunError, match=f"head-layers = {head_layers}: the model has 4 layers"):
            layout_of(make("cnn"), head_layers, "shared", False)


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(["cnn", "lenet5", "conv4"]), data=st.data())
def test_put_undoes_take_bitwise(name, data):
    source, target = build(name, (1, 8, 8), 5, seed=1), build(name, (1, 8, 8), 5, seed=2)
    draws = np.random.default_rng(3)
    for value in source.state_dict().values():  # running statistics too
        if value.is_floating_point():
            value.copy_(torch.from_numpy(draws.normal(size=value.shape)))
    layout = layout_of(target, 1, "shared", False)
    chosen = tuple(data.draw(st.lists(st.sampled_from(layout.names), unique=True)))
    before = {key: value.clone() for key, value in target.state_dict().items()}
    storage = {key: value.data_ptr() for key, value in target.state_dict().items()}

    arrays = take(source, layout.shared(chosen))
    put(target, arrays)

    assert {array.dtype for array in arrays.values()} <= {np.dtype("float32")}
    wanted = source.state_dict()
    for key, value in target.state_dict().items():
        moved = value.is_floating_point() and key.partition(".")[0] in chosen
        assert torch.equal(value, wanted[key] if moved else before[key])
        assert value.data_ptr() == storage[key]  # in place: optimizers and caches see it


def test_take_copies():
    model = build("lenet5", (1, 8, 8), 5, seed=1)
    arrays = take(model, model.state_dict())
    before = {key: array.copy() for key, array in arrays.items()}
    for value in model.state_dict().values():
        value.add_(1)
    assert all(np.array_equal(arrays[key], before[key]) for key in before)
    arrays["conv1.conv.weight"][:] = 7
    assert not (model.conv1.conv.weight == 7).any()


@pytest.mark.parametrize("shape", [(5, 4), (4,), (1, 4), (5, 1), (20,), (), (1, 5, 4)], ids=str)
def test_put_refuses_another_shape_even_one_that_broadcasts(shape):
    model = chain(fc1=nn.Linear(3, 5), fc2=nn.Linear(5, 4))  # fc2.weight is (4, 5)
    before = model.fc2.weight.detach().clone()
    with pytest.raises(RunError) as error:
        put(model, {"fc2.weight": np.ones(shape, np.float32)})
    assert "fc2.weight" in str(error.value)
    assert str(shape) in str(error.value) and "(4, 5)" in str(error.value)
    assert torch.equal(model.fc2.weight, before)


def test_a_module_that_comes_twice_is_computed_twice():
    """As with one `nn.ReLU()` for all layers; `named_children` has it once."""
    act = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 8), act, nn.Linear(8, 8), act, nn.Linear(8, 3))
    x, names = torch.randn(6, 4), layout_of(model, 1, "shared", False).names
    assert names == ("0", "2", "4")
    found = run(model, x, names)
    torch.testing.assert_close(found, model(x), rtol=0, atol=0)
    torch.testing.assert_close(copied(model, names)(x), model(x), rtol=0, atol=0)
    torch.testing.assert_close(
        run(model, run(model, x, names[:2]), names[2:]), found, rtol=0, atol=0
    )


@pytest.mark.parametrize("training", [True, False])
def test_batch_statistics_serve_in_evaluation_too(training):
    model = misnamed().train(training)
    with torch.no_grad():
        model.norm.weight.uniform_(1, 2)
        model.norm.running_mean.fill_(5)
    use_batch_statistics(model)
    x = torch.randn(7, 6, generator=torch.Generator().manual_seed(0))
    wanted = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt() * model.norm.weight
    assert torch.allclose(model.norm(x), wanted, atol=1e-6)
    assert not any(key.endswith(STATISTICS) for key in model.state_dict())


class Adapted(nn.Module):
    """linear(x) + up(down(x)): a low-rank adapter, and a BatchNorm within it."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)
        self.lora = declare_part(
            chain(down=nn.Linear(inputs, 2), bn=nn.BatchNorm1d(2), up=nn.Linear(2, outputs)),
            "adapter",
        )

    def forward(self, x):
        return self.linear(x) + self.lora(x)


def adapted(shape, classes):
    """Three layers: with an adapter and BatchNorms, with a BatchNorm alone, with neither."""
    pixels = int(np.prod(shape))
    return chain(
        first=chain(flatten=nn.Flatten(), mix=Adapted(pixels, 6), norm=nn.BatchNorm1d(6)),
        second=chain(fc=nn.Linear(6, 6), norm=nn.BatchNorm1d(6)),
        head=nn.Linear(6, classes),
    )


def adapted_layout(bn_stats="shared", bn_local=False):
    return layout_of(adapted((1, 8, 8), 3), 1, bn_stats, bn_local)


ADAPTER = {f"first.mix.lora.{m}.{k}" for m in ("down", "up") for k in ("weight", "bias")}


def test_a_model_may_declare_a_part_beside_its_batchnorms():
    layout = adapted_layout()
    assert layout.part_of(layout.names, "adapter") == ("first:adapter",)
    assert set(layout.keys_of(("first:adapter",))) == ADAPTER
    assert layout.norms_of(layout.names) == ("first:norms", "second:norms")
    inner = {f"first.mix.lora.bn.{k}" for k in ("weight", "bias", *STATISTICS)}
    outer = {f"first.norm.{k}" for k in ("weight", "bias", *STATISTICS)}
    assert set(layout.keys_of(("first:norms",))) == inner | outer  # in an adapter they are norms
    assert layout.keys_of(("first:rest",)) == ("first.mix.linear.weight", "first.mix.linear.bias")
    assert layout.keys_of(("head:norms", "head:adapter", "second:adapter")) == ()


def test_a_slice_without_one_part_keeps_the_others():
    layout = adapted_layout()
    no_norms = ("first:adapter", "first:rest", "second:rest", "head")
    assert layout.without_norms(layout.names) == no_norms
    no_adapter = layout.without(layout.names, "adapter")
    assert no_adapter == ("first:norms", "first:rest", "second", "head")
    assert layout.without(no_norms, "adapter") == ("first:rest", "second:rest", "head")
    assert layout.without_norms(no_norms) == no_norms
    assert layout.part_of(no_norms, "adapter") == ("first:adapter",)
    assert layout.norms_of(no_norms) == ()
    assert layout.without(("first:adapter",), "adapter") == ()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(["first", "second", "head"]), unique=True), st.data())
def test_parts_of_a_slice_hold_each_of_its_keys_once(chosen, data):
    layout = adapted_layout()
    part = data.draw(st.sampled_from(["norms", "adapter"]))
    apart = (layout.part_of(tuple(chosen), part), layout.without(tuple(chosen), part))
    keys = [key for layers in apart for key in layout.keys_of(layers)]
    assert sorted(keys) == sorted(layout.keys_of(tuple(chosen)))
    assert layout.count(apart[0]) + layout.count(apart[1]) == layout.count(chosen)


def test_batchnorm_settings_are_about_batchnorms_and_no_other_part():
    layout = adapted_layout(bn_local=True)
    assert layout.stays == layout.norms
    assert set(layout.shared(("first",))) == ADAPTER | set(layout.keys_of(("first:rest",)))
    statistics = adapted_layout(bn_stats="local").stays
    assert {key.rpartition(".")[2] for key in statistics} == set(STATISTICS)


def test_a_layer_of_which_a_part_is_trained_is_in_no_frozen_prefix():
    layout = adapted_layout()
    assert layout.prefix(("second:norms",)) == ("first",)
    assert layout.prefix(("first:adapter", "head")) == ()


def test_an_unknown_part_is_an_unknown_layer():
    for item in ("first:lora", "second:", "first:mix"):
        with pytest.raises(RunError, match=f'layer "{item}": the model has first, second, head'):
            adapted_layout().slice((item,))
    with pytest.raises(RunError, match=r'^fedx.part = "first:norms": layer "first\?norms": the '):
        adapted_layout().named("first:norms", "fedx.part")  # run-config names whole layers


@pytest.mark.parametrize("part", ["", "rest", "a:b", "a b", "1"])
def test_a_part_that_no_slice_could_name_is_refused(part):
    with pytest.raises(ValueError, match=f'^part "{part}": must be a word of letters'):
        declare_part(nn.Linear(1, 1), part)


def test_an_adapter_travels_alone(serial_run, fits, monkeypatch, tiny_npz, read_model, read_rounds):
    """All is trained; the adapter is exchanged and averaged, the clients keep everything else."""

    def plan(self, round_, client):
        adapters = self.layout.part_of(self.layout.names, "adapter")
        return self.exchange(round_, adapters, self.stage(round_, self.layout.names))

    monkeypatch.setitem(models.MODELS, "adapted", of_images(adapted))
    monkeypatch.setattr(registry.strategy_class("fedavg"), "plan", plan)
    folder = serial_run(
        tiny_npz, 'strategy="fedavg" model="adapted" num-clients=3 num-rounds=1 fraction-train=1.0'
    )
    assert len(fits) == 3
    initial = fits[0][0].workspace.initial
    for _, state, _, update in fits:
        assert set(update.arrays) == ADAPTER
        kept = {key.removeprefix("model/") for key in state if key.startswith("model/")}
        assert kept == set(initial) - ADAPTER
    weights = [update.num_examples for *_, update in fits]
    for key, value in read_model(folder).items():
        if key in ADAPTER:
            sent = [update.arrays[key].astype("f8") for *_, update in fits]
            np.testing.assert_allclose(value, np.average(sent, 0, weights), rtol=1e-6, atol=1e-7)
        else:
            assert np.array_equal(value, initial[key])
    floats = 2 * (64 + 1) + 6 * (2 + 1)
    assert read_rounds(folder)[0]["bytes_up"] == 3 * 4 * floats
