"""AutoClip against a few lines of NumPy; per-sample clipping against one backward per sample."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from fedapps import models
from fedapps.training.clipping import SampleGradients, Threshold, clip_batch
from fedapps.training.plan import Clip


def clip(percentile=90.0, max_norm=None, mode="batch", history=10_000) -> Clip:
    return Clip(percentile=percentile, max_norm=max_norm, mode=mode, history=history)


@given(
    st.integers(0, 2**32 - 1),
    st.floats(0, 100, exclude_max=True),
    st.one_of(st.none(), st.floats(0.1, 5)),
    st.integers(1, 1200),
)
def test_threshold_is_numpys_percentile_over_a_thousand_random_steps(
    seed, percentile, limit, history
):
    norms = np.random.default_rng(seed).lognormal(size=1000)
    threshold = Threshold(clip(percentile, limit, history=history))
    found = [threshold.after(norm) for norm in norms]
    for step in (0, 1, 2, 10, 499, 998, 999):
        expected = np.percentile(norms[max(0, step + 1 - history) : step + 1], percentile)
        assert found[step] == pytest.approx(min(expected, limit or np.inf), rel=1e-12)
    assert list(threshold.arrived) == norms[-history:].tolist()


@given(st.integers(0, 2**32 - 1), st.floats(1, 99), st.floats(0.5, 3))
def test_no_step_is_longer_than_its_threshold_and_short_ones_are_untouched(seed, percentile, mu):
    generator = torch.Generator().manual_seed(seed)
    threshold, norms = Threshold(clip(percentile, mu)), []
    for _ in range(50):
        gradients = [torch.randn(3, 4, generator=generator), torch.randn(5, generator=generator)]
        before = [g.double().clone() for g in gradients]
        norm = float(torch.cat([g.flatten() for g in before]).norm())
        norms.append(norm)
        assert clip_batch(gradients, threshold)
        limit = min(np.percentile(norms, percentile), mu)
        factor = min(1.0, limit / norm)
        for g, old in zip(gradients, before, strict=True):
            torch.testing.assert_close(g.double(), old * factor, rtol=1e-5, atol=1e-7)
        if norm <= limit * (1 - 1e-6):
            assert all(
                torch.equal(g.double(), old) for g, old in zip(gradients, before, strict=True)
            )


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
