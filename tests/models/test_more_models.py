"""The LSTM of LEAF, the small vision transformer, and torchvision's models under names of ours."""

import pytest
import torch
from torch import nn
from torch.nn.functional import linear, pad
from torch.utils.flop_counter import FlopCounterMode
from torchvision.models import mobilenet_v3_small, resnet18

from fedapps.data.spec import WHOLE, Spec
from fedapps.models import build
from fedapps.models.layers import layout_of
from fedapps.training.costs import SAMPLES, profile
from tests.support import kinds

TEXT = Spec((5,), WHOLE, 90)
OURS = {"torchvision-resnet18": resnet18, "torchvision-mobilenet-v3-small": mobilenet_v3_small}


def layout(model):
    return layout_of(model, 1, "shared", False)


def images(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("per_step", [True, False])
def test_lstm_char_computes_what_one_stacked_lstm_does(per_step):
    """The embedding of 8 and two layers of 256 in torch's own stack of two."""
    model = build("lstm-char", TEXT, Spec((5, 90)) if per_step else 90, seed=0)
    stacked = nn.LSTM(8, 256, num_layers=2, batch_first=True)
    state = model.state_dict()
    for name in dict(stacked.named_parameters()):
        of, layer = name[:-1], int(name[-1])
        stacked.get_parameter(name).data = state[f"lstm{layer + 1}.lstm.{of}0"]
    x = torch.arange(10).view(2, 5)
    hidden = stacked(state["embed.weight"][x])[0]
    expected = linear(hidden, state["fc.fc.weight"], state["fc.fc.bias"])
    torch.testing.assert_close(model(x), expected if per_step else expected[:, -1])
    # LEAF: 90 letters of 8; gates 4 x 256 x (8 + 256 + 2) and 4 x 256 x (256 + 256 + 2); output
    size = 90 * 8 + 1024 * 266 + 1024 * 514 + 257 * 90
    assert sum(p.numel() for p in model.parameters()) == size


def test_macs_of_lstm_char_by_hand():
    model = build("lstm-char", TEXT, Spec((5, 90)), seed=0)
    facts = profile(model, layout(model), (5,), 1)
    wanted = 5 * 1024 * (8 + 256) + 5 * 1024 * (256 + 256) + 5 * 256 * 90
    assert facts.forward_macs(("embed", "lstm1", "lstm2", "fc")) == wanted


@pytest.mark.parametrize(("shape", "patches", "side"), [
    ((1, 28, 28), 49, 4), ((3, 32, 32), 64, 4), ((3, 30, 9), 24, 4), ((1, 65, 20), 24, 9),
])  # fmt: skip
def test_patches_are_blocks_of_the_image_padded_with_zeros(shape, patches, side):
    model = build("vit-tiny", shape, 7, seed=0)
    x = images(2, *shape)
    whole = pad(x, (0, -shape[2] % side, 0, -shape[1] % side))
    blocks = whole.unfold(2, side, side).unfold(3, side, side)  # [N, C, rows, columns, side, side]
    rows = blocks.permute(0, 2, 3, 1, 4, 5).reshape(2, patches, -1)
    conv, position = model.patches.conv, model.patches.position
    expected = linear(rows, conv.weight.flatten(1), conv.bias) + position
    torch.testing.assert_close(model.patches(x), expected, rtol=1e-4, atol=1e-5)
    assert model(x).shape == (2, 7)


def test_a_block_of_vit_tiny_computes_torchs_encoder_layer():
    """`nn.TransformerEncoderLayer` with normalization first and GELU, given the same weights."""
    block = build("vit-tiny", (3, 32, 32), 10, seed=0).block1
    theirs = nn.TransformerEncoderLayer(
        64, 4, 256, 0.0, activation="gelu", batch_first=True, norm_first=True
    )
    attention, mlp = block.attention.main, block.mlp.main
    theirs.norm1, theirs.norm2 = attention.norm, mlp.norm
    theirs.linear1, theirs.linear2 = mlp.wide, mlp.narrow
    theirs.self_attn.in_proj_weight, theirs.self_attn.in_proj_bias = attention.qkv.parameters()
    theirs.self_attn.out_proj = attention.out
    x = images(2, 6, 64)
    torch.testing.assert_close(block(x), theirs(x), rtol=1e-4, atol=1e-5)


def test_vit_tiny_has_no_batch_norm_and_its_macs_by_hand():
    model = build("vit-tiny", (3, 32, 32), 10, seed=0)
    found = layout(model)
    assert not found.norms
    block = 64 * 64 * (3 * 64 + 64 + 2 * 4 * 64) + 2 * 64 * 64 * 64
    first = 64 * 64 * 48
    facts = profile(model, found, (3, 32, 32))
    assert facts.forward_macs(found.names) == first + 4 * block + 640
    # forward, and all gradients but those of the pixels
    assert facts.step_macs(found.names, "patches") == 2 * first + 3 * (4 * block + 640)
    assert facts.step_macs(("fc",), "patches") == first + 4 * block + 2 * 640


@pytest.mark.parametrize("name", OURS)
def test_torchvisions_models_are_its_own_with_layers(name):
    """The same weights from the same seed, and the same outputs; MACs as torch counts them."""
    model = build(name, (3, 32, 32), 10, seed=5)
    torch.manual_seed(5)
    own = OURS[name](num_classes=10).eval()
    x = images(2, 3, 32, 32)
    assert torch.equal(model.eval()(x), own(x))
    found = layout(model)
    assert not found.can_be_cut
    facts = profile(model, found, (3, 32, 32))
    with FlopCounterMode(display=False) as counter:  # backward it counts groups wrongly
        model(torch.zeros(SAMPLES, 3, 32, 32))
    assert facts.forward_macs(found.names) * SAMPLES == counter.get_total_flops() / 2


def test_layers_of_torchvisions_models():
    names = {name: layout(build(name, (1, 8, 8), 3, seed=0)).names for name in OURS}
    assert names["torchvision-resnet18"] == tuple(
        dict(build("resnet18", (1, 8, 8), 3, 0).named_children())
    )
    blocks = (f"block{i}" for i in range(1, 12))
    assert names["torchvision-mobilenet-v3-small"] == ("conv1", *blocks, "conv2", "fc1", "fc2")


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize("channels", [1, 4])
def test_torchvisions_models_take_any_channels_from_8_pixels_on(name, channels):
    model = build(name, (channels, 8, 8), 3, seed=0).eval()
    again = build(name, (channels, 8, 8), 3, seed=0).state_dict()
    assert model(images(2, channels, 8, 8)).shape == (2, 3)
    assert all(torch.equal(value, again[key]) for key, value in model.state_dict().items())


RUN = "num-rounds=2 fraction-train=1.0 local-epochs=1 finetune-epochs=1"


@pytest.mark.parametrize(("name", "method"), [
    ("vit-tiny", "fedseq"), ("torchvision-mobilenet-v3-small", "fedper"),
])  # fmt: skip
def test_a_run_with_images(name, method, serial_run, tiny_npz, read_csv):
    folder = serial_run(tiny_npz, RUN, f'model="{name}" strategy="{method}" num-clients=4')
    last = read_csv(folder, "rounds.csv")[-1]
    assert last["failures"] == "0"
    assert 0 <= float(last["accuracy_personalized"]) <= 1


def test_lstm_char_learns_the_next_token(tmp_path, serial_run, read_csv):
    options = kinds.options(tmp_path, "tokens"), RUN, 'model="lstm-char" optimizer="adam" lr=0.02'
    folder = serial_run(*options, 'strategy="fedavg" num-rounds=6 local-epochs=3')
    rows = read_csv(folder, "rounds.csv")
    assert float(rows[-1]["accuracy_initial"]) > 0.6 > float(rows[0]["accuracy_initial"])
