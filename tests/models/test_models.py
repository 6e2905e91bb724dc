"""Models: the papers' parameter counts, shapes, seeds, and the contract of the layers."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.data.spec import Spec, image_spec
from fedapps.models import MODELS, build, size

VGG = [name for name in MODELS if name.startswith("vgg")]
IMAGES = [name for name in MODELS if "images" in MODELS[name].takes]
WHOLE = [name for name in IMAGES if name.startswith("torchvision")]  # cannot be cut
SMALL = [name for name in IMAGES if name not in (*VGG, *WHOLE)]  # from 8x8 on
LIGHT = [name for name in SMALL if name not in ("mobilenet", "resnet18")]
# vgg16 runs once: the other two show the same code at every size
RUNS = [(name, size) for name in SMALL for size in (8, 64)]  # LIGHT ones of all sizes below
RUNS += [("vgg-small", 32), ("vgg-small", 64), ("vgg16-bn", 32), ("vgg16", 32)]


def count(module):
    return sum(p.numel() for p in module.parameters())


def per_layer(model):
    return {name: count(layer) for name, layer in model.named_children()}


def floats(model):
    """Parameters and running statistics, without integer counters."""
    return sum(t.numel() for t in model.state_dict().values() if t.is_floating_point())


def convs(model):
    return [m for m in model.modules() if isinstance(m, nn.Conv2d)]


def on_meta(name, shape, classes):
    """The model without memory, for counting."""
    with torch.device("meta"):
        return MODELS[name].build(image_spec(shape), Spec((classes,)))


def test_cnn_has_fedseqs_parameters():
    model = build("cnn", (1, 28, 28), 10, seed=0)
    assert per_layer(model) == {"conv1": 832, "conv2": 51_264, "fc1": 524_800, "fc2": 5_130}
    assert count(model) == 582_026


def test_the_size_of_a_model_is_known_without_making_it():
    """FedSeq's 582,026 parameters of cnn, and of conv4 also what its BatchNorms count."""
    assert size("cnn", (1, 28, 28), 10) == 582_026
    model = build("conv4", (3, 32, 32), 100, seed=0)
    assert size("conv4", (3, 32, 32), 100) == sum(v.numel() for v in model.state_dict().values())
    assert size("cnn", (1, 28, 28), 10**12) > 512 * 10**12, "more than any memory holds"


def test_lenet5_has_fedcmds_parameters():
    model = build("lenet5", (3, 32, 32), 10, seed=0)
    assert per_layer(model) == {
        "conv1": 456 + 12, "conv2": 2_416 + 32, "fc1": 48_120, "fc2": 10_164, "classifier": 850,
    }  # fmt: skip
    norms = sum(floats(m) for m in model.modules() if isinstance(m, nn.BatchNorm2d))
    assert floats(model) == 62_094
    assert floats(model) - norms == 62_006  # FedBN
    assert floats(model) - count(model.classifier) == 61_244  # FedPer
    assert floats(model) - count(model.fc2) == 51_930  # FedCMD, fc2 personal
    assert count(model) == 62_050  # bn-stats local


@pytest.mark.parametrize(("name", "tail"), [
    ("lenet5-1", {"fc1": 48_120, "classifier": 1_210}),
    ("lenet5-3", {"fc1": 48_120, "fc2": 10_164, "fc3": 5_440, "classifier": 650}),
])  # fmt: skip
def test_lenet5_variants(name, tail):
    model = on_meta(name, (3, 32, 32), 10)
    assert per_layer(model) == {"conv1": 468, "conv2": 2_448} | tail


def test_conv4_parameters():
    block = 64 * 64 * 9 + 128
    first = 3 * 64 * 9 + 128
    tail = {"conv2": block, "conv3": block, "conv4": block, "fc": 256 * 100 + 100}
    assert per_layer(on_meta("conv4", (3, 32, 32), 100)) == {"conv1": first} | tail


@pytest.mark.parametrize(("name", "total"), [
    ("mobilenet", 3_217_226),
    ("resnet18", 11_173_962),
    ("vgg16", 14_714_688 + 2_101_248 + 16_781_312 + 40_970),
    ("vgg16-bn", 14_714_688 + 4_224 + 2_101_248 + 16_781_312 + 40_970),
])  # fmt: skip
def test_known_totals(name, total):
    assert count(on_meta(name, (3, 32, 32), 10)) == total


def test_vgg_small_is_a_quarter_as_wide():
    model = on_meta("vgg-small", (3, 32, 32), 10)
    full = on_meta("vgg16", (3, 32, 32), 10)
    widths = [conv.out_channels for conv in convs(model)]
    assert [4 * width for width in widths] == [conv.out_channels for conv in convs(full)]
    assert [m.out_features for m in model.modules() if isinstance(m, nn.Linear)] == [512, 512, 10]


@pytest.mark.parametrize(("name", "layers"), [
    ("mobilenet", ["conv1", *(f"block{i}" for i in range(1, 14)), "fc"]),
    ("resnet18", ["conv1", *(f"block{i}" for i in range(1, 9)), "fc"]),
    *((n, [*(f"conv{i}" for i in range(1, 14)), "fc1", "fc2", "fc3"]) for n in VGG),
])  # fmt: skip
def test_layer_names(name, layers):
    assert list(per_layer(on_meta(name, (3, 32, 32), 10))) == layers


@pytest.mark.parametrize("name", [*SMALL, *VGG])
def test_every_layer_has_parameters_and_owns_its_keys(name):
    model = on_meta(name, (3, 32, 32), 10)
    assert all(per_layer(model).values())
    keys = [f"{n}.{key}" for n, layer in model.named_children() for key in layer.state_dict()]
    assert keys == list(model.state_dict())


@pytest.mark.parametrize(("name", "size"), RUNS)
def test_layers_chain_to_the_model(name, size):
    channels = 1 if size in (8, 28) else 3
    model = build(name, (channels, size, size), 7, seed=0).eval()
    x = torch.randn(2, channels, size, size, generator=torch.Generator().manual_seed(0))
    z, outputs = x, []
    with torch.inference_mode():
        whole = model(x)
        for layer in model.children():
            before = z.clone()
            outputs.append(layer(z))
            assert torch.equal(z, before)  # nothing in place on what another layer made
            z = outputs[-1]
    assert whole.shape == (2, 7)
    assert whole.isfinite().all()
    assert torch.equal(z, whole)
    assert outputs[-2].ndim == 2  # the body returns features
    if name != "vit-tiny":
        assert all((hidden >= 0).all() for hidden in outputs[:-1])  # after ReLU


@pytest.mark.parametrize(("name", "halving"), [
    ("mobilenet", ["block2", "block4", "block6", "block12"]),
    ("resnet18", ["block3", "block5", "block7"]),
    ("vgg16", ["conv2", "conv4", "conv7", "conv10"]),  # FedFC's cuts
    ("vgg-small", ["conv2", "conv4", "conv7", "conv10"]),
])  # fmt: skip
def test_layers_that_halve_the_map(name, halving):
    sides, z = {"input": 32}, torch.empty(2, 3, 32, 32, device="meta")
    for layer, module in on_meta(name, (3, 32, 32), 10).named_children():
        z = module(z)
        if z.ndim == 2:  # the body's end
            break
        sides[layer] = z.shape[-1]
    changes = [after for before, after in pairwise(sides) if sides[after] != sides[before]]
    assert changes == halving
    assert all(sides[b] == sides[a] // 2 for a, b in pairwise(sides) if b in halving)


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(LIGHT),
    shape=st.tuples(st.integers(1, 4), st.integers(8, 40), st.integers(8, 40)),
    classes=st.integers(2, 70),
)
def test_any_image_from_8_pixels_on(name, shape, classes):
    model = build(name, shape, classes, seed=0)
    assert model(torch.zeros(2, *shape)).shape == (2, classes)


@pytest.mark.parametrize("name", ["cnn", "lenet5"])
@pytest.mark.parametrize(("size", "padding"), [(8, 2), (15, 2), (16, 0), (28, 0), (32, 0), (64, 0)])
def test_padding_only_where_the_papers_form_does_not_fit(name, size, padding):
    model = on_meta(name, (3, size, size), 10)
    assert [conv.padding for conv in convs(model)] == [(padding, padding)] * 2


@pytest.mark.parametrize("name", ["cnn", "lenet5", "conv4", "vgg-tiny", "vgg-tiny-bn"])
def test_pooling_before_relu_gives_the_bits_of_relu_before_pooling(name):
    """Whole numbers make many equal maxima, some below zero: the same one must be taken."""
    ours, papers = (build(name, (3, 32, 32), 10, seed=0) for _ in range(2))
    for layer in papers.children():
        names = [name for name, _ in layer.named_children()]
        if "pool" in names:
            assert names.index("pool") < names.index("relu")
            layer.pool, layer.relu = layer.relu, layer.pool  # what runs first is now ReLU
    images = torch.randint(-2, 3, (16, 3, 32, 32), generator=torch.Generator().manual_seed(0))
    seen = []
    for model in (ours, papers):
        with torch.no_grad():
            for conv in convs(model):
                conv.weight.copy_((conv.weight * 30).round())
        output = model(images.float())
        output.square().sum().backward()
        seen.append([output, *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    assert all(conv.weight.grad.any() for conv in convs(ours)), "else nothing is compared"


@pytest.mark.parametrize("size", [8, 15, 16, 64])
def test_conv4_drops_only_the_poolings_that_do_not_fit(size):
    pools = [m for m in on_meta("conv4", (3, size, size), 10).modules() if type(m) is nn.MaxPool2d]
    assert len(pools) == (4 if size >= 16 else 3)


@pytest.mark.parametrize("name", [*SMALL, "vgg-small"])
def test_every_parameter_gets_a_gradient(name):
    model = build(name, (3, 32, 32), 5, seed=0)
    x = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    nn.functional.cross_entropy(model(x), torch.arange(4)).backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("name", [*SMALL, "vgg-small"])
def test_weights_are_a_function_of_the_seed(name):
    torch.manual_seed(1)
    one = build(name, (3, 32, 32), 10, seed=3).state_dict()
    torch.manual_seed(2)
    two = build(name, (3, 32, 32), 10, seed=3).state_dict()
    other = build(name, (3, 32, 32), 10, seed=4).state_dict()
    assert all(torch.equal(one[key], two[key]) for key in one)
    drawn = [key for key in one if one[key].ndim > 1]
    assert not any(torch.equal(one[key], other[key]) for key in drawn)


def test_global_random_state_stays():
    before = torch.get_rng_state()
    build("cnn", (1, 8, 8), 10, seed=3)
    assert torch.equal(torch.get_rng_state(), before)


def test_all_bits_of_a_runs_seed_count():
    """PyTorch's generator drops bits above the 32nd, so a run-config may not have them."""
    seeds = [0, *(2**bit for bit in range(32)), 2**32 - 1]

    def weights(seed):
        return build("cnn", (1, 8, 8), 10, seed).get_parameter("conv1.conv.weight")

    assert len({weights(seed).detach().numpy().tobytes() for seed in seeds}) == len(seeds) == 34
    for seed in seeds:
        assert torch.equal(weights(np.uint64(seed)), weights(seed))
    assert config.read(config.defaults() | {"seed": seeds[-1]}).seed == seeds[-1]
    with pytest.raises(RunError, match=r"^seed = 4294967296: must be int >= 0 and < 4294967296"):
        config.read(config.defaults() | {"seed": 2**32})


def test_vgg_keeps_the_scale_of_its_features():
    # PyTorch's default initialisation loses the signal over 16 layers
    model = build("vgg-small", (3, 32, 32), 10, seed=0).eval()
    x = torch.randn(16, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert 0.3 < model(x).std() < 3


@pytest.mark.parametrize(("arguments", "parts"), [
    (("lenet", (3, 32, 32), 10), ["unknown model 'lenet'", "nearest is 'lenet5'", *MODELS]),
    (("ResNet-18", (3, 32, 32), 10), ["'ResNet-18'", "nearest is 'resnet18'"]),
    (("", (3, 32, 32), 10), ["unknown model ''", *MODELS]),
    (("cnn", (1, 7, 8), 10), ["'cnn'", "7x8", "smallest is 8x8"]),
    (("cnn", (28, 28, 1), 10), ["'cnn'", "28x1", "smallest is 8x8"]),
    (("vgg16", (3, 32, 31), 10), ["'vgg16'", "32x31", "smallest is 32x32"]),
    (("vgg-small", (1, 28, 28), 10), ["'vgg-small'", "28x28", "smallest is 32x32"]),
    (("resnet18", (1, 4, 4), 10), ["'resnet18'", "4x4", "smallest is 8x8"]),
    (("cnn", (28, 28), 10), ["(channels, height, width)", "(28, 28)"]),
    (("cnn", (0, 28, 28), 10), ["at least 1", "(0, 28, 28)"]),
    (("cnn", (1, 28, 28), 1), ["classes must be at least 2", "got 1"]),
])  # fmt: skip
def test_errors_are_one_line_with_what_value_and_what_is_allowed(arguments, parts):
    with pytest.raises(ValueError) as caught:
        build(*arguments, seed=0)
    text = str(caught.value)
    assert "\n" not in text
    assert all(part in text for part in parts)
