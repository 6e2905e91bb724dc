"""What a method needs to run, or to run within seconds, for tests of all methods."""

import numpy as np

from fedapps.core import registry
from fedapps.method import rehearse
from tests.support.marks import THOROUGH

# Methods that differ in what travels, in what is kept, or in how clients train: mixtures, a
# server's own data, weights for each parameter, norms at home, votes, several models, activations,
# prototypes, neighbours, a network that makes models, control variates, gradients.
UNLIKE = (
    *("apfl", "centralized", "fedala", "fedbn", "fedcmd", "fedem", "fedfc", "fedproto"),
    *("knnper", "pfedhn", "scaffold", "sflv2"),
)


def each_method(leave_out=(), usual=UNLIKE) -> list:
    """Parameters of a test: all methods, but only the `usual` ones without the mark `thorough`."""
    found = [name for name in registry.names() if name not in leave_out]
    return [name if name in usual else THOROUGH(name) for name in found]


def needed(method: str) -> str:
    """Return the run-config that a method needs beside a tiny one."""
    if method == "pfedme":
        return "pfedme.local-rounds=3"
    if method == "pfedhn":  # its server trains a hundred weights for each one of the model
        return 'model="lenet5"'
    return 'model="lenet5"' if registry.strategy_class(method).needs_norms else ""


def rehearsal_of(method: str, settings):
    """Return a rehearsal of a method by its name."""
    return rehearse(registry.strategy_class(method), registry.client_class(method), settings)


def moves(made) -> bool:
    """Tell whether two rounds change what the server has, if clients send it anything."""
    strategy = made.strategy
    before = {key: value.copy() for key, value in (strategy.arrays | strategy.state).items()}
    made.rounds(2)
    now, plan = strategy.arrays | strategy.state, strategy.plan(1, 0)
    assert all(np.isfinite(value).all() for value in strategy.arrays.values())
    moved = any(key not in before or (value != before[key]).any() for key, value in now.items())
    return moved or not (plan.upload or plan.sends)
