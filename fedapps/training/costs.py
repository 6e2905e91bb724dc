"""The computation that a step really does: multiply-accumulates, counted in a tiny forward pass.

Convolutions and linear layers are counted, as in `torch.utils.flop_counter`. That module takes
seconds to import, so it is not used here; tests compare the two.
"""

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd

from fedapps.core.schema import NonNegative
from fedapps.models.layers import Slice, run
from fedapps.models.norms import batch_norms, uses_batch_statistics

SAMPLES = 2


@dataclass
class Costs:
    """What some computation costs, as numbers that can be added.

    `macs` are multiply-accumulates. `cost_paper` counts parameter updates: each step counts as many
    as it trains parameters (as in FedBABU's and FedSeq's tables).
    """

    macs: NonNegative = 0
    cost_paper: NonNegative = 0

    def spend(self, more: "Costs") -> None:
        """Add the costs of other work; of a `TrainingStats`, only its costs are added."""
        self.macs += more.macs
        self.cost_paper += more.cost_paper


@dataclass
class TrainingStats(Costs):
    """What a local training did and cost, as sums over its steps.

    `loss` is the sum over samples. `skipped` batches were too small to train on; `rejected` ones
    had a gradient that is not finite.
    """

    loss: float = 0.0
    samples: NonNegative = 0
    batches: NonNegative = 0
    skipped: NonNegative = 0
    rejected: NonNegative = 0

    @property
    def mean_loss(self) -> float:
        """Mean loss per sample over all steps; NaN if there was no step."""
        return self.loss / self.samples if self.samples else float("nan")

    def costs_only(self) -> "TrainingStats":
        """Return what the training cost, without its loss, which is not that of a client."""
        return replace(self, loss=0.0, samples=0)


About = TypeVar("About")
Kind = TypeVar("Kind", bound=Costs)


def cost_of(hook: Callable[[About], Kind], about: About, kind: type[Kind]) -> Kind:
    """Call a hook that returns its costs; raises `TypeError` if it returns anything else."""
    costs = hook(about)
    if not isinstance(costs, kind):
        raise TypeError(
            f"{hook.__qualname__} returned {costs!r}: "
            f"must return what it cost, or {kind.__name__}() if it cost nothing"
        )
    return costs


@dataclass(frozen=True)
class Profile:
    """Facts about a model that do not change, for samples of one shape; each is counted once.

    `shapes[layer]` is the shape of one sample at the layer's input. `lone[layer]` says whether a
    BatchNorm of the layer sees only one value for each channel and sample.
    """

    model: nn.Sequential
    shapes: dict[str, tuple[int, ...]]
    lone: dict[str, bool]
    counted: dict[Hashable, int] = field(default_factory=dict, repr=False)

    def step_macs(self, trained: Slice, start: str, by_sample: bool = False) -> int:
        """Return the multiply-accumulates per sample of a step that starts at layer `start`.

        The forward pass counts once. The backward pass counts once for each trained weight, and
        once for each input through which the gradient must pass. With clipping `by_sample`, the
        weights of convolutions count once more, because their gradients are formed for each sample
        and again for the batch (`SampleGradients`). Changes which layers are frozen.
        """
        known = (trained, start, by_sample)
        if known not in self.counted:
            for name, layer in self.model.named_children():
                layer.requires_grad_(name in trained)
            names = [name for name, _ in self.model.named_children()]
            layers = names[names.index(start) :]
            self.counted[known] = self._count(layers, by_sample=by_sample)
        return self.counted[known]

    def layer_macs(self, layer: str) -> int:
        """Return the multiply-accumulates per sample of a layer between other trained layers.

        These are the forward pass, the layer's own gradients, and the gradient that goes on to the
        layer before it.
        """
        self.model.get_submodule(layer).requires_grad_(True)
        return self._count((layer,), below=True)

    @torch.no_grad()
    def forward_macs(self, layers: Slice) -> int:
        """Return the multiply-accumulates per sample of a forward pass through `layers`."""
        if layers not in self.counted:
            self.counted[layers] = self._count(layers)
        return self.counted[layers]

    def _count(self, layers: Iterable[str], below: bool = False, by_sample: bool = False) -> int:
        macs = 0

        def add(module: nn.Module, args: tuple[Tensor], output: Tensor) -> None:
            nonlocal macs
            weight = module.get_parameter("weight")
            # an output value is a sum of products, one for each entry of its channel's weight
            forward = output.numel() // SAMPLES * (weight.numel() // weight.shape[0])
            back = int(weight.requires_grad) + int(args[0].requires_grad)
            again = by_sample and isinstance(module, _ConvNd) and weight.requires_grad
            macs += forward * (1 + back * output.requires_grad + again)

        layers = tuple(layers)
        counted = [m for m in self.model.modules() if isinstance(m, _ConvNd | nn.Linear)]
        handles = [module.register_forward_hook(add) for module in counted]
        self.model.eval()
        run(self.model, self._zeros(layers[0]).requires_grad_(below), layers)
        for handle in handles:
            handle.remove()
        return macs

    def restricted(self, model: nn.Sequential) -> "Profile":
        """Return the same facts for `model`, which has only some of the layers."""
        names = [name for name, _ in model.named_children()]
        shapes, lone = self.shapes, self.lone
        return Profile(model, {n: shapes[n] for n in names}, {n: lone[n] for n in names})

    def _zeros(self, layer: str) -> Tensor:
        device = next(self.model.parameters()).device
        return torch.zeros((SAMPLES, *self.shapes[layer]), device=device)


@torch.no_grad()
def profile(model: nn.Sequential, shape: tuple[int, ...]) -> Profile:
    """Describe `model` by running it once, in eval mode, on samples of `shape`.

    Its state stays as it is.
    """
    shapes, lone = {}, {}
    seen: list[bool] = []
    handles = [
        module.register_forward_pre_hook(lambda _, args: seen.append(_lone(args[0])))
        for module in batch_norms(model)
    ]
    model.eval()
    x = torch.zeros((SAMPLES, *shape), device=next(model.parameters()).device)
    for name, layer in model.named_children():
        shapes[name] = tuple(x.shape[1:])
        seen.clear()
        x = layer(x)
        lone[name] = any(seen)
    for handle in handles:
        handle.remove()
    return Profile(model, shapes, lone)


def is_cacheable(layer: nn.Module) -> bool:
    """Tell whether a frozen layer maps a sample to the same output in every epoch.

    Two kinds of layers do not: those with dropout, which is random, and those with a BatchNorm
    without running statistics, whose output depends on the other samples of the batch.
    """
    return not has_dropout(layer) and not uses_batch_statistics(layer)


def has_dropout(layer: nn.Module) -> bool:
    """Tell whether a layer draws random numbers when it trains."""
    return any(isinstance(m, nn.modules.dropout._DropoutNd) for m in layer.modules())


def _lone(x: Tensor) -> bool:
    return x.numel() == x.shape[0] * x.shape[1]
