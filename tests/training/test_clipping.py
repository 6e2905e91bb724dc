"""AutoClip against a few lines of NumPy; per-sample clipping against one backward per sample."""

from collections import OrderedDict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy, linear
from torch.utils.flop_counter import FlopCounterMode

from fedapps import models
from fedapps.method.update import replace
from fedapps.models.layers import layout_of, run
from fedapps.training.clipping import SampleGradients, Threshold, clip_batch
from fedapps.training.costs import profile
from fedapps.training.draw import Draw
from fedapps.training.objective import Objective
from fedapps.training.plan import Clip, Stage
from fedapps.training.trainer import Trainer
from tests.support.layers_of_users import Centred, Halved, Named

DRAW = Draw(seed=5, phase="train", round=3, client=2)


def clip(percentile=90.0, max_norm=None, mode="batch", history=10_000) -> Clip:
    return Clip(percentile=percentile, max_norm=max_norm, mode=mode, history=history)


@given(
    st.integers(0, 2**32 - 1), st.floats(0, 100, exclude_max=True),
    st.one_of(st.none(), st.floats(0.1, 5)), st.integers(1, 1200),
)  # fmt: skip
def test_threshold_is_numpys_percentile_over_a_thousand_steps(seed, percentile, limit, history):
    norms = np.random.default_rng(seed).lognormal(size=1000)
    threshold = Threshold(clip(percentile, limit, history=history))
    found = [threshold.after(norm) for norm in norms]
    for step in (0, 1, 2, 10, 499, 998, 999):
        expected = np.percentile(norms[max(0, step + 1 - history) : step + 1], percentile)
        assert found[step] == pytest.approx(min(expected, limit or np.inf), rel=1e-12)
    assert list(threshold.arrived) == norms[-history:].tolist()


def test_without_a_percentile_the_limit_alone_counts_and_nothing_is_kept():
    for mode in ("batch", "sample"):
        threshold = Threshold(clip(100.0, 2.0, mode=mode))
        assert [threshold.after(norm) for norm in (1.0, 5.0, 0.1)] == [2.0, 2.0, 2.0]
        assert not threshold.arrived


def test_percentile_100_never_changes_a_bit_and_the_first_step_is_its_own_threshold():
    for percentile in (100.0, 0.0):
        threshold = Threshold(clip(percentile))
        for scale in (1.0, 7.0, 100.0) if percentile else (1.0,):
            gradients = [scale * torch.arange(1.0, 9.0)]
            before = gradients[0].clone()
            assert clip_batch(gradients, threshold)
            assert torch.equal(gradients[0], before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_norm_that_is_not_finite_rejects_the_step_and_leaves_the_history(bad):
    threshold = Threshold(clip(), [1.0, 2.0])
    assert not clip_batch([torch.tensor([1.0, bad])], threshold)
    assert list(threshold.arrived) == [1.0, 2.0]


@pytest.mark.parametrize("trained", [("conv1", "conv2", "fc1", "fc2"), ("conv2", "fc1"), ("fc2",)])
@pytest.mark.parametrize(("percentile", "most"), [(30.0, None), (99.0, None), (100.0, 1.5)])
def test_per_sample_clipping_equals_one_backward_per_sample(trained, percentile, most):
    model = models.build("cnn", (1, 8, 8), 10, seed=1)
    for name, layer in model.named_children():
        layer.requires_grad_(name in trained)
    parameters = [p for p in model.parameters() if p.requires_grad]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(7, 1, 8, 8, generator=generator)
    y = torch.randint(10, (7,), generator=generator)
    each = []
    for i in range(7):
        loss = cross_entropy(model(x[i : i + 1]), y[i : i + 1])
        each.append(torch.autograd.grad(loss, parameters))
    norms = np.array([float(torch.cat([g.flatten() for g in gs]).double().norm()) for gs in each])
    history = [0.1, 0.2]
    limit = most or np.percentile([*history, norms.mean()], percentile)
    assert (norms > limit).any()
    factors = np.minimum(1, limit / norms)
    expected = [
        sum(float(f) * gs[k] for f, gs in zip(factors, each, strict=True)) / 7
        for k in range(len(parameters))
    ]
    threshold = Threshold(clip(percentile, most, mode="sample"), history)
    samples = SampleGradients(model)
    assert samples.clip(cross_entropy(model(x), y), threshold)
    samples.close()
    for parameter, value in zip(parameters, expected, strict=True):
        torch.testing.assert_close(parameter.grad, value, rtol=1e-4, atol=1e-6)
    remembered = history if most else [*history, norms.mean()]
    assert [*threshold.arrived] == pytest.approx(remembered, rel=1e-5)


def test_sample_mode_refuses_a_trained_batchnorm():
    model = models.build("lenet5", (1, 8, 8), 10, seed=0)
    with pytest.raises(ValueError, match=r'clip-mode = "sample".*BatchNorm2d.*"batch"'):
        SampleGradients(model)


def small(**conv):
    """Two trained layers for images [b, 2, 6, 6]."""
    torch.manual_seed(0)
    first = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1, **conv), nn.ReLU(), nn.Flatten())
    return nn.Sequential(OrderedDict(a=first, b=nn.Linear(144, 3)))


def trainer_of(model):
    layout = layout_of(model, 1, "shared", False)
    return Trainer(profile(model, layout, (2, 6, 6)), 4)


def clipped_stage(most=1e9, layers=("a", "b")):
    limit = clip(100.0, most, mode="sample")
    return Stage(layers=layers, epochs=1, lr=0.1, clip=limit, passes=2)


def images_of(n=8):
    generator = torch.Generator().manual_seed(3)
    images = torch.randn(n, 2, 6, 6, generator=generator)
    return images, torch.randint(3, (n,), generator=generator)


def beside(model):
    offset = nn.Parameter(torch.zeros(3))
    return Objective(forward=lambda m, x, layers: run(m, x, layers) + offset, parameters=(offset,))


def two_gradients(model):
    return Objective(gradients=lambda backward, batches: [*map(backward, batches)], batches=2)


def gradient_before(model):
    def gradients(backward, batches):
        model.b.bias.grad = torch.ones(3)
        backward(batches[0])

    return Objective(gradients=gradients)


def forward(function):
    return lambda model: Objective(forward=function)


def penalty(of):
    return lambda model: Objective(loss=lambda x, y: cross_entropy(x, y) + of(model))


PENALTY = "the loss uses weights outside of their layer, such as in a penalty"


@pytest.mark.parametrize(("make", "what"), [
    (beside, "the objective has parameters beside the model"),
    (two_gradients, "a step has gradients of more than one loss"),
    (gradient_before, "a step has gradients of more than one loss"),
    (forward(lambda m, x, layers: run(m, x, layers) + run(m, x.flip(-1), layers)),
     "a step runs a Conv2d twice"),
    (forward(lambda m, x, layers: m.b(m.a(x)) + m.b(torch.ones(len(x), 144))),
     "a step runs a Linear twice"),
    (penalty(lambda model: sum(p.square().sum() for p in model.parameters())), PENALTY),
    (penalty(lambda model: model.b.bias.abs().sum()), PENALTY),
    (forward(lambda m, x, layers: linear(m.a(x), m.b.weight)), PENALTY),
])  # fmt: skip
def test_sample_mode_refuses_a_step_whose_gradients_would_be_wrong(make, what):
    """In batch mode the same step is right, so it trains."""
    model = small()
    trainer = trainer_of(model)
    with pytest.raises(ValueError) as caught:
        trainer.train(images_of(), (clipped_stage(),), DRAW, make(model))
    assert str(caught.value) == f'clip-mode = "sample": {what}; use "batch"'
    assert not any(m._forward_hooks for m in model.modules())
    stage = replace(clipped_stage(), clip=clip(100.0, 1e9))
    assert trainer.train(images_of(), (stage,), DRAW, make(model)).batches


@pytest.mark.parametrize(("conv", "what"), [
    ({"padding_mode": "circular"}, "padding_mode=circular"),
    ({"padding_mode": "reflect"}, "padding_mode=reflect"),
    ({"groups": 2}, "groups=2"),
])  # fmt: skip
def test_a_convolution_that_sample_mode_does_not_know_is_refused(conv, what):
    trainer = trainer_of(small(**conv))
    text = f'^clip-mode = "sample": a trained layer has Conv2d with {what}; use "batch"$'
    with pytest.raises(ValueError, match=text):
        trainer.check(clipped_stage())
    trainer.check(clipped_stage(layers=("b",)))  # a frozen one needs no gradients


@pytest.mark.filterwarnings("ignore:.*weight_norm")
@pytest.mark.parametrize(("make", "what"), [
    (lambda: Halved(8, 3), "Halved with a forward"),
    (lambda: Centred(1, 2, 3), "Centred with a forward"),
    (lambda: nn.utils.weight_norm(nn.Linear(8, 3)), "Linear with a forward or weights of its own"),
    (lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3)), "ParametrizedLinear with"),
], ids=["Halved", "Centred", "weight_norm", "spectral_norm"])  # fmt: skip
def test_sample_mode_refuses_what_computes_something_else_than_its_class(make, what):
    layer = make()
    with pytest.raises(ValueError, match=f'^clip-mode = "sample": a trained layer has {what}'):
        SampleGradients(nn.Sequential(nn.Linear(8, 8), layer))
    SampleGradients(nn.Sequential(Named(8, 8), layer.requires_grad_(False))).close()


def test_sample_mode_refuses_a_linear_layer_on_tokens():
    model = nn.Sequential(nn.Flatten(2), nn.Linear(36, 5), nn.Flatten(), nn.Linear(10, 3))
    SampleGradients(model)
    images, _ = images_of()
    text = r'^clip-mode = "sample": a Linear gets 3 dimensions, not \[samples, features\]; use "ba'
    with pytest.raises(ValueError, match=text):
        model(images)


def one_by_one(model, loss_of, x, y, most):
    """The mean of clipped gradients, by one backward per sample."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    mean = [torch.zeros_like(p) for p in parameters]
    for i in range(len(x)):
        loss = loss_of(model, x[i : i + 1], y[i : i + 1])
        found = torch.autograd.grad(loss, parameters, allow_unused=True)
        own = [
            torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)
        ]
        norm = float(torch.cat([g.flatten() for g in own]).norm())
        for total, g in zip(mean, own, strict=True):
            total += g * min(1.0, most / norm) / len(x)
    return mean


def with_penalty_on_logits(model, x, y):
    logits = model(x)
    return cross_entropy(logits, y) + 0.1 * logits.square().sum(1).mean()


def distilled(model, x, y):
    """Another pass without gradients is no second one."""
    with torch.no_grad():
        teacher = model(x.flip(-1))
    logits = model(x)
    return cross_entropy(logits, y) + (logits - teacher).square().sum(1).mean()


def of_the_body(model, x, y):
    """The head is not run at all."""
    return cross_entropy(model.a(x).unflatten(1, (4, 36)).mean(2)[:, :3], y)


@pytest.mark.parametrize("loss_of", [with_penalty_on_logits, distilled, of_the_body])
def test_sample_mode_is_right_for_other_losses_that_are_means_over_samples(loss_of):
    model, (x, y) = small(), images_of()
    expected = one_by_one(model, loss_of, x, y, most=0.5)
    samples = SampleGradients(model)
    for _ in range(2):  # what an earlier step has seen does not count
        model.zero_grad()
        assert samples.clip(loss_of(model, x, y), Threshold(clip(100.0, 0.5, mode="sample")))
    samples.close()
    for parameter, value in zip(model.parameters(), expected, strict=True):
        found = torch.zeros_like(value) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("mode", [None, "batch", "sample"])
@pytest.mark.parametrize("trained", [("conv1", "conv2", "fc1", "fc2"), ("conv2", "fc2"), ("fc2",)])
def test_train_macs_are_those_that_torch_counts(mode, trained):
    """Of a real training: all of its passes, steps and per-sample gradients."""
    model = models.build("cnn", (1, 12, 12), 10, seed=1)
    facts = profile(model, layout_of(model, 1, "shared", False), (1, 12, 12))
    trainer = Trainer(facts, 4, cache_bytes=2**20)
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(10, 1, 12, 12, generator=generator), torch.arange(10)
    limit = mode and clip(50.0, 1.0, mode=mode)
    stages = (Stage(layers=trained, epochs=2, lr=0.01, clip=limit),)
    done = trainer.train(data, stages, DRAW)  # also traces what is traced once
    with FlopCounterMode(display=False) as counter:
        again = trainer.train(data, stages, DRAW)
    assert done.macs == again.macs == counter.get_total_flops() / 2
