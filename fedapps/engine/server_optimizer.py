"""Optimizers of the server: the mean of the clients' updates is a gradient, with which it steps.

Reddi et al., Adaptive Federated Optimization, ICLR 2021 (Algorithm 2: FedAdam, -Adagrad, -Yogi);
Hsu, Qi, Brown, Measuring the Effects of Non-Identical Data Distribution, 2019 (FedAvgM).
"""

from collections.abc import Callable

import numpy as np

from fedapps.core.settings import Settings
from fedapps.models.layers import Arrays, Layout

FIRST, SECOND = "server/m/", "server/v/"  # prefixes in a strategy's state
MOMENTUM_LR, ADAPTIVE_LR = 1.0, 0.01  # with server-lr = 0

# v_t from v_{t-1}, Delta_t^2 and beta_2 (Algorithm 2, lines 10 to 12)
SECOND_MOMENTS: dict[str, Callable[[np.ndarray, np.ndarray, float], np.ndarray]] = {
    "adagrad": lambda v, square, beta: v + square,
    "adam": lambda v, square, beta: beta * v + (1 - beta) * square,
    "yogi": lambda v, square, beta: v - (1 - beta) * square * np.sign(v - square),
}


class ServerOptimizer:
    """Steps from the server's model with Delta_t, the difference of the clients' mean from it.

    Momentum: m <- beta_1 m + Delta, w <- w + lr m. The others: m <- beta_1 m + (1 - beta_1) Delta,
    v by `SECOND_MOMENTS`, w <- w + lr m / (sqrt(v) + tau); v begins with tau^2, and there is no
    correction of the bias, as in the paper. BatchNorm statistics are no parameters, so they take
    the mean. State: `server/m/<key>`, `server/v/<key>` (float64), in `state`, which checkpoints
    save.
    """

    def __init__(self, settings: Settings, layout: Layout, state: Arrays) -> None:
        self.settings, self.state = settings, state
        self.parameters = frozenset(layout.parameters)
        usual = MOMENTUM_LR if settings.server_optimizer == "momentum" else ADAPTIVE_LR
        self.lr = settings.server_lr or usual

    def new(self, old: Arrays, means: Arrays) -> Arrays:
        """Return the new values (float32) of arrays, from their old values and clients' means."""
        if self.settings.server_optimizer == "none":
            return means
        return {
            key: self._stepped(key, old[key], mean) if key in self.parameters else mean
            for key, mean in means.items()
        }

    def _stepped(self, key: str, old: np.ndarray, mean: np.ndarray) -> np.ndarray:
        delta = mean.astype(np.float64) - old
        # Written so that momentum with lr 1 and beta 0 is the mean, to the last bit.
        return (mean + (self._step(key, delta) - delta)).astype(np.float32)

    def _step(self, key: str, delta: np.ndarray) -> np.ndarray:
        s, name = self.settings, self.settings.server_optimizer
        before = self.state.get(FIRST + key, 0.0)
        if name == "momentum":
            self.state[FIRST + key] = m = s.server_beta1 * before + delta
            return self.lr * m
        self.state[FIRST + key] = m = s.server_beta1 * before + (1 - s.server_beta1) * delta
        begin = np.full(delta.shape, s.server_tau**2)
        v = SECOND_MOMENTS[name](self.state.get(SECOND + key, begin), delta**2, s.server_beta2)
        self.state[SECOND + key] = v
        return self.lr * m / (np.sqrt(v) + s.server_tau)
