"""Clients that are trained together, against the trainer and the modules that have one client."""

import copy

import pytest
import torch
from torch import nn

from benchmarks.stacked import Bench
from fedapps.data.spec import WHOLE, Spec, image_spec
from fedapps.models import build
from fedapps.models.adapters import add_adapters
from fedapps.models.layers import layout_of, run
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
TAKEN = {  # how many of the places each of three clients has a sample in
    "even": (4, 4, 4),
    "uneven": (4, 1, 3),
    "single": (1, 1, 1),
}


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
