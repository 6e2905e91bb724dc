"""Check settings that do not work when clients hold only a part of the model."""

from fedapps.core.errors import RunError
from fedapps.method.flower import BaseStrategy
from fedapps.models.layers import UNCUT
from fedapps.training.costs import has_dropout


def check_settings(strategy: BaseStrategy) -> None:
    """Raise `RunError` for settings and models that do not work with split learning."""
    s = strategy.settings
    if s.dp.mode != "none":
        raise RunError(
            f'dp.mode = "{s.dp.mode}": clients of this strategy send features and labels, '
            'which get no noise; use "none"'
        )
    if strategy.layout.stays:
        raise RunError(
            f'{s.strategy} needs bn-stats = "shared" or "batch" and bn-local = false: no client'
            " has statistics of the server's layers"
        )
    if s.prox_mu or strategy.clip() or s.presum:
        raise RunError(
            f"{s.strategy} does not support prox-mu, clip-percentile, max-norm and presum, "
            "because clients hold only a part of the model; leave them out"
        )
    # All threads of a process draw dropout masks from one generator, in an unpredictable order.
    model = strategy.workspace.model
    if not strategy.layout.can_be_cut:
        raise RunError(f'model = "{s.model}": {s.strategy} cuts the model, and {UNCUT}')
    for name, layer in model.named_children():
        if has_dropout(layer):
            raise RunError(
                f'model = "{s.model}": {name} has dropout, and with {s.strategy} clients and '
                "server train at the same time, so that no run could be repeated; use a model "
                "without dropout"
            )
