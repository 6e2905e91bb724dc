"""FedBN: Li et al. 2021, Algorithm 1."""

from tests.twins.fedper import keeping

SETTINGS = {"plain": 'model="tests/twins/models.py:normed"'}


def fedbn(world):
    """FedAvg of everything but BatchNorms (parameters and statistics), which stay."""
    return keeping(world, [k for k in world.initial if k.startswith(("conv1.1.", "fc1.1."))])
