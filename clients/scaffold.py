"""SCAFFOLD's client: it corrects each gradient, and keeps its control variate c_i."""

import torch
from torch import nn

from fedapps.method import Backward, BaseClient, Costs, Objective, Plan, Samples
from strategies.scaffold import Settings


class ScaffoldClient(BaseClient):
    """y_i -= eta_l (g_i(y_i) - c_i + c); then c_i becomes the mean of the round's g_i(y_i).

    This mean is the paper's option II, c_i - c + (x - y_i) / (K eta_l), for plain SGD. Computed
    from the gradients, it is also right with momentum, weight decay, `prox-mu` and clipping.
    """

    options: Settings

    def of_one_run(self) -> tuple[str, ...]:
        """Drop c_i: the server's mean of all c_i also starts at 0 in every run."""
        return ("own/",)

    def before_training(self, plan: Plan) -> Costs:
        """Make tensors of c_i (at first 0) and c - c_i, which cost no computation to speak of."""
        keys = [name.removeprefix("c/") for name in plan.receives]
        self.w = {key: self.model.get_parameter(key) for key in keys}
        kept, self.own, self.drift = self.kept("own/"), {}, {}
        for key, w in self.w.items():
            self.own[key] = w.new_tensor(kept[key]) if kept else torch.zeros_like(w)
            self.drift[key] = w.new_tensor(self.received[f"c/{key}"]) - self.own[key]
        self.total, self.steps = {key: torch.zeros_like(w) for key, w in self.w.items()}, 0
        return Costs()

    def objective(self, phase: str) -> Objective:
        """Training is corrected; fine-tuning is not."""
        if phase != "train":
            return Objective(self.loss)
        return Objective(self.loss, gradients=self.corrected, after_step=self.one_more)

    def corrected(self, backward: Backward, batches: list[Samples]) -> None:
        """Compute g_i of the batch, note it, and add c - c_i."""
        backward(batches[0])
        self.g = {key: w.grad for key, w in self.w.items() if w.grad is not None}
        for key, g in self.g.items():
            self.w[key].grad = g + self.drift[key]

    def one_more(self, model: nn.Module) -> None:
        """Count a step that was taken, and its g_i; a rejected step is not one of them."""
        self.steps += 1
        for key, g in self.g.items():
            self.total[key] += g

    def after_training(self, plan: Plan) -> Costs:
        """Keep c_i+, the mean g_i, and send its change; without a step, c_i stays."""
        for key, own in self.own.items():
            new = self.total[key] / self.steps if self.steps else own
            self.sends[f"c/{key}"] = (new - own).cpu().numpy()
            self.remember("own/", {key: new.cpu().numpy()})
        return Costs()
