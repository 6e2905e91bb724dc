"""FedAP's client: it keeps its BatchNorms, and sends the statistics of their inputs once."""

import numpy as np
import torch
from torch import Tensor, nn

from fedapps.method import BaseClient, Costs, Plan, features


class FedAPClient(BaseClient):
    """It trains all layers with E epochs of SGD, and measures the inputs of its BatchNorms."""

    def before_training(self, plan: Plan) -> Costs:
        """Measure, if the plan asks for it, mean and standard deviation (ddof 0) per channel."""
        if not plan.sends:
            return Costs()
        handles, seen = [], {name: ChannelMoments() for name in plan.sends}
        for name, moments in seen.items():
            norm = self.model.get_submodule(name.removeprefix("inputs/"))
            handles.append(norm.register_forward_pre_hook(moments.watch))
        features(self.model, self.train_data[0], self.layout.names)
        for handle in handles:
            handle.remove()
        self.sends |= {name: moments.statistics() for name, moments in seen.items()}
        return self.forward_costs(len(self.train_data[1]), self.layout.names)


class ChannelMoments:
    """Mean and squared deviations per channel (float64) of inputs that come in chunks."""

    def __init__(self) -> None:
        self.size = 0
        self.mean = self.squares = torch.zeros(())

    def watch(self, module: nn.Module, args: tuple[Tensor]) -> None:
        """Add a module's inputs ([b, channels, ...]), by Chan's rule for combining two chunks."""
        values = args[0].transpose(0, 1).flatten(1).double()
        size, mean = values.shape[1], values.mean(1)
        apart, total = mean - self.mean, self.size + size
        inside = (values - mean[:, None]).square().sum(1)
        self.squares = self.squares + inside + apart.square() * (self.size * size / total)
        self.mean, self.size = self.mean + apart * (size / total), total

    def statistics(self) -> np.ndarray:
        """Return means and standard deviations (ddof 0): float32 [2, channels]."""
        both = torch.stack([self.mean, (self.squares / self.size).sqrt()])
        return both.float().cpu().numpy()
