"""FedDBE's client: the memory of its bias (PRBM), and the mean regularization (MR)."""

import torch
from torch import Tensor, nn

from fedapps.method import BaseClient, Costs, CutModel, Objective, Plan, Slice, run
from strategies.feddbe import Settings


class Shifted(CutModel):
    """A model that adds a memory to its features: head(body(x) + memory)."""

    memory: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs [b, ...]."""
        outputs: Tensor = self.head(self.body(x) + self.memory)
        return outputs


class FedDBEClient(BaseClient):
    """It trains f, g and its memory zbar^p on L(g(f(x) + zbar^p), y) + kappa MR."""

    options: Settings

    def setup(self) -> None:
        """The memory and the running mean are 0."""
        space = self.workspace
        self.running = torch.zeros(space.feature_shape, device=space.torch_device)
        self.memory = nn.Parameter(self.running)

    def before_training(self, plan: Plan) -> Costs:
        """Load zbar^p, at first 0, and zbar^g, at first unknown; the running mean is 0."""
        self.running = torch.zeros_like(self.running)
        kept, mean = self.kept("memory/").get("z"), self.received.get("z/mean")
        self.memory = nn.Parameter(self.running if kept is None else self.running.new_tensor(kept))
        self.aim = None if mean is None else self.running.new_tensor(mean)
        return Costs()

    before_scoring = before_training

    def keeps(self, plan: Plan) -> list[str]:
        """What the initialization trains is dropped."""
        return [] if plan.sends else super().keeps(plan)

    def objective(self, phase: str) -> Objective:
        """Train zbar^p beside the model, if there is a zbar^g."""
        beside = () if self.aim is None else (self.memory,)
        return Objective(
            self.regularized, forward=self.shifted, parameters=beside, after_step=self.note
        )

    def shifted(self, model: nn.Module, x: Tensor, layers: Slice) -> Tensor:
        """Return g(f(x) + zbar^p); note (1 - mu) times the running mean, plus mu mean(f(x))."""
        z = self.run_body(model, x, layers)
        self.mean = torch.lerp(self.running, z.mean(0), self.options.mean_momentum)
        return run(model, z if self.aim is None else z + self.memory, self.layout.head)

    def regularized(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Add kappa/2 times the mean squared distance of the running mean to zbar^g."""
        loss = self.loss(outputs, targets)
        if self.aim is None:
            return loss
        return loss + self.options.kappa / 2 * (self.mean - self.aim).square().mean()

    def note(self, model: nn.Module) -> None:
        """Go on from the running mean, without its gradient."""
        self.running = self.mean.detach()

    def after_training(self, plan: Plan) -> Costs:
        """Send the running mean at first; later keep zbar^p."""
        if plan.sends:
            self.sends["z/mean"] = self.running.cpu().numpy()
        else:
            self.remember("memory/", {"z": self.memory.detach().cpu().numpy()})
        return Costs()

    def module(self) -> nn.Module:
        """The model with the memory."""
        return Shifted(self.model, self.layout, memory=self.memory.detach())
