"""The gradients of a step: where they come from, and what is done to them before it is taken."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedapps.training.clipping import SampleGradients, Threshold, clip_batch, refusal


class GradientRule:
    """Sets `.grad` from a batch loss: plain, clipped as a batch, or clipped per sample.

    Per sample the clipping is part of `backward`; as a batch it comes last, in `finish`. Raises
    ValueError for parameters `beside` the model per sample: they would never get a gradient.
    """

    def __init__(
        self,
        model: nn.Module,
        trained: list[nn.Parameter],
        threshold: Threshold | None,
        beside: Sequence[nn.Parameter] = (),
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
        """Clip what is to be clipped as a batch; False if the step is to be rejected."""
        fine, self.fine = self.fine, True
        if fine and self.threshold and not self.samples:
            fine = clip_batch([p.grad for p in self.trained if p.grad is not None], self.threshold)
        return fine


@contextmanager
def gradient_rule(
    model: nn.Module,
    trained: list[nn.Parameter],
    threshold: Threshold | None,
    beside: Sequence[nn.Parameter] = (),
) -> Iterator[GradientRule]:
    """Give the rule of a stage and take its hooks off the model in the end."""
    rule = GradientRule(model, trained, threshold, beside)
    try:
        yield rule
    finally:
        if rule.samples:
            rule.samples.close()


def add_proximal(
    parameters: Mapping[str, nn.Parameter], anchor: Mapping[str, Tensor], mu: float
) -> None:
    """Add the gradient of the proximal term (mu/2)||w - anchor||^2 (FedProx, Eq. 2)."""
    moved = {key: p.grad for key, p in parameters.items() if p.grad is not None}
    if moved:  # else the step is rejected
        values = [parameters[key].detach() for key in moved]
        apart = torch._foreach_sub(values, [anchor[key] for key in moved])
        torch._foreach_add_([*moved.values()], apart, alpha=mu)
