"""Per-FedAvg's client: meta steps, first order or Hessian-free (Fallah et al., Section 5)."""

from collections.abc import Iterable

import torch
from torch import Tensor

from fedapps.method import Backward, BaseClient, Objective, Samples, restored
from strategies.perfedavg import Settings


class PerFedAvgClient(BaseClient):
    """A step uses consecutive batches D, D' (first order) or D, D', D'' (Hessian-free)."""

    options: Settings

    def objective(self, phase: str) -> Objective:
        """Take meta steps in training; personalization is plain SGD."""
        if phase != "train":
            return super().objective(phase)
        if self.options.mode == "fo":
            return Objective(self.loss, gradients=self.first_order, batches=2)
        return Objective(self.loss, gradients=self.hessian_free, batches=3)

    def first_order(self, backward: Backward, batches: list[Samples]) -> None:
        """First order: grad f(theta - alpha grad f(theta; D); D')."""
        inner = self.gradient(backward, batches[0])
        self.set_gradients(self.gradient(backward, batches[1], inner, -self.settings.lr))

    def hessian_free(self, backward: Backward, batches: list[Samples]) -> None:
        """g - alpha (grad f(theta + d g; D'') - grad f(theta - d g; D'')) / (2 d), d = delta.

        g is the first-order gradient.
        """
        inner, delta = self.gradient(backward, batches[0]), self.options.delta
        g = self.gradient(backward, batches[1], inner, -self.settings.lr)
        above = self.gradient(backward, batches[2], g, delta)
        below = self.gradient(backward, batches[2], g, -delta)
        difference = torch._foreach_sub(above, below)
        factor = -self.settings.lr / (2 * delta)
        self.set_gradients(torch._foreach_add(g, difference, alpha=factor))

    @torch.no_grad()
    def gradient(
        self,
        backward: Backward,
        batch: Samples,
        direction: Iterable[Tensor] = (),
        scale: float = 0.0,
    ) -> tuple[Tensor, ...]:
        """Return grad f(theta + scale direction; batch), without changing theta."""
        trained = self.trainable
        with restored(trained):
            for parameter, way in zip(trained, direction, strict=False):
                parameter.add_(way, alpha=scale)
            with torch.enable_grad():
                backward(batch)
        found = tuple(p.grad if p.grad is not None else torch.zeros_like(p) for p in trained)
        for parameter in trained:
            parameter.grad = None
        return found

    def set_gradients(self, values: Iterable[Tensor]) -> None:
        """Set the gradients of the step to `values`."""
        for parameter, value in zip(self.trainable, values, strict=True):
            parameter.grad = value
