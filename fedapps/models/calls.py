"""What modules get and compute, whoever has written them."""

from collections.abc import Mapping

from torch import Tensor, nn


def first_tensor(values: object) -> Tensor | None:
    """Return the first tensor of what a module gets or returns; None if there is none.

    Of a packed sequence, this is its data [steps of all samples, size].
    """
    if isinstance(values, Tensor):
        return values
    if isinstance(values, Mapping):
        values = tuple(values.values())
    if not isinstance(values, tuple | list):
        return None
    return next((found for value in values if (found := first_tensor(value)) is not None), None)


def computes_as(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Tell whether a linear layer or convolution computes what `kind` does, with its own weights.

    A subclass can have a `forward` of its own, and with weight norm, pruning or a parametrization,
    the weights are computed from other parameters.
    """
    alike = (
        getattr(getattr(module, step, None), "__func__", None) is getattr(kind, step, None)
        for step in ("forward", "_conv_forward")
    )
    own = {"weight", "bias"} <= module._parameters.keys()
    return isinstance(module, kind) and own and all(alike)
