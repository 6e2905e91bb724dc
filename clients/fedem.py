"""FedEM's client: it keeps its weights pi, and trains each component on its share of samples."""

import torch
from torch import Tensor, nn

from fedapps.method import (
    BaseClient,
    Costs,
    Objective,
    Plan,
    Predictor,
    copied,
    features,
    put,
    take,
    under,
)
from strategies.fedem import Settings


class Mixture(Predictor):
    """Components whose probabilities are mixed by weights pi [M]."""

    components: nn.ModuleList
    pi: Tensor

    def forward(self, x: Tensor) -> Tensor:
        """Return log sum_m pi_m softmax(h_m(x)) [b, classes]."""
        logs = torch.stack([h(x).log_softmax(1) for h in self.components])
        return (logs + self.pi.log()[:, None, None]).logsumexp(0)


class FedEMClient(BaseClient):
    """E-step, M-step of pi, then E epochs of each component on its weighted loss (Alg. 1)."""

    options: Settings

    def of_one_run(self) -> tuple[str, ...]:
        """Drop pi and BatchNorm statistics: the components are other ones in every run."""
        return ("em/", "norms")

    def components(self) -> list[nn.Module]:
        """Return the components as they were received; the first one is the model."""
        found = [copied(self.model) for _ in range(self.options.components)]
        for m, component in enumerate(found[1:], 2):
            put(component, under(self.received, f"c/{m}/") | self.kept(f"norms{m}/"))
        return found

    def expect(self) -> Costs:
        """q_sm is proportional to pi_m exp(-l(h_m(x_s), y_s)); keep pi, its mean over samples."""
        (x, y), names = self.train_data, self.layout.names
        self.starts = self.components()
        outputs = [features(component, x, names) for component in self.starts]
        losses = torch.stack([self.task.losses(found, y) for found in outputs], 1)
        self.q = (self.pi().log() - losses).softmax(1)
        self.remember("em/", {"pi": self.q.mean(0).cpu().numpy()})
        return self.forward_costs(len(outputs) * len(y), names)

    def pi(self) -> Tensor:
        """Return the weights that the client has found last, at first 1 / M."""
        even = torch.full((self.options.components,), 1 / self.options.components)
        return torch.as_tensor(self.kept("em/").get("pi", even), device=self.workspace.torch_device)

    def before_training(self, plan: Plan) -> Costs:
        """Take the E-step, and the M-step of pi."""
        return self.expect()

    def before_scoring(self, plan: Plan) -> Costs:
        """Find pi by one E-step, if the client has never trained."""
        return Costs() if self.kept("em/") else self.expect()

    def objective(self, phase: str) -> Objective:
        """The loss of each sample, weighted by its q of the first component."""
        return Objective(weights=self.q[:, 0])

    def after_training(self, plan: Plan) -> Costs:
        """Train the other components in the same way, and send them."""
        names, done = self.layout.names, Costs()
        for m, start in enumerate(self.starts[1:], 2):
            put(self.model, take(start, self.layout.keys_of(names)))
            done.spend(self.train(plan, f"component{m}", Objective(weights=self.q[:, m - 1])))
            shared = take(self.model, self.layout.shared(names))
            self.sends |= {f"c/{m}/{key}": value for key, value in shared.items()}
            self.remember(f"norms{m}/", take(self.model, self.layout.personal(names)))
        return done

    def module(self) -> nn.Module:
        """The mixture of the received components."""
        return Mixture(components=self.components(), pi=self.pi())
