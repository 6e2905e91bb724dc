"""Low-rank adapters (LoRA, Hu et al. 2021): what is trained instead of a layer's weights.

Beside a linear layer or a 1x1 convolution W stands (alpha/r) B A: A [r, in] is drawn from the seed
as torch draws the weights of a layer, and B [out, r] is zero. The output is W x + (alpha/r) B A x.
An adapter is a part of its layer, `fc1:adapter`. All else in the body is frozen and in no layer: it
is neither trained nor sent nor kept by a client (`fedapps.models.grouping`).

The package `peft` has adapters for more kinds of modules, but it needs transformers and accelerate
(80 MB), takes more than twice as long to import as torch, and renames the keys of the weights.
"""

import copy
import math
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fedapps.core.draws import generator
from fedapps.core.errors import RunError
from fedapps.models.calls import computes_as, first_tensor
from fedapps.models.grouping import declare_part, freeze, keys_by_layer

PART = "adapter"  # of a layer; also the name of the module beside the weights
Base = nn.Linear | nn.Conv2d


class Adapter(nn.Module):
    """(alpha/r) B A x, for the input x of the module beside which it stands."""

    hook: RemovableHandle  # with which the module adds it to its output

    def __init__(self, base: Base, rank: int, alpha: float) -> None:
        super().__init__()
        if isinstance(base, nn.Linear):
            down: Base = nn.Linear(base.in_features, rank, bias=False)
            up: Base = nn.Linear(rank, base.out_features, bias=False)
        else:
            high, wide = base.stride
            down = nn.Conv2d(base.in_channels, rank, 1, (high, wide), bias=False)
            up = nn.Conv2d(rank, base.out_channels, 1, bias=False)
        self.down, self.up, self.scale = down, up, alpha / rank
        nn.init.zeros_(up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Return what is added to the output for x."""
        return self.scale * self.up(self.down(x))

    def product(self) -> Tensor:
        """Return (alpha/r) B A [out, in]."""
        return self.scale * self.up.weight.flatten(1) @ self.down.weight.flatten(1)


def add_adapters(
    model: nn.Module,
    rank: int,
    alpha: float,
    only: Collection[str],
    head: Collection[str],
    seed: int,
) -> None:
    """Put an adapter beside each weight that can have one, and freeze all else but the `head`.

    `only` are the layers that get adapters; if it is empty, all but the head do. The projections of
    `nn.MultiheadAttention` get none, because it does not call them, nor do subclasses that compute
    something else, whose weights an adapter could not be merged into. Raises `RunError` for a layer
    that is not in the body, and if there is nothing beside which an adapter can stand.
    """
    layers = keys_by_layer(model)
    body = [name for name in layers if name not in head]
    if wrong := [name for name in only if name not in body]:
        raise RunError(f"adapter-layers: {wrong[0]} is not one of {', '.join(body)}")
    found = {
        name: [module for path, module in _bases(model) if f"{path}.weight" in layers[name]]
        for name in only or body
    }
    if empty := [name for name in only if not found[name]]:
        raise RunError(f"adapter-layers: {empty[0]} has no Linear and no 1x1 Conv2d")
    if not any(found.values()):
        raise RunError(
            f"adapter-rank = {rank}: there is no Linear and no 1x1 Conv2d in {', '.join(body)}"
        )
    kept = {key for name in head for key in layers[name]}
    freeze(model, [key for key in model.state_dict() if key not in kept])
    with torch.random.fork_rng(devices=[]):
        drawn = int(generator(seed, "adapters").integers(2**32))
        torch.default_generator.manual_seed(drawn)
        for module in (module for modules in found.values() for module in modules):
            adapter = declare_part(Adapter(module, rank, alpha), PART)
            adapter.hook = module.register_forward_hook(_add, with_kwargs=True)
            module.add_module(PART, adapter)


def merged(model: nn.Module) -> nn.Module:
    """Return a copy without adapters, whose weights are W + (alpha/r) B A; or the model as it is.

    The outputs are the same up to rounding.
    """
    if not any(isinstance(module, Adapter) for module in model.modules()):
        return model
    model = copy.deepcopy(model)
    with torch.no_grad():
        for module in [*model.modules()]:
            adapter = getattr(module, PART, None)
            if isinstance(adapter, Adapter) and isinstance(module, Base):
                module.weight += adapter.product().view_as(module.weight)
                adapter.hook.remove()
                delattr(module, PART)
    return model


def saves_nothing(model: nn.Module) -> str:
    """Say that adapters have no fewer values than the weights beside them; "" if they have."""
    found = [module for module in model.modules() if isinstance(module, Adapter)]
    weights = [(a.down.weight.shape[1], a.up.weight.shape[0]) for a in found]  # inputs, outputs
    whole, for_each = (sum(map(what, weights)) for what in (math.prod, sum))
    if not found or (size := found[0].down.weight.shape[0] * for_each) < whole:
        return ""
    most = (whole - 1) // for_each
    told = (
        f"adapters have {size:,} values, the weights in place of which they are trained {whole:,}"
    )
    return f"{told}: {f'use {most} or less' if most else 'use 0'}"


def _bases(model: nn.Module) -> Iterator[tuple[str, Base]]:
    """Yield the modules beside which an adapter can stand, and their paths."""
    uncalled: set[nn.Module] = set()
    for path, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            uncalled.update(module.children())
        pointwise = isinstance(module, nn.Conv2d) and (
            (module.kernel_size, module.padding, module.groups) == ((1, 1), (0, 0), 1)
        )
        kind = nn.Conv2d if pointwise else nn.Linear
        if computes_as(module, kind) and module not in uncalled:
            yield path, module


def _add(base: nn.Module, args: object, kwargs: object, output: Tensor) -> Tensor:
    return output + base.get_submodule(PART)(first_tensor((args, kwargs)))
