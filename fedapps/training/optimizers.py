"""Optimizers, which turn gradients into steps: one class each, and a table of their names.

`torch.optim` has classes that compute the same. But the first one that a process creates imports
torch's compiler: 3.9 s in every worker, with torch 2.15, whose own import takes 2.8 s. So the
classes here call the same kernels through torch's functional forms. Another optimizer needs a class
here, a line in `OPTIMIZERS`, and its name at `optimizer` in `core/settings.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd

from fedapps.training.plan import Stage


class Optimizer(ABC):
    """Moves parameters along their `.grad`; a new object has new state (momentum, averages).

    In a step, a parameter without a gradient stays as it is, and so does its state.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], stage: Stage) -> None:
        self.parameters: list[Tensor] = [*parameters]
        self.stage = stage
        self.state: dict[int, tuple[Tensor | None, ...]] = {}  # by the place of the parameter

    @torch.no_grad()
    def step(self) -> None:
        """Take one step along the gradients and drop them."""
        moved = {i: p for i, p in enumerate(self.parameters) if p.grad is not None}
        for i, parameter in moved.items():
            if i not in self.state:
                self.state[i] = self._new_state(parameter)
        if moved:
            gradients = [_gradient(parameter) for parameter in moved.values()]
            states = [list(column) for column in zip(*(self.state[i] for i in moved), strict=True)]
            self._move([*moved.values()], gradients, *states)
        self.drop()

    def drop(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @abstractmethod
    def _new_state(self, parameter: Tensor) -> tuple[Tensor | None, ...]:
        """Return what is kept of a parameter from step to step, before its first step."""

    @abstractmethod
    def _move(self, parameters: list[Tensor], gradients: list[Tensor], *states: list[Any]) -> None:
        """Change parameters and their states in place; `states` has a list for each kind."""


class Sgd(Optimizer):
    """SGD with the stage's momentum and weight decay (`torch.optim.SGD`)."""

    def _new_state(self, parameter: Tensor) -> tuple[Tensor | None, ...]:
        return (torch.zeros_like(parameter) if self.stage.momentum else None,)

    def _move(self, parameters: list[Tensor], gradients: list[Tensor], *states: list[Any]) -> None:
        (buffers,) = states
        sgd(
            parameters,
            gradients,
            buffers,
            lr=self.stage.lr,
            momentum=self.stage.momentum,
            weight_decay=self.stage.weight_decay,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            fused=True,
        )


class Adam(Optimizer):
    """Adam with torch's defaults: beta1 0.9, beta2 0.999, eps 1e-8 (`torch.optim.Adam`).

    The stage's weight decay is added to the gradient (L2); its momentum has no effect.
    """

    kernel: Callable[..., None] = staticmethod(adam)

    def _new_state(self, parameter: Tensor) -> tuple[Tensor | None, ...]:
        """Return the means of g and of g^2, and the number of steps."""
        steps = torch.zeros((), device=parameter.device)
        return torch.zeros_like(parameter), torch.zeros_like(parameter), steps

    def _move(self, parameters: list[Tensor], gradients: list[Tensor], *states: list[Any]) -> None:
        means, squares, steps = states
        self.kernel(
            parameters,
            gradients,
            means,
            squares,
            [],  # the largest mean squares: only for AMSGrad
            steps,
            lr=self.stage.lr,
            beta1=0.9,
            beta2=0.999,
            eps=1e-8,
            weight_decay=self.stage.weight_decay,
            amsgrad=False,
            maximize=False,
            fused=True,
        )


class AdamW(Adam):
    """Adam with the stage's weight decay applied to the weights themselves (`torch.optim.AdamW`).

    The default of the weight decay is the run's, 0, and not the 0.01 of `torch.optim.AdamW`.
    """

    kernel = staticmethod(adamw)


OPTIMIZERS: dict[str, type[Optimizer]] = {"sgd": Sgd, "adam": Adam, "adamw": AdamW}


def optimizer(parameters: Sequence[nn.Parameter], stage: Stage) -> Optimizer:
    """Return a new optimizer for a stage.

    Raises ValueError for a name that is not in the table, and for a momentum that would have no
    effect.
    """
    if stage.optimizer not in OPTIMIZERS:
        names = ", ".join(OPTIMIZERS)
        raise ValueError(f'optimizer = "{stage.optimizer}": must be one of {names}')
    if stage.momentum and stage.optimizer != "sgd":
        raise ValueError(
            f'momentum = {stage.momentum}: no effect on optimizer = "{stage.optimizer}"; use 0'
        )
    return OPTIMIZERS[stage.optimizer](parameters, stage)


def _gradient(parameter: Tensor) -> Tensor:
    """Return a gradient in the memory format of its parameter, which fused kernels rely on."""
    gradient = parameter.grad
    assert gradient is not None
    if gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
