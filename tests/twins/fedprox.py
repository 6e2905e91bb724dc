"""FedProx: Li et al. 2020, Algorithm 2 with the squared norm."""

from tests.twins.common import pulled
from tests.twins.fedavg import fedavg

SETTINGS = {"plain": "fedprox.prox-mu=0.5", "momentum": "fedprox.prox-mu=2.0"}


def fedprox(world):
    """FedAvg, with mu (theta - w) added to every gradient; w is the received model."""
    return fedavg(world, lambda received: pulled(world["fedprox.prox-mu"], received))
