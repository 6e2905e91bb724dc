"""Outputs of frozen layers, computed once and reused as long as the layers do not change."""

import hashlib
from collections.abc import Callable, Hashable, Iterable

import torch
from torch import Tensor, nn

from fedapps.core.cache import ByteCache
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


class FeatureCache:
    """A cache for the outputs of frozen prefixes, by (data, prefix).

    At `limit` bytes the least recently used outputs are dropped.
    """

    def __init__(self, limit: int) -> None:
        self._known: ByteCache[tuple[bytes, Tensor]] = ByteCache(limit)

    def get(self, key: Hashable, state: bytes, compute: Callable[[], Tensor]) -> Tensor:
        """Return the cached outputs if they belong to `state`; otherwise compute and store them."""
        before, values = self._known.get(key) or (None, torch.empty(0))
        if before != state:
            values = compute()
            self._known.put(key, (state, values), values.nbytes)
        return values


def digest(model: nn.Module, keys: Iterable[str]) -> bytes:
    """Return a digest of some entries of the model's state."""
    state, result = model.state_dict(), hashlib.blake2b(digest_size=16)
    for key in keys:
        result.update(state[key].detach().cpu().numpy().tobytes())
    return result.digest()
