"""How modules are called, whoever has written the model around them."""

from collections.abc import Mapping

from torch import Tensor


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
