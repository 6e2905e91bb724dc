"""The computation that a step really does: multiply-accumulates, counted in a tiny forward pass.

Convolutions, linear layers, recurrent layers and attention are counted, the first two as in
`torch.utils.flop_counter`. That module imports torch's compiler, which takes 3.9 s (torch 2.15), so
it is not used here; tests compare the two.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.modules.rnn import RNNBase

from fedapps.core.errors import as_returned
from fedapps.core.schema import NonNegative
from fedapps.models.calls import first_tensor
from fedapps.models.layers import Layout, Slice, run
from fedapps.models.modes import freeze_all_but, unchanged
from fedapps.models.norms import batch_norms, uses_batch_statistics
from fedapps.models.vit import Attention

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
    right = f"what it cost as {kind.__name__}, or {kind.__name__}() if it cost nothing"
    return as_returned(hook.__qualname__, costs, isinstance(costs, kind), right)


@dataclass(frozen=True)
class Profile:
    """Facts about a model that do not change, for samples of one `shape`; each is counted once.

    `shapes[layer]` is the shape of one sample at the layer's input, if the model can be cut.
    `lone[layer]` says whether a BatchNorm of the layer sees only one value for each channel and
    sample; in the layers `of_batch`, such a BatchNorm keeps no running statistics.
    """

    model: nn.Module
    layout: Layout
    example: Callable[[], Tensor]  # makes an input of `SAMPLES` equal samples
    shapes: dict[str, tuple[int, ...]]
    lone: dict[str, bool]
    of_batch: frozenset[str] = frozenset()
    counted: dict[Hashable, int] = field(default_factory=dict, repr=False)

    def step_macs(self, trained: Slice, start: str, by_sample: bool = False) -> int:
        """Return the multiply-accumulates per sample of a step that starts at layer `start`.

        The forward pass counts once. The backward pass counts once for each trained weight, and
        once for each input through which the gradient must pass. With clipping `by_sample`, the
        weights of convolutions count once more, because their gradients are formed for each sample
        and again for the batch (`SampleGradients`).
        """
        known = (trained, start, by_sample)
        if known not in self.counted:
            names = self.layout.names
            with unchanged(self.model):
                freeze_all_but(self.model, self.layout, trained)
                self.counted[known] = self._count(names[names.index(start) :], by_sample=by_sample)
        return self.counted[known]

    def layer_macs(self, layer: str) -> int:
        """Return the multiply-accumulates per sample of a layer between other trained layers.

        These are the forward pass, the layer's own gradients, and the gradient that goes on to the
        layer before it.
        """
        own = {*self.layout.keys_of((layer,))}
        with unchanged(self.model):
            for name, parameter in self.model.named_parameters():
                if name in own:
                    parameter.requires_grad_(True)
            return self._count((layer,), below=True)

    @torch.no_grad()
    def forward_macs(self, layers: Slice) -> int:
        """Return the multiply-accumulates per sample of a forward pass through `layers`."""
        if layers not in self.counted:
            with unchanged(self.model):
                self.counted[layers] = self._count(layers)
        return self.counted[layers]

    def _count(self, layers: Slice, below: bool = False, by_sample: bool = False) -> int:
        macs = 0

        def add(module: nn.Module, *call: object) -> None:
            nonlocal macs
            x, y = first_tensor(call[:-1]), first_tensor(call[-1])
            if x is None or y is None:  # a module of the author's own kind
                return
            forward, weight = _forward_macs(module, x, y)
            back = int(weight.requires_grad) + int(x.requires_grad)
            again = by_sample and isinstance(module, _ConvNd) and weight.requires_grad
            macs += forward * (1 + back * y.requires_grad + again)

        counted = [m for m in self.model.modules() if isinstance(m, COUNTED)]
        handles = [module.register_forward_hook(add, with_kwargs=True) for module in counted]
        self.model.eval()
        first = layers[0] == self.layout.names[0]
        x = self.example() if first else self._ones(layers[0])
        if below and x.is_floating_point():
            x = x.requires_grad_().clone()  # a leaf cannot be changed in place
        encoders = [m for m in self.model.modules() if isinstance(m, nn.TransformerEncoder)]
        nested = [m for m in encoders if getattr(m, "use_nested_tensor", False)]
        for encoder in nested:
            encoder.use_nested_tensor = False  # a nested tensor has no shape
        try:
            run(self.model, x, layers)
        finally:
            for encoder in nested:
                encoder.use_nested_tensor = True
            for handle in handles:
                handle.remove()
        return macs

    def restricted(self, model: nn.Sequential, layout: Layout) -> "Profile":
        """Return the same facts for `model`, which has only the layers of `layout`."""
        first = layout.names[0]
        example = self.example if first == self.layout.names[0] else partial(self._ones, first)
        return replace(self, model=model, layout=layout, example=example, counted={})

    def _ones(self, layer: str) -> Tensor:
        device = next(self.model.parameters()).device
        return torch.ones((SAMPLES, *self.shapes[layer]), device=device)


COUNTED = (_ConvNd, nn.Linear, RNNBase, nn.MultiheadAttention, Attention)


def _forward_macs(module: nn.Module, x: Tensor, output: Tensor) -> tuple[int, Tensor]:
    """Return the multiply-accumulates per sample of a module's forward pass, and its weight.

    Weights are attributes, not always parameters: a parametrization computes them.
    """
    if isinstance(module, RNNBase):
        names = (name for name in module._flat_weights_names if name.startswith("weight_"))
        weights: list[Tensor] = [getattr(module, name) for name in names]
        steps = x.shape[:-1].numel() // SAMPLES
        return steps * sum(map(torch.numel, weights)), weights[0]
    if isinstance(module, nn.MultiheadAttention):
        # of a series with itself: four products with E x E weights, and two of T x T with E
        steps, size = (x.shape[1] if module.batch_first else x.shape[0]), module.embed_dim
        return 4 * steps * size * size + 2 * steps * steps * size, module.out_proj.weight
    if isinstance(module, Attention):  # two products of T x T with size, and no weight:
        return 2 * x.shape[1] * x.shape[1] * (x.shape[2] // 3), x  # gradients for both factors
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or not weight.numel():
        return 0, x  # a subclass with weights of another name
    # An output value is a sum of products, one for each entry of its channel's weight; and in a
    # transposed convolution, an input value has a product with each entry of its own.
    values = x if isinstance(module, _ConvNd) and module.transposed else output
    return values.numel() // SAMPLES * (weight.numel() // weight.shape[0]), weight


@torch.no_grad()
def profile(
    model: nn.Module, layout: Layout, shape: tuple[int, ...], token: int | None = None
) -> Profile:
    """Describe `model` by running it once, in eval mode, on samples of `shape`.

    Its state stays as it is. Samples are ones, or repeat a `token`: one that does not fill texts
    up, because a model can leave out what is filled up, in series often with zeros.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    lone, of_batch = dict.fromkeys(layout.names, False), set[str]()
    names = {module: name for name, module in model.named_modules()}

    def see(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        x = first_tensor((args, kwargs))
        if x is not None and x.numel() == x.shape[0] * x.shape[1]:
            lone.update(dict.fromkeys(layout.modules[names[module]], True))
            if uses_batch_statistics(module):
                of_batch.update(layout.modules[names[module]])

    norms = batch_norms(model)
    handles = [module.register_forward_pre_hook(see, with_kwargs=True) for module in norms]
    model.eval()
    device = next(model.parameters()).device
    value = 1.0 if token is None else token
    example = partial(torch.full, (SAMPLES, *shape), value, device=device)
    x = example()
    if layout.can_be_cut:
        for name in layout.names:
            shapes[name] = tuple(x.shape[1:])
            x = run(model, x, (name,))
    else:
        model(x)
    for handle in handles:
        handle.remove()
    return Profile(model, layout, example, shapes, lone, frozenset(of_batch))


def is_cacheable(layer: nn.Module) -> bool:
    """Tell whether a frozen layer maps a sample to the same output in every epoch.

    Two kinds of layers do not: those with dropout, which is random, and those with a BatchNorm
    without running statistics, whose output depends on the other samples of the batch.
    """
    return not has_dropout(layer) and not uses_batch_statistics(layer)


def has_dropout(layer: nn.Module) -> bool:
    """Tell whether a layer draws random numbers when it trains."""
    within = RNNBase | nn.MultiheadAttention  # these have dropout of their own
    return any(
        isinstance(m, nn.modules.dropout._DropoutNd) or (isinstance(m, within) and m.dropout > 0)
        for m in layer.modules()
    )
