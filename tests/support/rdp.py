"""Renyi differential privacy by its formulas, beside the accountant of the runs."""

import numpy as np
from scipy.special import gammaln, logsumexp


def to_epsilon(orders: np.ndarray, rdp: np.ndarray, delta: float) -> float:
    """Return the least epsilon of all orders: Canonne, Kamath, Steinke 2020, Proposition 12."""
    more = np.log1p(-1 / orders) - (np.log(delta) + np.log(orders)) / (orders - 1)
    return float((rdp + more).min())


def sampled_gaussian(q: float, z: float, orders: np.ndarray) -> np.ndarray:
    """Return the RDP of Poisson sampling with rate q: Mironov et al. 2019, for whole orders."""
    found = []
    for order in orders:
        k = np.arange(order + 1)
        logs = gammaln(order + 1) - gammaln(k + 1) - gammaln(order - k + 1)
        logs += k * np.log(q) + (order - k) * np.log1p(-q) + k * (k - 1) / (2 * z**2)
        found.append(logsumexp(logs) / (order - 1))
    return np.array(found)
