"""Optimizers of the server: three rounds against NumPy, identities, resuming, and refusals."""

import numpy as np
import pytest
from safetensors.numpy import load_file

from fedapps.core import config
from fedapps.engine.server_optimizer import ServerOptimizer
from fedapps.training.workspace import Workspace
from tests.support.killed import differences

RULES = ("momentum", "adam", "adagrad", "yogi")
LR, BETA1, BETA2, TAU = 0.3, 0.8, 0.95, 0.02
KEYS = f"server-lr={LR} server-beta1={BETA1} server-beta2={BETA2} server-tau={TAU}"


def by_hand(rule, w, means):
    """Algorithm 2 of Reddi et al., and FedAvgM of Hsu et al., in float64."""
    m, v = np.zeros_like(w), np.full_like(w, TAU**2)
    for mean in means:
        d = mean - w
        if rule == "momentum":
            m = BETA1 * m + d
            w = w + LR * m
            continue
        m = BETA1 * m + (1 - BETA1) * d
        if rule == "adagrad":
            v = v + d**2
        elif rule == "adam":
            v = BETA2 * v + (1 - BETA2) * d**2
        else:
            v = v - (1 - BETA2) * d**2 * np.sign(v - d**2)
        w = w + LR * m / (np.sqrt(v) + TAU)
    return w


@pytest.mark.parametrize("rule", RULES)
def test_three_rounds_are_those_of_numpy(rule, flat_config):
    """Parameters take the step; statistics of a BatchNorm take the mean."""
    settings = config.read(flat_config(f'server-optimizer="{rule}" model="lenet5" {KEYS}'))
    layout = Workspace(settings).layout
    draws = np.random.default_rng(1)
    parameter = next(key for key in layout.shapes if key in layout.parameters)
    statistic = next(key for key in layout.shapes if key not in layout.parameters)
    start = {key: draws.normal(size=9).astype("f4") for key in (parameter, statistic)}
    means = [{key: draws.normal(size=9).astype("f4") for key in start} for _ in range(3)]
    optimizer, arrays = ServerOptimizer(settings, layout, {}), dict(start)
    for mean in means:
        arrays |= optimizer.new(arrays, mean)
    expected = by_hand(rule, start[parameter].astype("f8"), [m[parameter] for m in means])
    np.testing.assert_allclose(arrays[parameter], expected, rtol=1e-5, atol=1e-6)
    assert (arrays[statistic] == means[-1][statistic]).all()


def test_a_run_is_rounds_of_the_mean_and_the_optimizer(serial_run, fits):
    """FedPer with adam: from the uploads of a run, its last model is computed by hand."""
    folder = serial_run(
        f'strategy="fedper" num-rounds=3 evaluate-every=0 server-optimizer="adam" {KEYS}'
    )
    rounds = [[fit for fit in fits if fit[2].plan.round == r] for r in (1, 2, 3)]
    weights = [[fit[3].num_examples for fit in group] for group in rounds]
    found = load_file(folder / "model.safetensors")
    assert len(fits[0][3].arrays) > 1
    for key in fits[0][3].arrays:
        uploads = [[fit[3].arrays[key].astype("f8") for fit in group] for group in rounds]
        means = [np.average(a, axis=0, weights=n) for a, n in zip(uploads, weights, strict=True)]
        expected = by_hand("adam", rounds[0][0][2].arrays[key].astype("f8"), means)
        np.testing.assert_allclose(found[key], expected, rtol=1e-4, atol=1e-6, err_msg=key)
    assert not [name for name in rounds[0][0][3].arrays if name.startswith("fc2")]  # the head


def test_a_resumed_run_goes_on_with_the_same_moments(serial_run):
    options = f'strategy="fedper" server-optimizer="yogi" {KEYS}'
    whole, folder = (serial_run(options, f"num-rounds={rounds}") for rounds in (4, 2))
    assert serial_run(options, f'num-rounds=4 resume="{folder}"') == folder
    assert differences(whole, folder) == []
