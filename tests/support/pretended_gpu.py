"""A pretended GPU, for machines that have none.

A pretended tensor says that it lies on another device and keeps its values on the CPU. The rules
are a GPU's: no kernel takes tensors of two devices, NumPy does not see them. So what would fail
only on a GPU fails here, and what a step copies and waits for is counted. Digits and speed of a
real one are another matter.
"""

from collections import Counter

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

aten = torch.ops.aten
DEVICE = torch.device("meta")  # one that torch takes without a driver; nothing computes on it
COPYING = (aten._to_copy.default, aten.copy_.default)
WAITING = (  # results that the host needs to go on
    aten._local_scalar_dense.default, aten._unique2.default, aten.bincount.default,
    aten.equal.default, aten.masked_select.default, aten.nonzero.default,
)  # fmt: skip


class Pretended(torch.Tensor):
    """A tensor on the pretended GPU; `held` are its values, on the CPU."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held):
        made = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=DEVICE
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return NotImplemented  # there is none outside of `Gpu`


class Gpu(TorchDispatchMode):
    """While it is on, the pretended GPU is there; `counts` says what the host asked it for.

    `waits` are results that the host needs, `copies` what it sends, `launches` all other kernels.
    """

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        there = {id(x.held): x for x in tensors if isinstance(x, Pretended)}
        wanted = kwargs.get("device")
        if not there and wanted != DEVICE:
            return function(*args, **kwargs)
        self.check(function, args, tensors)
        leaves = len(there) > 0 and self.leaves(function, tensors, wanted)
        self.count(function, args, tensors, leaves)
        if wanted == DEVICE:
            kwargs |= {"device": torch.device("cpu")}
        unpack = lambda x: x.held if isinstance(x, Pretended) else x  # noqa: E731
        found = function(*tree_map(unpack, args), **tree_map(unpack, kwargs))

        def pack(x):
            known = there.get(id(x))  # what works in place returns what it was given
            return known if known is not None else Pretended(x)

        return found if leaves else tree_map(lambda x: pack(x) if torch.is_tensor(x) else x, found)

    def leaves(self, function, tensors, wanted):
        """Whether a copy goes from the GPU to the host."""
        if function is aten.copy_.default:
            return not isinstance(tensors[0], Pretended)
        return function is aten._to_copy.default and wanted not in (None, DEVICE)

    def check(self, function, args, tensors):
        """Raise where a GPU would."""
        here = [x for x in tensors if not isinstance(x, Pretended) and x.dim()]
        if here and len(here) < len(tensors) and function not in COPYING:
            raise RuntimeError(f"{function}: tensors on two devices")
        pairs = [(x, x.held) for x in tensors if isinstance(x, Pretended)]
        if function is aten._fused_sgd_.default:
            pairs += zip(args[0], args[1], strict=True)
        for one, other in pairs:  # strides of sides of 1 are free
            sides = zip(one.stride(), other.stride(), one.shape, strict=True)
            assert all(a == b for a, b, side in sides if side > 1), f"{function}: layouts differ"

    def count(self, function, args, tensors, leaves):
        """Note what the call is to the host."""
        masks = function is aten.index.Tensor and any(
            x is not None and x.dtype == torch.bool for x in args[1]
        )
        if leaves or masks or function in WAITING:
            self.counts["waits"] += 1
        elif function in COPYING and not all(isinstance(x, Pretended) for x in tensors):
            self.counts["copies"] += 1
        elif not function.is_view and function is not aten.detach.default:
            self.counts["launches"] += 1
