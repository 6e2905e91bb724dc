"""Low-rank adapters: what they compute, what is trained and sent, and that nothing else moves."""

import copy
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, linear

from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.device import exporting, personalized, run_models
from fedapps.engine.finished import FinishedRun
from fedapps.engine.rounds import Rounds
from fedapps.method import rehearse
from fedapps.models import build
from fedapps.models.adapters import Adapter, add_adapters, merged, saves_nothing
from fedapps.models.blocks import chain
from fedapps.models.layers import layout_of, run
from fedapps.models.modes import freeze_all_but
from fedapps.serial import run_serial
from fedapps.split.strategy import SplitStrategy
from fedapps.training.workspace import Workspace
from tests.support import ROOT
from tests.support.layers_of_users import Centred, Halved, Named
from tests.support.marks import THOROUGH
from tests.support.methods import each_method, needed

RUN = "num-rounds=2 num-clients=4 fraction-train=1.0 local-epochs=1 finetune-epochs=1"
RANK, ALPHA = 3, 6.0


def adapted(name="lenet5", shape=(1, 8, 8), head=("classifier",), only=()):
    """A model with adapters whose B is not zero, so that they make a difference."""
    model = build(name, shape, 4, seed=0).eval()
    add_adapters(model, RANK, ALPHA, only, head, seed=0)
    draw = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, Adapter):
            module.up.weight.data.normal_(generator=draw)
    return model


def layout(model, head=1):
    return layout_of(model, head, "shared", False)


def values(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(2))


def test_a_linear_layer_and_a_pointwise_convolution_by_hand():
    """W x + (alpha/r) B A x, with a stride."""
    model = chain(
        conv=nn.Conv2d(5, 6, 1, stride=2),
        flat=nn.Flatten(),
        fc=nn.Linear(24, 4),
        out=nn.Linear(4, 2),
    )
    before = copy.deepcopy(model)
    add_adapters(model, RANK, ALPHA, (), ("out",), seed=0)
    x = values(2, 5, 4, 4)
    assert torch.equal(model(x), before(x)), "B is zero"
    for module in (model.conv, model.fc):
        nn.init.ones_(module.adapter.up.weight)
    found = model.conv(x)
    a, b = model.conv.adapter.down.weight[..., 0, 0], model.conv.adapter.up.weight[..., 0, 0]
    moved = before.conv.weight[..., 0, 0] + 2.0 * b @ a
    torch.testing.assert_close(found, conv2d(x, moved[..., None, None], before.conv.bias, 2))
    y = values(2, 24)
    a, b = model.fc.adapter.down.weight, model.fc.adapter.up.weight
    torch.testing.assert_close(
        model.fc(y), linear(y, before.fc.weight + 2.0 * b @ a, before.fc.bias)
    )
    assert a.shape == (RANK, 24) and a.std() > 0


def test_layers_hold_the_adapters_and_the_head_only():
    found = layout(adapted())
    assert found.names == ("fc1", "fc2", "classifier")
    assert found.keys["fc1"] == ("fc1.fc.adapter.down.weight", "fc1.fc.adapter.up.weight")
    assert found.part_of(found.names, "adapter") == ("fc1:adapter", "fc2:adapter")
    assert found.count(found.names) == RANK * (64 + 120 + 120 + 84) + 84 * 4 + 4
    assert not found.norms
    assert layout(adapted(only=("fc2",))).names == ("fc2", "classifier")


def test_the_layers_run_one_after_the_other_with_all_that_is_frozen():
    model = adapted()
    x = values(2, 1, 8, 8)
    found = x
    for name in layout(model).names:
        found = run(model, found, (name,))
    assert torch.equal(found, model(x))
    plain = build("lenet5", (1, 8, 8), 4, seed=0).eval()
    middle = plain.fc1.fc(plain.conv2(plain.conv1(x)))
    assert not torch.equal(run(model, x, ("fc1",)), middle.relu())


def test_nothing_frozen_moves_or_takes_statistics():
    model = adapted("mobilenet", (3, 32, 32), ("fc",))
    found = layout(model)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    trained = freeze_all_but(model, found, found.names)
    model(values(4, 3, 32, 32)).sum().backward()
    for parameter in trained.values():
        parameter.data -= parameter.grad
    changed = [k for k, v in model.state_dict().items() if not torch.equal(v, before[k])]
    assert changed and set(changed) == found.parameters


@pytest.mark.parametrize(("name", "shape", "head"), [
    ("mobilenet", (3, 32, 32), "fc"), ("vit-tiny", (3, 32, 32), "fc"),
    ("torchvision-mobilenet-v3-small", (3, 32, 32), "fc2"),
])  # fmt: skip
def test_merged_weights_give_the_same_outputs(name, shape, head):
    model = adapted(name, shape, (head,))
    plain = merged(model)
    assert plain.state_dict().keys() == build(name, shape, 4, seed=0).state_dict().keys()
    x = values(2, *shape)
    torch.testing.assert_close(plain.eval()(x), model(x), rtol=1e-3, atol=1e-3)
    assert not torch.equal(build(name, shape, 4, seed=0).eval()(x), model(x))
    assert merged(plain) is plain


def test_a_copy_has_adapters_of_its_own():
    model = adapted()
    other = copy.deepcopy(model)
    for module in other.modules():
        if isinstance(module, Adapter):
            nn.init.zeros_(module.up.weight)
    x = values(2, 1, 8, 8)
    assert torch.equal(other(x), build("lenet5", (1, 8, 8), 4, seed=0).eval()(x))
    assert not torch.equal(model(x), other(x))


def test_a_is_a_function_of_the_seed_alone():
    def drawn(seed):
        model = build("cnn", (1, 8, 8), 4, seed=0)
        add_adapters(model, RANK, ALPHA, (), ("fc2",), seed)
        return model.fc1.fc.adapter.down.weight

    torch.manual_seed(9)
    state = torch.get_rng_state()
    assert torch.equal(drawn(1), drawn(1)) and not torch.equal(drawn(1), drawn(2))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("rank", "most"), [(2, 0), (3, 0), (4, 3), (5000, 3)])
def test_a_rank_that_saves_nothing_is_told(rank, most):
    """12 x 4 weights and 6 x 12 ones; r (12 + 4) + r (6 + 12) = 34 r values beside these 120."""
    model = chain(a=nn.Linear(4, 12), b=nn.Linear(12, 6), out=nn.Linear(6, 2))
    add_adapters(model, rank, ALPHA, (), ("out",), seed=0)
    values = f"adapters have {34 * rank:,} values, the weights in place of"
    wanted = f"{values} which they are trained 120: use {most} or less"
    assert saves_nothing(model) == (wanted if most else "")
    assert saves_nothing(merged(model)) == ""


def test_a_run_warns_of_such_a_rank(tiny_npz, serial_run, capsys):
    serial_run(tiny_npz, RUN, 'model="lenet5" num-rounds=1 adapter-rank=5000 strategy="fedavg"')
    assert capsys.readouterr().out.count("warning: adapter-rank = 5000: adapters have") == 1


@pytest.fixture
def space(flat_config, tiny_npz):
    """Return make(*options) -> the workspace of a run with adapters."""
    return lambda *options: Workspace(
        config.read(flat_config(tiny_npz, RUN, f"adapter-rank={RANK}", *options))
    )


@pytest.mark.parametrize(("options", "line"), [
    ('adapter-layers="fc2"', "adapter-layers: fc2 is not one of conv1, conv2, fc1"),
    ('adapter-layers="conv1"', "adapter-layers: conv1 has no Linear and no 1x1 Conv2d"),
    ('model="conv4"', "adapter-rank = 3: there is no Linear and no 1x1 Conv2d in conv1, conv2"),
])  # fmt: skip
def test_what_cannot_have_adapters_is_refused(space, options, line):
    with pytest.raises(RunError, match=line):
        space(options)


def test_attention_that_does_not_call_its_projections_gets_no_adapter():
    model = chain(mix=nn.MultiheadAttention(4, 2), wide=nn.Linear(4, 4), out=nn.Linear(4, 2))
    add_adapters(model, 2, 2.0, (), ("out",), seed=0)
    assert [p for p, m in model.named_modules() if isinstance(m, Adapter)] == ["wide.adapter"]


def test_what_computes_something_else_than_its_class_gets_no_adapter():
    """Because W + (alpha/r) B A would not be what it has computed."""
    normed = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
    model = chain(conv=Centred(4, 4, 1), flat=nn.Flatten(), halved=Halved(4, 4), normed=normed,
                  plain=Named(4, 4), out=nn.Linear(4, 2))  # fmt: skip
    add_adapters(model, 2, 2.0, (), ("out",), seed=0)
    assert [p for p, m in model.named_modules() if isinstance(m, Adapter)] == ["plain.adapter"]
    nn.init.normal_(model.plain.adapter.up.weight)
    x = values(3, 4, 1, 1)
    torch.testing.assert_close(merged(model)(x), model(x))
    with pytest.raises(RunError, match="adapter-layers: halved has no Linear and no 1x1 Conv2d"):
        add_adapters(
            chain(halved=Halved(4, 4), out=nn.Linear(4, 2)), 2, 2.0, ("halved",), ("out",), 0
        )


def test_macs_are_those_of_the_adapters_and_of_what_they_stand_beside(space):
    """Forward: all. Backward: to the first adapter, and no gradients of frozen weights."""
    resident = space().resident
    fc1, fc2 = (256 * 512, 512 * 3)
    both = RANK * 256, RANK * 512
    plain = space("adapter-rank=0").resident.profile.forward_macs(("conv1", "conv2", "fc1", "fc2"))
    names = resident.layout.names
    assert names == ("fc1", "fc2")
    assert resident.profile.forward_macs(names) == plain + sum(both)
    # A: its weight; B: its weight and its input; the head: weight and input; fc1: nothing
    wanted = plain + sum(both) + both[0] + 2 * both[1] + 2 * fc2
    assert fc1 + fc2 < plain
    assert resident.profile.step_macs(names, "fc1") == wanted


def test_the_digest_of_the_initial_model_covers_what_is_frozen(space):
    one, other = space("seed=1").resident, space("seed=1").resident
    assert one.fingerprint == other.fingerprint
    other.counters["conv1.conv.weight"][0] += 1
    del other.__dict__["fingerprint"]
    assert one.fingerprint != other.fingerprint


def test_other_processes_compute_the_same_digest():
    """Whatever order a process has in its sets."""
    code = (
        "from fedapps.training.workspace import Workspace as W; from fedapps.core import config\n"
    )
    code += "s = config.read(config.defaults() | {'adapter-rank': 2, 'device': 'cpu'})\n"
    code += "print(W(s).resident.fingerprint)"
    env = os.environ | {"PYTHONHASHSEED": "1"}
    other = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=env, text=True)
    settings = config.read(config.defaults() | {"adapter-rank": 2, "device": "cpu"})
    assert other.strip() == str(Workspace(settings).resident.fingerprint)


def by_hand(model, head, shape, classes=3):
    """Floats of adapters beside every Linear and pointwise convolution of a body, and of a head."""
    body = other = 0
    for name, layer in build(model, shape, classes, seed=0).named_children():
        if name == head:
            other = sum(p.numel() for p in layer.parameters())
            continue
        for m in layer.modules():
            if isinstance(m, nn.Linear):
                body += RANK * (m.in_features + m.out_features)
            elif isinstance(m, nn.Conv2d) and m.kernel_size == (1, 1):
                body += RANK * (m.in_channels + m.out_channels)
    return body, other


@pytest.mark.parametrize("method", ["fedavg", "fedper"])
def test_bytes_are_those_of_adapters_and_head(method, serial_run, tiny_npz, read_csv):
    folder = serial_run(tiny_npz, RUN, f'model="vit-tiny" adapter-rank={RANK} strategy="{method}"')
    body, other = by_hand("vit-tiny", "fc", (1, 8, 8))
    size = 4 * 4 * (body + (other if method == "fedavg" else 0))
    for row in read_csv(folder, "rounds.csv")[:2]:
        assert (int(row["bytes_up"]), int(row["bytes_down"])) == (size, size)
    stored = [
        path for path in folder.rglob("*.safetensors") if path.parent.parent.name == "clients"
    ]
    assert bool(stored) == (method == "fedper")
    assert all(path.stat().st_size < 4 * (body + other) + 2000 for path in stored)


@pytest.mark.parametrize("method", each_method())
def test_every_method_trains_adapters_or_says_why_not(method, flat_config, tiny_npz):
    """After two rounds the shared model has moved in its layers, and the base nowhere."""
    keys = f'model="lenet5" adapter-rank={RANK} strategy="{method}" local-epochs=2'
    settings = config.read(flat_config(tiny_npz, RUN, keys, needed(method)))
    cls = registry.strategy_class(method)
    if issubclass(cls, SplitStrategy) or cls.needs_norms:
        with pytest.raises(RunError, match="adapter-rank"):
            Rounds(cls(Workspace(settings)))
        return
    made = rehearse(cls, registry.client_class(method), settings)
    space = made.strategy.workspace
    frozen = {k: v.clone() for k, v in space.resident.counters.items()}
    before = {key: value.copy() for key, value in made.strategy.arrays.items()}
    made.rounds(2)
    made.evaluate(client=0)
    state = space.model.state_dict()
    assert all(torch.equal(state[key], value) for key, value in frozen.items()), "moved"
    moved = [key for key, value in made.strategy.arrays.items() if (value != before[key]).any()]
    assert moved or method in ("local", "fedproto")  # no layer travels
    made.make(0).module()


@pytest.mark.parametrize("method", [THOROUGH("fedper"), "fedrod", "fedavg"])
def test_a_model_with_adapters_is_exported_merged(method, serial_run, tiny_npz, tmp_path):
    """The client's outputs, from the run, from a file and as a program."""
    folder = serial_run(tiny_npz, RUN, f'model="lenet5" adapter-rank=2 lr=0.2 strategy="{method}"')
    finished = FinishedRun.open(folder)
    client = finished.client(1)
    inputs = client.test_data[0][:5]
    with torch.no_grad():
        outputs = client.predict(inputs)
    model = run_models.of_run(finished, 1)
    assert not [key for key in model.state_dict() if "adapter" in key]
    exporting.export(model, tmp_path / "client.safetensors")
    exporting.export(model, tmp_path / "client.pt2")
    loaded = personalized.load(tmp_path / "client.safetensors")
    with torch.no_grad():
        mean, std = model.mean, model.std
        pixels = inputs * std + mean
        torch.testing.assert_close(loaded.module(inputs), outputs, rtol=1e-4, atol=1e-5)
        program = torch.export.load(tmp_path / "client.pt2").module()
        torch.testing.assert_close(program(pixels), outputs, rtol=1e-4, atol=1e-4)
    if method == "fedavg":  # and a run without adapters starts from it
        personalized_run = serial_run(
            tiny_npz, RUN, f'model="lenet5" initial-model="{tmp_path / "client.safetensors"}"'
        )
        assert (personalized_run / "model.safetensors").exists()


def test_a_run_with_adapters_is_the_same_on_several_nodes_and_when_resumed(serial_run, tiny_npz):
    keys = f'model="vit-tiny" adapter-rank={RANK} strategy="fedseq" fedseq.groups=2'
    options = tiny_npz, RUN, f'{keys} fedseq.unfreeze-rounds="0,1"'
    whole, part = serial_run(*options, num_supernodes=3), serial_run(*options, "num-rounds=1")
    run_serial(config.parse([f'resume="{part}" num-rounds=2']), 1)
    assert (part / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()


def test_the_base_comes_from_the_initial_model(serial_run, tiny_npz, read_model):
    first = serial_run(tiny_npz, RUN, 'model="lenet5" seed=5')
    path = first / "model.safetensors"
    second = serial_run(tiny_npz, RUN, f'model="lenet5" adapter-rank=2 initial-model="{path}"')
    base = read_model(first)
    model = run_models.of_run(FinishedRun.open(second), None).module.state_dict()
    assert np.array_equal(model["conv1.conv.weight"].numpy(), base["conv1.conv.weight"])
    moved = model["fc1.fc.weight"].numpy() - base["fc1.fc.weight"]
    arrays = read_model(second)
    down, up = (arrays[f"fc1.fc.adapter.{name}.weight"] for name in ("down", "up"))
    np.testing.assert_allclose(moved, 16 / 2 * up @ down, rtol=1e-3, atol=1e-6)
    assert np.abs(moved).max() > 0
