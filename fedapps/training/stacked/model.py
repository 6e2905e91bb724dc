"""A model for several clients at once: each entry of its state has a first dimension for clients.

Samples are folded: B samples of each of k clients are one batch of k*B, one client after the other.
So what has no weights (ReLU, pooling, flattening, the forward of a residual block) runs as it is,
and only the modules with weights change (`layers.py`). A module with weights of another kind runs
as `torch.func.vmap` of itself.
"""

import copy
from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from fedapps.models.norms import batch_norms
from fedapps.training.stacked.layers import NATIVE, Places

Entries = Mapping[str, Tensor]  # of a model's state, by name; stacked ones are [k, ...]


class UnstackableError(Exception):
    """A model that cannot be run for several clients at once, and why not."""


class StackedModel:
    """A copy of `model` for k clients, once entries [k, ...] have been loaded into it.

    Raises `UnstackableError` for a model that cannot be stacked.
    """

    def __init__(self, model: nn.Module) -> None:
        if len([*model.parameters()]) < len([*model.named_parameters(remove_duplicate=False)]):
            raise UnstackableError("two layers share their weights")
        if any(p._backward_hooks or p._post_accumulate_grad_hooks for p in model.parameters()):
            raise UnstackableError("a parameter has a hook for its gradient")
        self.module, self.places = copy.deepcopy(model), Places()
        self.names = {name for name, _ in model.named_parameters()}
        self.fixed = {k: v for k, v in model.state_dict().items() if v.is_floating_point()}
        _convert(self.module, self.places)

    def load(self, entries: Entries) -> None:
        """Take entries [k, ...], without a copy; those that are missing are as in the model."""
        rows = len(next(iter(entries.values())))
        for key, value in self.fixed.items():
            path, _, name = key.rpartition(".")
            module = self.module.get_submodule(path)
            own = entries[key] if key in entries else value.detach().expand(rows, *value.shape)
            if key in self.names:
                module._parameters[name] = nn.Parameter(own, requires_grad=key in entries)
            else:
                module._buffers[name] = own


def stack(values: list[Tensor]) -> Tensor:
    """Return tensors as one, [k, ...]; weights of convolutions are in channels-last order."""
    if values[0].dim() != 4:
        return torch.stack(values)
    return torch.stack([value.permute(0, 2, 3, 1) for value in values]).permute(0, 1, 4, 2, 3)


def _convert(module: nn.Module, places: Places) -> None:
    """Replace the class of a module, or of those in it, by one that runs k clients."""
    own = [*module.parameters(recurse=False), *module.buffers(recurse=False)]
    children = [*module.children()]
    native = _native(module)
    if getattr(module, "inplace", False):  # of a view, which would cost two copies
        object.__setattr__(module, "inplace", False)
    if native:
        module.__class__ = native
        if isinstance(module, _BatchNorm):
            object.__setattr__(module, "places", places)
    elif own:
        if any(True for _ in batch_norms(module)):
            raise UnstackableError(
                f"{type(module).__name__} has weights of its own around BatchNorm"
            )
        one = copy.deepcopy(module).train()  # it has no layer that evaluation changes
        object.__setattr__(module, "forward", partial(_each, module, one))
        return
    for child in children:
        _convert(child, places)


def _native(module: nn.Module) -> type[nn.Module] | None:
    """Return the class that runs this module for k clients; None if there is none."""
    if isinstance(module, _BatchNorm) and module.momentum is None:
        raise UnstackableError("BatchNorm with momentum = None")
    if isinstance(module, nn.RNNBase) and (module.bidirectional or not module.batch_first):
        raise UnstackableError(f"{type(module).__name__}: only one way, with the batch first")
    if isinstance(module, nn.RNNBase) and (module.proj_size or not module.bias):
        raise UnstackableError(f"{type(module).__name__}: only with biases, and without projection")
    if isinstance(module, _ConvNd):
        odd = isinstance(module.padding, str) or module.padding_mode != "zeros"
        if odd or any(size > 1 for size in module.dilation):
            return None
    if isinstance(module, nn.MultiheadAttention) and not (
        module.batch_first and module.in_proj_weight is not None and module.bias_k is None
    ):
        raise UnstackableError("attention without the batch first, or of different sizes")
    if isinstance(module, nn.Embedding):
        # `vmap` trains the padding, and a batch that is filled up has more of a token.
        if module.padding_idx is not None or module.scale_grad_by_freq:
            raise UnstackableError("Embedding with padding_idx or scale_grad_by_freq")
        if module.max_norm:
            return None
    if isinstance(module, nn.LayerNorm) and not module.elementwise_affine:
        return None
    return NATIVE.get(type(module))


def _each(stacked: nn.Module, one: nn.Module, x: Tensor) -> Tensor:
    """Run a module for k clients, by `vmap` over the entries of `stacked`; `one` is for one."""
    entries = dict(stacked.named_parameters()) | dict(stacked.named_buffers())
    rows = len(next(iter(entries.values())))
    return vmap(partial(functional_call, one))(entries, x.unflatten(0, (rows, -1))).flatten(0, 1)
