"""FedDyn's client: it keeps g_i, the gradient memory of its dynamic regularizer."""

import numpy as np
import torch

from fedapps.method import Backward, BaseClient, Costs, Objective, Plan, Samples
from strategies.feddyn import Settings


class FedDynClient(BaseClient):
    """It subtracts g_i from every gradient; g_i starts at 0 and is kept as `g/<key>` (float64)."""

    options: Settings

    def of_one_run(self) -> tuple[str, ...]:
        """Drop g_i: the server's mean of all g_i also starts at 0 in every run."""
        return ("g/",)

    def objective(self, phase: str) -> Objective:
        """Add the linear term of the dynamic regularizer; personalization is plain SGD."""
        if phase != "train":
            return super().objective(phase)
        device = self.workspace.torch_device
        memory = {k: torch.from_numpy(g).float().to(device) for k, g in self.kept("g/").items()}

        def gradients(backward: Backward, batches: list[Samples]) -> None:
            backward(batches[0])
            for key, parameter in self.model.named_parameters():
                if key in memory and parameter.grad is not None:
                    parameter.grad -= memory[key]

        return Objective(self.loss, gradients=gradients)

    def after_training(self, plan: Plan) -> Costs:
        """g_i -= alpha (theta_i - w), with the theta_i that the server gets and averages."""
        keys = [key for key in self.received if key in self.layout.parameters]
        g, theta, alpha = self.kept("g/"), self.upload, self.options.strength
        moved = {key: theta[key].astype(np.float64) - self.received[key] for key in keys}
        self.remember("g/", {key: g.get(key, 0.0) - alpha * moved[key] for key in keys})
        return Costs()
