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

State = dict[str, Tensor | None]  # of a parameter, by the name that the kernel has for it


class Optimizer(ABC):
    """Moves parameters along their `.grad`; a new object has new state (momentum, averages).

    In a step, a parameter without a gradient stays as it is, and so does its state.
    """

    kernel: Callable[..., None]  # of torch; changes parameters and their states in place

    def __init__(self, parameters: Sequence[nn.Parameter], stage: Stage) -> None:
        self.parameters: list[Tensor] = [*parameters]
        self.stage = stage
        self.state: dict[int, State] = {}  # by the place of the parameter

    def go_on(self, parameters: Sequence[nn.Parameter]) -> None:
        """Go on with the first rows of all parameters: `parameters` are views of them."""
        self.parameters = [*parameters]
        for place, state in self.state.items():
            rows = len(self.parameters[place])
            for name, value in state.items():
                state[name] = value[:rows] if value is not None and value.dim() else value

    @torch.no_grad()
    def step(self) -> None:
        """Take one step along the gradients and drop them."""
        moved = {i: p for i, p in enumerate(self.parameters) if p.grad is not None}
        for i in moved.keys() - self.state.keys():
            self.state[i] = self._new_state(moved[i])
        if moved:
            known = [self.state[i] for i in moved]
            self.kernel(
                [*moved.values()],
                [_gradient(parameter) for parameter in moved.values()],
                **{name: [state[name] for state in known] for name in known[0]},
                **self._options(),
                lr=self.stage.lr,
                weight_decay=self.stage.weight_decay,
                maximize=False,
                fused=True,
            )
        self.drop()

    def drop(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @abstractmethod
    def _new_state(self, parameter: Tensor) -> State:
        """Return what is kept of a parameter from step to step, before its first step."""

    @abstractmethod
    def _options(self) -> dict[str, Any]:
        """Return what else the kernel needs."""


class Sgd(Optimizer):
    """SGD with the stage's momentum and weight decay (`torch.optim.SGD`)."""

    kernel = staticmethod(sgd)

    def _new_state(self, parameter: Tensor) -> State:
        momentum = torch.zeros_like(parameter) if self.stage.momentum else None
        return {"momentum_buffer_list": momentum}

    def _options(self) -> dict[str, Any]:
        return {"momentum": self.stage.momentum, "dampening": 0.0, "nesterov": False}


class Adam(Optimizer):
    """Adam with torch's defaults: beta1 0.9, beta2 0.999, eps 1e-8 (`torch.optim.Adam`).

    The stage's weight decay is added to the gradient (L2); its momentum has no effect.
    """

    kernel: Callable[..., None] = staticmethod(adam)

    def _new_state(self, parameter: Tensor) -> State:
        """Return the means of g and of g^2, and the number of steps."""
        means, squares = torch.zeros_like(parameter), torch.zeros_like(parameter)
        steps = torch.zeros((), device=parameter.device)
        return {"exp_avgs": means, "exp_avg_sqs": squares, "state_steps": steps}

    def _options(self) -> dict[str, Any]:
        amsgrad = {"amsgrad": False, "max_exp_avg_sqs": []}
        return {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, **amsgrad}


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
