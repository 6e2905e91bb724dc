"""Which modules of a model are in training mode, and which parameters get gradients."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from fedapps.core.errors import as_returned
from fedapps.models.layers import Layout, Slice


def freeze_all_but(model: nn.Module, layout: Layout, trained: Slice) -> dict[str, nn.Parameter]:
    """Let the model train the slice `trained` only; return its parameters by name.

    All others get no gradient. Modules are in training mode in the layers that the slice touches,
    except BatchNorms of which it has nothing; all others are in eval mode (`eval_mode`).
    """
    eval_mode(model)
    keys, touched = {*layout.keys_of(trained)}, {*layout.touched(trained)}
    for path, module in model.named_modules():
        if touched.isdisjoint(layout.modules[path]):
            continue
        module.training = True
        if isinstance(module, _BatchNorm):
            own = {f"{path}.{name}" for name in module.state_dict()}
            module.training = not own.isdisjoint(keys) or not own
    found = {}
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in keys)
        if name in keys:
            found[name] = parameter
    return found


def eval_mode(model: nn.Module) -> None:
    """Put all modules into eval mode, so that gradients can still go through each of them.

    cuDNN has gradients of recurrent layers in training mode only. PyTorch's own without dropout
    between their layers compute the same in both modes, and stay in training mode.
    """
    model.eval()
    for module in model.modules():
        if type(module) in (nn.RNN, nn.LSTM, nn.GRU) and not module.dropout:
            module.training = True


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Afterwards, modes and frozen parameters are as before, whatever is done to them meanwhile."""
    modes = [(module, module.training) for module in model.modules()]
    asking = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter, wanted in asking:
            parameter.requires_grad_(wanted)


def in_eval_mode(module: nn.Module, inputs: Tensor) -> Tensor:
    """Return the outputs [b, ...] of a module in eval mode; afterwards, its mode is as before."""
    right = "an nn.Module, such as self.model"
    with unchanged(as_returned("module", module, isinstance(module, nn.Module), right)):
        return module.eval()(inputs)
