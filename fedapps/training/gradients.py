"""The gradients of a step: how they are computed, and what is done to them before the step."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fedapps.training.clipping import SampleGradients, Threshold, clip_batch, refusal


class GradientRule:
    """Sets `.grad` from a batch loss: plain, clipped as a batch, or clipped for each sample.

    Per-sample clipping is part of `backward`; batch clipping is done at the end, in `finish`.
    Per-sample clipping raises ValueError if there are parameters `beside` the model, because they
    would never get a gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: list[nn.Parameter],
        threshold: Threshold | None,
        beside: Sequence[nn.Parameter],
    ) -> None:
        self.trained, self.threshold, self.fine = trained, threshold, True
        by_sample = threshold is not None and threshold.by_sample
        if by_sample and beside:
            raise refusal("the objective has parameters beside the model")
        self.samples = SampleGradients(model) if by_sample else None

    def backward(self, value: Tensor) -> None:
        """Add the gradients of a loss to `.grad`."""
        if self.samples and self.threshold:
            self.fine &= self.samples.clip(value, self.threshold)
        else:
            value.backward()

    def finish(self) -> bool:
        """Clip the gradient of the batch if the rule says so; False: reject the step."""
        fine, self.fine = self.fine, True
        if fine and self.threshold and not self.samples:
            fine = clip_batch([p.grad for p in self.trained if p.grad is not None], self.threshold)
        return fine

    def close(self) -> None:
        """Remove the hooks of per-sample clipping from the model."""
        if self.samples:
            self.samples.close()


def add_proximal(
    parameters: Mapping[str, nn.Parameter], anchor: Mapping[str, Tensor], mu: float
) -> None:
    """Add the gradient of the proximal term (mu/2)||w - anchor||^2 (FedProx, Eq. 2)."""
    moved = {key: p.grad for key, p in parameters.items() if p.grad is not None}
    if moved:  # without gradients, the step is rejected
        values = [parameters[key].detach() for key in moved]
        apart = torch._foreach_sub(values, [anchor[key] for key in moved])
        torch._foreach_add_([*moved.values()], apart, alpha=mu)
