"""Helpers for methods whose `Objective.gradients` takes several inner steps in one step."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@torch.no_grad()
def descend(parameters: Iterable[nn.Parameter], lr: float) -> None:
    """Take an inner step of plain SGD, p -= lr grad, and drop the gradients.

    Use it in `Objective.gradients`, between calls of `backward`. Parameters without a gradient stay
    as they are.
    """
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.add_(parameter.grad, alpha=-lr)
            parameter.grad = None


@torch.no_grad()
def pull(
    parameters: Iterable[nn.Parameter], mu: float, anchor: Sequence[Tensor] | None = None
) -> None:
    """Add mu (p - anchor), the gradient of (mu/2)||p - anchor||^2, to the gradients.

    Without `anchor`, the pull is towards zero. Use it in `Objective.gradients`. A parameter that
    has no gradient gets this one.
    """
    for index, parameter in enumerate(parameters):
        apart = parameter.detach() - (0 if anchor is None else anchor[index])
        if parameter.grad is None:
            parameter.grad = mu * apart
        else:
            parameter.grad.add_(apart, alpha=mu)


@contextmanager
def restored(parameters: Iterable[nn.Parameter]) -> Iterator[None]:
    """Put the values of parameters back at the end; gradients stay as they are.

    Use it around inner steps.
    """
    values = [(parameter, parameter.detach().clone()) for parameter in parameters]
    try:
        yield
    finally:
        with torch.no_grad():
            for parameter, value in values:
                parameter.copy_(value)


@contextmanager
def swapped(parameters: Sequence[nn.Parameter], values: Sequence[Tensor]) -> Iterator[None]:
    """Swap the contents of parameters and `values`, and swap them back at the end.

    Inside this context, the model has the other values and can be trained. Afterwards, `values`
    holds what they have become.
    """
    _swap(parameters, values)
    try:
        yield
    finally:
        _swap(parameters, values)


@torch.no_grad()
def _swap(some: Sequence[Tensor], others: Sequence[Tensor]) -> None:
    """Swap the contents of tensors, pair by pair."""
    for one, other in zip(some, others, strict=True):
        held = one.clone()
        one.copy_(other)
        other.copy_(held)
