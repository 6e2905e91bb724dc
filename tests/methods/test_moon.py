"""MOON's certain facts (docs/papers/moon.md); its twin has the formulas."""

import numpy as np


def test_round_1_is_fedavgs_and_with_mu_0_all_are(tiny_npz, serial_run, read_model):
    base = tiny_npz, "momentum=0.5 local-epochs=2"
    pairs = [("num-rounds=1", "moon.mu=5.0"), ("num-rounds=3", "moon.mu=0.0")]
    for rounds, mu in pairs:
        average = read_model(serial_run(*base, f'strategy="fedavg" {rounds}'))
        mine = read_model(serial_run(*base, f'strategy="moon" {mu} {rounds}'))
        for key, value in average.items():
            np.testing.assert_allclose(mine[key], value, atol=1e-6, err_msg=key)
    other = read_model(serial_run(*base, 'strategy="moon" moon.mu=5.0 num-rounds=3'))
    assert any(np.abs(other[key] - value).max() > 1e-3 for key, value in average.items())
