"""Parts of layers, which a model declares where it is built.

A part is something in a layer that can travel, or stay on the client, separately from the rest. All
BatchNorms are in the part `norms`; they need not be declared. Any other part is declared like this:

    chain(fc=nn.Linear(64, 32), lora=declare_part(LowRank(64, 32), "adapter"))
"""

from typing import TypeVar

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

Module = TypeVar("Module", bound=nn.Module)
NORMS, REST = "norms", "rest"  # a layer's BatchNorms, and all that is in no part
_PART = "layer_part"  # attribute of a module that was declared as a part


def declare_part(module: Module, part: str) -> Module:
    """Put all that `module` holds into the `part` of its layer, such as "adapter"; return it.

    A module inside of it can be declared as another part. Raises ValueError for a name that a slice
    could not contain.
    """
    if not part.isidentifier() or part == REST:
        raise ValueError(f'part "{part}": must be a word of letters, and not "{REST}"')
    object.__setattr__(module, _PART, part)  # nn.Module itself sets a str in this way
    return module


def declared_parts(model: nn.Module) -> dict[str, str]:
    """Return the part of each state-dict key that is in one; BatchNorms are in `norms` by type.

    If a declared module is inside another one, the declaration of the inner module counts.
    """
    parts: dict[str, str] = {}
    for prefix, module in model.named_modules():  # outer ones first
        part = getattr(module, _PART, NORMS if isinstance(module, _BatchNorm) else "")
        if part:
            parts |= dict.fromkeys((f"{prefix}.{key}" for key in module.state_dict()), part)
    return parts
