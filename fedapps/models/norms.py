"""The BatchNorms of a model, found by type and never by name."""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm


def batch_norms(model: nn.Module) -> Iterator[_BatchNorm]:
    """Yield every BatchNorm module of a model."""
    return (module for module in model.modules() if isinstance(module, _BatchNorm))


def uses_batch_statistics(model: nn.Module) -> bool:
    """Tell whether a BatchNorm keeps no running statistics, so that it always uses the batch's."""
    return any(module.running_mean is None for module in batch_norms(model))


def use_batch_statistics(model: nn.Module) -> None:
    """Make BatchNorms use the statistics of each batch, also in evaluation (FedBABU's tables)."""
    for module in batch_norms(model):
        module.track_running_stats = False
        module.running_mean = module.running_var = module.num_batches_tracked = None
