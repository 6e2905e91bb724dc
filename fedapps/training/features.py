"""Outputs of frozen layers, and a digest that says whether the layers have changed."""

import hashlib
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from fedapps.models.grouping import children_by_layer
from fedapps.models.layers import Slice, run
from fedapps.training.batches import chunks


@torch.no_grad()
def features(model: nn.Module, inputs: Tensor, layers: Slice) -> Tensor:
    """Return the outputs of the given leading layers, in eval mode, for all inputs."""
    for name in layers:
        for child in children_by_layer(model)[name]:
            model.get_submodule(child).eval()
    return torch.cat([run(model, chunk, layers) for chunk in chunks(inputs)])


def digest(model: nn.Module, keys: Iterable[str]) -> bytes:
    """Return a digest of some entries of the model's state."""
    state, result = model.state_dict(), hashlib.blake2b(digest_size=16)
    for key in keys:
        result.update(state[key].detach().cpu().numpy().tobytes())
    return result.digest()
