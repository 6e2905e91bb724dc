"""FedALA: Zhang et al. 2023, Algorithm 1 (docs/papers/fedala.md)."""

import numpy as np
import torch

from tests.twins.common import by_size, loss_of, rounds, scored, state, trained, unfrozen, usable
from tests.twins.harness import Outcome

SETTINGS = {
    "plain": "fedala.ala-lr=2.0 fedala.threshold=0.02",
    "momentum": "fedala.ala-layers=2 fedala.sample-percent=60",
}


class Local:
    """Adaptive local aggregation: theta = theta_l + (theta_g - theta_l) W in the top p layers."""

    def __init__(self, world, received):
        self.world, self.received = world, received
        self.top = world.names[-world["fedala.ala-layers"] :]
        named = world.model().named_parameters()
        self.keys = [name for name, _ in named if name.split(".")[0] in self.top]

    def mixture(self, old, weights):
        new = {k: old[k] + (self.received[k] - old[k]) * weights[k] for k in self.keys}
        return self.world.model(self.received, new)

    def learn(self, t, i, old, weights):
        """Learn W; without one, from 1 until the loss has converged."""
        world, start = self.world, weights is None
        weights = {k: torch.ones_like(old[k]) for k in self.keys} if start else dict(weights)
        x, y = world.data(i)
        size = max(1, len(y) * world["fedala.sample-percent"] // 100)
        drawn = world.generator("fedala", t, i).choice(len(y), size, replace=False)
        parts = world.order("ala", t, i, 0, size).split(world.s.batch_size)
        chosen = [torch.from_numpy(drawn)[part] for part in parts]
        model, losses = self.mixture(old, weights), []
        asked = unfrozen(model, self.top)  # their BatchNorms normalize by the batch
        batches = usable(model, [(x[some], y[some]) for some in chosen])
        for _ in range(world["fedala.max-epochs"] if start else 1):
            for batch in batches:
                loss = loss_of(model, *batch)
                gradients = torch.autograd.grad(loss, asked)
                for k, g in zip(self.keys, gradients, strict=True):
                    step = world["fedala.ala-lr"] * g * (self.received[k] - old[k])
                    weights[k] = (weights[k] - step).clamp(0, 1)
                model.load_state_dict(model.state_dict() | state(self.mixture(old, weights)))
            losses.append(float(loss))
            if len(losses) > 10 and np.std(losses[-10:]) < world["fedala.threshold"]:
                break
        return weights


def fedala(world):
    """FedAvg, but a client starts from a learned mixture of its old and the received model."""
    server, old, weights = world.initial, {}, {}
    for t, chosen, lr in rounds(world):
        sent = {}
        for i in chosen:
            ala, model = Local(world, server), world.model(server)
            if i in old:
                weights[i] = ala.learn(t, i, old[i], weights.get(i))
                model = ala.mixture(old[i], weights[i])
            sent[i] = trained(world, model, world.training(t, i), lr)
            old[i] = {k: sent[i][k] for k in ala.keys}
        server = by_size(world, sent)
    ala = Local(world, server)
    ones = {k: torch.ones_like(world.initial[k]) for k in ala.keys}

    def received(i):
        return ala.mixture(old[i], weights.get(i, ones)) if i in old else world.model(server)

    def personalized(world, model, i):
        return ala.mixture(old[i], ala.learn(t, i, old[i], weights.get(i))) if i in old else model

    kept = {
        i: {
            f"{name}/{k}": v
            for name, own in (("theta_l", old), ("W", weights))
            for k, v in own.get(i, {}).items()
        }
        for i in old
    }
    return Outcome(server, kept, scored(world, received, personalized))
