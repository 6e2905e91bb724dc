"""MOON's client: it compares features of three models, of which it keeps one."""

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy

from fedapps.method import BaseClient, Costs, Objective, Plan, Slice, copied, put, run, take
from strategies.moon import Settings


class MOONClient(BaseClient):
    """It minimizes the loss plus mu l_con (Equations 3 and 4) with E epochs of SGD."""

    options: Settings

    def before_training(self, plan: Plan) -> Costs:
        """Copy w^t as received, and the model of the last training, at first the initial one."""
        received, last = (copied(self.model).requires_grad_(False) for _ in range(2))
        put(last, self.workspace.initial | self.kept("last-trained/"))
        self.others = received.eval(), last.eval()
        return Costs()

    def objective(self, phase: str) -> Objective:
        """Training runs two further bodies forward; fine-tuning has no contrast."""
        if phase != "train":
            return Objective(self.loss)
        macs = 2 * self.workspace.trainer.profile.forward_macs(self.layout.body)
        return Objective(self.contrasted, forward=self.compared, macs=macs)

    def compared(self, model: nn.Module, x: Tensor, layers: Slice) -> Tensor:
        """Return the outputs; note sim(z, z_glob) and sim(z, z_prev), [b, 2]."""
        with torch.no_grad():
            others = [self.run_body(other, x, layers).flatten(1) for other in self.others]
        z = self.run_body(model, x, layers)
        self.similar = torch.stack([cosine_similarity(z.flatten(1), o) for o in others], 1)
        return run(model, z, self.layout.head)

    def contrasted(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Add mu l_con: z_glob is the positive example, z_prev the negative one."""
        positive = torch.zeros(len(self.similar), dtype=torch.long, device=outputs.device)
        l_con = cross_entropy(self.similar / self.options.temperature, positive)
        return self.loss(outputs, targets) + self.options.mu * l_con

    def after_training(self, plan: Plan) -> Costs:
        """Keep the body that was trained here, for the next round's z_prev."""
        self.remember("last-trained/", take(self.model, self.layout.keys_of(self.layout.body)))
        return Costs()
