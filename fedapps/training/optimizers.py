"""Optimizers, which turn gradients into steps: one class each, and a table of their names.

`torch.optim` has classes that compute the same. But the first one that a process creates imports
torch's compiler (2 to 5 s in every worker), so the classes here call the same kernels through
torch's functional forms. Another optimizer needs a class here, a line in `OPTIMIZERS`, and its name
at `optimizer` in `core/settings.py`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

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

    @torch.no_grad()
    def step(self) -> None:
        """Take one step along the gradients and drop them."""
        moved = [i for i, parameter in enumerate(self.parameters) if parameter.grad is not None]
        parameters = [self.parameters[i] for i in moved]
        if moved:
            self._move(moved, parameters, [_gradient(parameter) for parameter in parameters])
        self.drop()

    def drop(self) -> None:
        """Drop the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @abstractmethod
    def _move(self, indices: list[int], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        """Change `parameters` (those at `indices`) in place, and store what the next step needs."""


class Sgd(Optimizer):
    """SGD with the stage's momentum and weight decay (`torch.optim.SGD`)."""

    def __init__(self, parameters: Sequence[nn.Parameter], stage: Stage) -> None:
        super().__init__(parameters, stage)
        self.buffers: list[Tensor | None] = [None] * len(self.parameters)

    def _move(self, indices: list[int], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        buffers = [self.buffers[i] for i in indices]
        missing = sum(buffer is None for buffer in buffers)
        if 0 < missing < len(buffers):
            # torch's kernel takes all as new or none; a buffer of zeros gives the same result
            pairs = zip(parameters, buffers, strict=True)
            buffers = [torch.zeros_like(p) if b is None else b for p, b in pairs]
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
        for i, buffer in zip(indices, buffers, strict=True):
            self.buffers[i] = buffer


class Adam(Optimizer):
    """Adam with torch's defaults: beta1 0.9, beta2 0.999, eps 1e-8 (`torch.optim.Adam`).

    The stage's weight decay is added to the gradient (L2); its momentum has no effect.
    """

    kernel: Callable[..., None] = staticmethod(adam)

    def __init__(self, parameters: Sequence[nn.Parameter], stage: Stage) -> None:
        super().__init__(parameters, stage)
        # by parameter: mean of g, mean of g^2, number of steps
        self.state: dict[int, tuple[Tensor, Tensor, Tensor]] = {}

    def _move(self, indices: list[int], parameters: list[Tensor], gradients: list[Tensor]) -> None:
        for i, parameter in zip(indices, parameters, strict=True):
            if i not in self.state:
                averages = torch.zeros_like(parameter), torch.zeros_like(parameter)
                self.state[i] = (*averages, torch.zeros((), device=parameter.device))
        states = [self.state[i] for i in indices]
        self.kernel(
            parameters,
            gradients,
            [mean for mean, _, _ in states],
            [square for _, square, _ in states],
            [],  # the largest mean squares: only for AMSGrad
            [steps for _, _, steps in states],
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
