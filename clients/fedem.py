"""FedEM's client: it keeps its weights pi, and trains each component on its share of samples."""

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.method import (
    Arrays,
    BaseClient,
    Costs,
    Objective,
    Plan,
    TrainingStats,
    chunks,
    put,
    take,
)
from strategies.fedem import Settings


class Mixture(nn.Module):
    """Components whose probabilities are mixed by weights pi [M]."""

    pi: Tensor

    def __init__(self, components: list[nn.Module], pi: Tensor) -> None:
        super().__init__()
        self.components = nn.ModuleList(components)
        self.register_buffer("pi", pi)

    def forward(self, x: Tensor) -> Tensor:
        """Return log sum_m pi_m softmax(h_m(x)) [b, classes]."""
        logs = torch.stack([h(x).log_softmax(1) for h in self.components])
        return (logs + self.pi.log()[:, None, None]).logsumexp(0)


class FedEMClient(BaseClient):
    """E-step, M-step of pi, then E epochs of each component on its weighted loss (Alg. 1)."""

    options: Settings
    place = 0
    found: Tensor | None = None

    def components(self) -> list[Arrays]:
        """Return the components as they were received; the first one is the model."""
        names = self.layout.names
        found = [take(self.model, self.layout.keys_of(names))]
        for m in range(2, self.options.components + 1):
            start = {k: self.received.get(f"c{m}/{k}", v) for k, v in found[0].items()}
            found.append(start | self.kept(f"norms{m}/"))
        return found

    def before_training(self, plan: Plan) -> Costs:
        """Compute q [n, M], and keep pi, its mean over the samples."""
        self.q, pi = self.expected()
        self.remember("em/", {"pi": pi.cpu().numpy()})
        return self.cost()

    def expected(self) -> tuple[Tensor, Tensor]:
        """q_sm is proportional to pi_m exp(-l(h_m(x_s), y_s)); return q and the new pi."""
        (x, y), losses, self.starts = self.train_data, [], self.components()
        for arrays in self.starts:
            put(self.model, arrays)
            with torch.no_grad():
                outputs = torch.cat([self.model(chunk) for chunk in chunks(x)])
            losses.append(self.task.losses(outputs, y))
        put(self.model, self.starts[0])
        q = (self.pi().log() - torch.stack(losses, 1)).softmax(1)
        return q, q.mean(0)

    def pi(self) -> Tensor:
        """Return the weights that the client has found last, at first 1 / M."""
        if self.found is not None:
            return self.found
        even = np.full(self.options.components, 1 / self.options.components, np.float32)
        return torch.tensor(self.kept("em/").get("pi", even), device=self.workspace.torch_device)

    def train(self, *arguments: Any, **more: Any) -> TrainingStats:
        """Train on places instead of labels, so that the loss finds each sample's q."""
        x, y = self.train_data
        places = torch.arange(len(y), device=y.device)
        return super().train(*arguments, **more | {"data": (x, places)})

    def objective(self, phase: str) -> Objective:
        """The loss of each sample, weighted by q of the component that is trained."""
        return Objective(self.weighted)

    def weighted(self, outputs: Tensor, places: Tensor) -> Tensor:
        """Return the mean of q_sm l(h_m(x_s), y_s) over a batch."""
        return (
            self.q[places, self.place] * self.task.losses(outputs, self.train_data[1][places])
        ).mean()

    def after_training(self, plan: Plan) -> Costs:
        """Train the other components in the same way, and send them."""
        names, done = self.layout.names, Costs()
        for m, start in enumerate(self.starts[1:], 2):
            put(self.model, start)
            self.place = m - 1
            done.spend(self.train(plan, f"component{m}", self.objective("train")))
            shared = take(self.model, self.layout.shared(names))
            self.sends |= {f"c{m}/{key}": value for key, value in shared.items()}
            self.remember(f"norms{m}/", take(self.model, self.layout.personal(names)))
        return done

    def before_scoring(self, plan: Plan) -> Costs:
        """Find pi by one E-step, if the client has never trained."""
        if self.kept("em/"):
            return Costs()
        self.found = self.expected()[1]
        return self.cost()

    def cost(self) -> Costs:
        """All components on all training samples."""
        macs = self.workspace.trainer.profile.forward_macs(self.layout.names)
        return Costs(macs=macs * len(self.train_data[1]) * self.options.components)

    def module(self) -> nn.Module:
        """The mixture of the received components."""
        parts = []
        for arrays in self.components():
            parts.append(copy.deepcopy(self.model))
            put(parts[-1], arrays)
        return Mixture(parts, self.pi()).eval()

    def predict(self, inputs: Tensor) -> Tensor:
        """Return log probabilities of the mixture."""
        outputs: Tensor = self.module()(inputs)
        return outputs
