"""FedDyn's client: it keeps the gradient memory g_i of its dynamic regulariser."""

import numpy as np
import torch
from torch import Tensor

from fedapps.client import BaseClient
from fedapps.layers import take
from fedapps.plan import Plan
from fedapps.training import Backward, Objective, Samples, Trained


class FedDynClient(BaseClient):
    """Adds -g_i to every gradient; g_i starts at 0 and is kept as `g/<key>` (float64)."""

    def objective(self, phase: str) -> Objective:
        """The dynamic regulariser's linear term; personalization is plain SGD."""
        if phase != "train":
            return super().objective(phase)
        memory = {key: torch.from_numpy(g).float() for key, g in self.kept("g/").items()}

        def gradients(backward: Backward, batches: list[Samples]) -> None:
            backward(batches[0])
            for key, parameter in self.model.named_parameters():
                if key in memory and parameter.grad is not None:
                    parameter.grad -= memory[key].to(parameter.device)

        return Objective(self.loss, gradients=gradients)

    def after_training(self, plan: Plan) -> Trained:
        """g_i -= alpha (theta_i - w)."""
        keys = [key for key in self.received if key in self.layout.parameters]
        before, theta = self.kept("g/"), take(self.model, keys)
        for key in keys:
            moved = theta[key].astype(np.float64) - self.received[key]
            g: Tensor = torch.from_numpy(before.get(key, 0.0) - self.options.strength * moved)
            self.state[f"g/{key}"] = g
        return Trained()
