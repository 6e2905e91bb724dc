"""Costs against `torch.utils.flop_counter`, which counts the operators of a real step."""

from functools import cache, partial
from math import prod

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from fedapps.models import build
from fedapps.models.layers import layout_of
from fedapps.models.norms import use_batch_statistics
from fedapps.training.costs import SAMPLES, is_cacheable, profile

# vgg16 is vgg-small with other widths; 9x11 shows that height and width are not mixed up
SHAPES = {
    "cnn": (1, 28, 28), "lenet5": (3, 20, 17), "lenet5-1": (1, 8, 8), "lenet5-3": (3, 16, 16),
    "conv4": (3, 9, 11), "mobilenet": (3, 16, 16), "resnet18": (3, 9, 11), "vgg-small": (3, 32, 32),
}  # fmt: skip
CASES = ["all", "head", "body", "middle"]


def described(model, shape, token=None):
    """The profile of a model whose last layer is the head."""
    return profile(model, layout_of(model, 1, "shared", False), shape, token)


@cache
def make(name):
    model = build(name, SHAPES[name], 10, seed=0)
    return model, described(model, SHAPES[name])


def layers_of(model, case):
    """The trained layers of a case and the layer that a step starts at."""
    names = tuple(name for name, _ in model.named_children())
    middle = names[len(names) // 2]
    whole = {"all": names, "head": names[-1:], "body": names[:-1]}
    trained = whole.get(case, (middle,))
    # the head starts from cached features, a middle layer from the images: its prefix has to run
    return trained, names[-1] if case == "head" else names[0]


def conv_backward(grad, x, weight, *args, out_shape, **_):
    """FLOPs of a convolution's backward: torch's own counts the weight gradient of a grouped
    convolution as if every output channel met every input channel."""
    mask = args[-1]
    inputs = 2 * grad[0] * prod(grad[2:]) * prod(weight)
    # every entry of a weight's gradient is a sum over all samples and pixels of the output
    weights = 2 * prod(weight) * grad[0] * prod(grad[2:])
    return mask[0] * inputs + mask[1] * weights


def counted(model, trained, start, name):
    """Multiply-accumulates of a real forward and backward pass with two samples."""
    x = torch.zeros(SAMPLES, *SHAPES[name])
    running = [layer for layer, _ in model.named_children()]
    at = running.index(start)
    model.eval()
    with torch.no_grad():
        for layer in running[:at]:
            x = model.get_submodule(layer)(x)
    for layer, module in model.named_children():
        module.requires_grad_(layer in trained)
    grouped = {torch.ops.aten.convolution_backward: conv_backward} if name == "mobilenet" else {}
    with FlopCounterMode(display=False, custom_mapping=grouped) as counter:
        for layer in running[at:]:
            x = model.get_submodule(layer)(x)
        x.sum().backward()
    model.zero_grad()
    return counter.get_total_flops() / 2


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("name", SHAPES)
def test_step_macs_are_those_of_a_real_step(name, case):
    model, facts = make(name)
    trained, start = layers_of(model, case)
    assert facts.step_macs(trained, start) * SAMPLES == counted(model, trained, start, name)


@pytest.mark.parametrize("name", SHAPES)
def test_forward_macs_are_those_of_a_real_pass(name):
    model, facts = make(name)
    names = tuple(layer for layer, _ in model.named_children())
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(torch.zeros(SAMPLES, *SHAPES[name]))
    assert facts.forward_macs(names) * SAMPLES == counter.get_total_flops() / 2
    flops = counter.get_flop_counts()
    body = names[:-1]
    per_layer = [sum(flops[f"{type(model).__name__}.{layer}"].values()) for layer in body]
    assert facts.forward_macs(body) * SAMPLES == sum(per_layer) / 2


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize(
    ("layer", "shape", "how"),
    [
        (nn.ConvTranspose2d, (8, 5, 7), {"kernel_size": 2, "stride": 2}),
        (nn.ConvTranspose2d, (8, 5, 7), {"kernel_size": (3, 2), "stride": 3, "padding": 1}),
        (nn.ConvTranspose1d, (8, 6), {"kernel_size": 4, "stride": 2, "output_padding": 1}),
    ],
)
def test_transposed_convolutions_are_counted_by_their_inputs(layer, shape, how, groups):
    model = nn.Sequential(nn.Conv1d(8, 8, 3) if len(shape) == 2 else nn.Conv2d(8, 8, 3, padding=1))
    model.extend([layer(8, 12, groups=groups, **how), nn.Flatten(), nn.LazyLinear(4)])
    x = torch.zeros(SAMPLES, *shape)
    with torch.no_grad():
        model(x)  # the last layer finds out its size
    facts, names = described(model, shape), ("0", "1", "3")  # flattening is part of a layer
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(x)
    assert facts.forward_macs(names) * SAMPLES == counter.get_total_flops() / 2
    if groups == 1:  # see `conv_backward`
        model.requires_grad_(True)
        with FlopCounterMode(display=False) as counter:
            model(x).sum().backward()
        assert facts.step_macs(names, "0") * SAMPLES == counter.get_total_flops() / 2


def test_a_step_with_clipping_by_sample_and_one_without_are_counted_apart():
    """By the same profile, in either order."""

    def counted(order):
        model = build("cnn", (1, 8, 8), 10, seed=1)
        names = tuple(name for name, _ in model.named_children())
        found = described(model, (1, 8, 8))
        return {by_sample: found.step_macs(names, names[0], by_sample) for by_sample in order}

    assert counted((True, False)) == counted((False, True))
    assert counted((True, False))[True] > counted((False,))[False]


def test_mobilenet_has_the_papers_multiplications():
    """Howard et al. 2017, table 1: 569 M at 224 pixels. Small images: 32 x 32 after a first layer
    of stride 1 is 1/12.25 of the paper's 112 x 112, and the first layer and `fc` differ."""
    model = build("mobilenet", (3, 32, 32), 1000, seed=0)
    blocks = [f"block{i}" for i in range(1, 14)]
    macs = described(model, (3, 32, 32)).forward_macs(tuple(blocks))
    first, last = 112 * 112 * 32 * 27, 1024 * 1000
    # the paper's map is 112 where ours is 32, with the same strides after it: factor 3.5 ** 2
    assert macs * 3.5**2 + first + last == pytest.approx(569e6, rel=0.002)


@pytest.mark.parametrize("name", ["lenet5", "resnet18"])
@pytest.mark.parametrize("stats", ["running", "batch"])
def test_profiling_leaves_the_state_as_it_is(name, stats):
    model = build(name, (3, 9, 11), 10, seed=0)
    if stats == "batch":
        use_batch_statistics(model)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.add_(torch.rand(value.shape, generator=torch.Generator().manual_seed(0)))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    names = tuple(layer for layer, _ in model.named_children())
    model.train()

    facts = described(model, (3, 9, 11))
    assert all(p.requires_grad for p in model.parameters())
    facts.forward_macs(names)
    model.train()
    first = facts.step_macs(names, names[0])

    after = model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(after[key], before[key]) for key in before)
    assert all(p.grad is None for p in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert facts.step_macs(names[-1:], names[0]) < first
    again = described(model, (3, 9, 11)).step_macs(names, names[0])
    assert again == first  # what was frozen last does not matter


@pytest.mark.parametrize("name", SHAPES)
def test_shapes_are_what_each_layer_receives(name):
    model, facts = make(name)
    x = torch.zeros(3, *SHAPES[name])
    with torch.inference_mode():
        for layer, module in model.eval().named_children():
            assert facts.shapes[layer] == x.shape[1:]
            x = module(x)


@pytest.mark.parametrize(("name", "size", "lone"), [
    # three stride-2 layers make 1 pixel of 8, the fourth makes 1 pixel of 16
    ("mobilenet", 8, {f"block{i}" for i in range(6, 14)}),
    ("mobilenet", 16, {"block12", "block13"}),
    ("mobilenet", 17, set()),
    ("resnet18", 8, {"block7", "block8"}),
    ("resnet18", 9, set()),
    ("conv4", 8, {"conv4"}),  # 8, 4, 2, 1
    ("conv4", 16, set()),
    ("lenet5", 8, set()),
    ("cnn", 8, set()),
])  # fmt: skip
def test_layers_whose_batchnorm_sees_one_value_per_channel(name, size, lone):
    """Exactly there torch refuses to train on one sample."""
    model = build(name, (1, size, size), 5, seed=0)
    facts = described(model, (1, size, size))
    assert {layer for layer, alone in facts.lone.items() if alone} == lone
    x = torch.zeros(1, 1, size, size)
    model.train()
    refused = set()
    for layer, module in model.named_children():
        try:
            module(x)
        except ValueError as error:
            assert "more than 1 value per channel" in str(error)
            refused.add(layer)
        x = module.eval()(x)
    assert refused == lone


def test_layers_that_may_be_computed_once():
    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    assert is_cacheable(norm)
    use_batch_statistics(norm)
    assert not is_cacheable(norm)
    for dropout in (nn.Dropout, nn.Dropout2d, nn.AlphaDropout):
        assert not is_cacheable(nn.Sequential(nn.Sequential(nn.Linear(4, 4), dropout(0.5))))
    model, _ = make("resnet18")
    assert all(is_cacheable(layer) for layer in model.children())


class Keywords(nn.Module):
    """Attention, a convolution and a BatchNorm that are called with keywords, or without."""

    def __init__(self, named):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 4, 4), nn.BatchNorm2d(8)
        self.mix = nn.MultiheadAttention(8, 2, batch_first=True)
        self.named = named

    def forward(self, x):
        if not self.named:
            x = self.norm(self.conv(x)).flatten(2).transpose(1, 2)
            return self.mix(x, x, x, need_weights=False)[0].mean(1)
        x = self.norm(input=self.conv(input=x)).flatten(2).transpose(1, 2)
        return self.mix(query=x, key=x, value=x, need_weights=False)[0].mean(1)


class Steps(nn.Module):
    """A recurrent layer over the pixels, as a packed sequence or not."""

    def __init__(self, packed):
        super().__init__()
        self.steps = nn.GRU(3, 8, batch_first=True)
        self.packed = packed

    def forward(self, x):
        x = x.flatten(2).transpose(1, 2)
        if self.packed:
            lengths = torch.full((len(x),), x.shape[1])
            x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return self.steps(x)[1][-1]


def _linear(change=None):
    linear = nn.Linear(3 * 8 * 8, 8)
    return nn.Sequential(nn.Flatten(), change(linear) if change else linear)


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize(("unusual", "plain"), [
    (lambda: Keywords(named=True), lambda: Keywords(named=False)),
    (lambda: Steps(packed=True), lambda: Steps(packed=False)),
    *((partial(_linear, change), _linear) for change in (
        nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm,
        nn.utils.weight_norm,
    )),
], ids=["keywords", "packed", "weight_norm", "spectral_norm", "old weight_norm"])  # fmt: skip
def test_how_a_module_is_called_or_parametrized_changes_no_count(unusual, plain):
    """A batch of equal lengths, for which a packed sequence has as many steps."""

    def counted(body):
        model = nn.Sequential(body, nn.Linear(8, 3))
        facts = described(model, (3, 8, 8))
        assert facts.lone["0"] is False
        steps = [facts.step_macs(names, "0") for names in (("0", "1"), ("1",), ("0",))]
        return [*steps, facts.forward_macs(("0", "1"))]

    assert counted(unusual()) == counted(plain())
    assert min(counted(plain())) > 0


class Padded(nn.Module):
    """A recurrent layer over the tokens of texts that end where `fill` begins."""

    def __init__(self, fill):
        super().__init__()
        self.embed, self.steps = nn.Embedding(9, 4), nn.GRU(4, 8, batch_first=True)
        self.fill = fill

    def forward(self, x):
        lengths = (x != self.fill).sum(1)
        x = self.embed(x)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)  # none may be 0
        return self.steps(packed)[1][-1]


@pytest.mark.parametrize("fill", [0, 1, 8])
def test_texts_count_as_if_nothing_filled_them_up(fill):
    """Whichever token fills: the first one, as in a table, or that of somebody's tokenizer."""
    facts = described(nn.Sequential(Padded(fill), nn.Linear(8, 3)), (7,), token=4)
    steps, head = 7 * 3 * (4 * 8 + 8 * 8), 8 * 3
    assert facts.forward_macs(("0", "1")) == steps + head
    assert facts.step_macs(("0", "1"), "0") == 3 * steps + 3 * head


class PaddedSeries(nn.GRU):
    """A recurrent layer over series that end where all values are zero."""

    def forward(self, x):
        lengths = (x != 0).any(-1).sum(1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)  # none may be 0
        return super().forward(packed)[1][-1]


@pytest.mark.parametrize("before", [0, 1])
def test_series_count_as_if_nothing_filled_them_up(before):
    """Also from a layer on that is not the first, whose inputs are made up, too."""
    first = [nn.Linear(4, 4)] * before
    model = nn.Sequential(*first, PaddedSeries(4, 8, batch_first=True), nn.Linear(8, 3))
    layers = (str(before), str(before + 1))
    assert described(model, (7, 4)).forward_macs(layers) == 7 * 3 * (4 * 8 + 8 * 8) + 8 * 3


class Masked(nn.Module):
    """A transformer over the tokens of texts that a 0 fills up, or over whole ones."""

    def __init__(self, fills):
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
        self.mix = nn.TransformerEncoder(layer, 1)
        self.fills = fills

    def forward(self, x):
        mask = x == 0 if self.fills else None
        return self.mix(self.embed(x), src_key_padding_mask=mask).mean(1)


@pytest.mark.parametrize("fills", [True, False])
def test_attention_with_a_mask_is_counted(fills):
    """In eval mode, torch has a faster path of its own for it, whose tensors have no shape."""
    model = nn.Sequential(Masked(fills), nn.Linear(4, 3))
    facts = described(model, (7,), token=4)
    steps = 7 * (4 * 4 * 4 + 2 * 4 * 8) + 2 * 7 * 7 * 4
    assert facts.forward_macs(("0", "1")) == steps + 4 * 3
    assert facts.step_macs(("0", "1"), "0") == 3 * (steps + 4 * 3)
    assert model[0].mix.use_nested_tensor


def test_counting_leaves_the_faster_path_of_other_threads_on():
    """Its switch is one of the whole process."""
    model, seen = nn.Sequential(Masked(True), nn.Linear(4, 3)), []
    facts = described(model, (7,), token=4)
    model[1].register_forward_hook(
        lambda *_: seen.append(torch.backends.mha.get_fastpath_enabled())
    )
    facts.forward_macs(("0", "1"))
    assert seen == [True]


def test_an_encoder_that_is_built_by_its_subclass_is_counted():
    class Own(nn.TransformerEncoder):
        def __init__(self):
            nn.Module.__init__(self)
            self.only = nn.Linear(4, 4)

        def forward(self, src):
            return self.only(src)

    facts = described(nn.Sequential(Own(), nn.Linear(4, 3)), (4,))
    assert facts.forward_macs(("0", "1")) == 4 * 4 + 4 * 3


def test_an_error_while_counting_leaves_nothing_behind():
    """Without its faster path, every later prediction would be slow."""
    model = nn.Sequential(Masked(True), nn.Linear(4, 3))
    facts = described(model, (7,), token=4)
    model[1] = nn.Linear(9, 3)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        facts.forward_macs(("0", "1"))
    assert model[0].mix.use_nested_tensor
    assert not any(module._forward_hooks for module in model.modules())


def test_counting_leaves_modes_and_frozen_layers_as_they_are():
    """A method asks in its hooks; only the first client of a process would find another model."""
    model = build("resnet18", SHAPES["resnet18"], 10, seed=0)
    facts = described(model, SHAPES["resnet18"])
    names = [name for name, _ in model.named_children()]
    model.get_submodule(names[0]).requires_grad_(False)
    model.train().get_submodule(names[1]).eval()

    def found():
        return [p.requires_grad for p in model.parameters()], [m.training for m in model.modules()]

    before = found()
    for count in (
        lambda: facts.step_macs((names[-1],), names[0]),
        lambda: facts.layer_macs(names[0]),
        lambda: facts.forward_macs(tuple(names)),
    ):
        assert count() > 0 and found() == before
