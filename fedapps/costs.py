"""Computation that a step really does, counted by running it once on the meta device."""

import copy
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.flop_counter import FlopCounterMode

from fedapps.layers import Slice, batch_norms, run

SAMPLES = 2  # BatchNorm in train mode refuses a single value per channel


@dataclass(frozen=True)
class Profile:
    """Static facts about one model on one input shape, found without computing anything.

    `shapes[layer]` is the shape of one sample at the layer's input (C, H, W or features);
    `lone[layer]` tells that a BatchNorm of the layer sees one value per channel and sample.
    """

    model: nn.Sequential
    shapes: dict[str, tuple[int, ...]]
    lone: dict[str, bool]

    def step_macs(self, trained: Slice, start: str) -> int:
        """Return multiply-accumulates per sample of forward (from layer `start`) and backward."""
        for name, layer in self.model.named_children():
            layer.requires_grad_(name in trained).train(name in trained)
        layers = _from(self.model, start)
        x = _meta(self.shapes[start])
        with FlopCounterMode(display=False) as counter:
            logits = run(self.model, x, layers)
            loss = cross_entropy(logits, torch.zeros(SAMPLES, dtype=torch.long, device="meta"))
            if loss.requires_grad:
                loss.backward()
        self.model.zero_grad()
        return counter.get_total_flops() // (2 * SAMPLES)

    @torch.no_grad()
    def forward_macs(self, layers: Iterable[str]) -> int:
        """Return multiply-accumulates per sample of a forward pass through `layers`."""
        self.model.eval()
        layers = tuple(layers)
        if not layers:
            return 0
        with FlopCounterMode(display=False) as counter:
            run(self.model, _meta(self.shapes[layers[0]]), layers)
        return counter.get_total_flops() // (2 * SAMPLES)


def profile(model: nn.Sequential, shape: tuple[int, ...]) -> Profile:
    """Trace `model` once for samples of `shape`; the model itself is not touched."""
    ghost = copy.deepcopy(model).to("meta").eval()
    shapes, lone = {}, {}
    seen: list[bool] = []
    for module in batch_norms(ghost):
        module.register_forward_pre_hook(lambda _, args: seen.append(_lone(args[0])))
    x = _meta(shape)
    for name, layer in ghost.named_children():
        shapes[name] = tuple(x.shape[1:])
        seen.clear()
        with torch.no_grad():
            x = layer(x)
        lone[name] = any(seen)
    for module in batch_norms(ghost):
        module._forward_pre_hooks.clear()
    return Profile(ghost, shapes, lone)


def is_cacheable(layer: nn.Module) -> bool:
    """Tell whether a frozen layer maps a sample to the same output in every epoch.

    Dropout draws, and a BatchNorm without running statistics depends on the rest of the batch.
    """
    return not any(
        isinstance(module, nn.modules.dropout._DropoutNd)
        or (isinstance(module, _BatchNorm) and module.running_mean is None)
        for module in layer.modules()
    )


def _lone(x: Tensor) -> bool:
    return x.numel() == x.shape[0] * x.shape[1]


def _meta(shape: tuple[int, ...]) -> Tensor:
    return torch.empty((SAMPLES, *shape), device="meta")


def _from(model: nn.Sequential, start: str) -> list[str]:
    names = [name for name, _ in model.named_children()]
    return names[names.index(start) :]
