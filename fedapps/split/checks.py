"""What does not go with clients that hold a part of the model."""

from fedapps.core.errors import RunError
from fedapps.method.strategy import BaseStrategy
from fedapps.training.costs import has_dropout


def check_settings(strategy: BaseStrategy) -> None:
    """Refuse settings and models of a run of split learning; raises `RunError`."""
    s = strategy.settings
    if s.dp.mode != "none":
        raise RunError(
            f'dp.mode = "{s.dp.mode}": this strategy has clients send features and labels, '
            'which get no noise; use "none"'
        )
    if strategy.layout.stays:
        raise RunError(
            f'{s.strategy} needs bn-stats = "shared" or "batch" and bn-local = false: no client'
            " has statistics of the server's layers"
        )
    if s.prox_mu or strategy.clip() or s.presum:
        raise RunError(
            f"{s.strategy} knows no prox-mu, clip-percentile, max-norm, presum: "
            "clients hold a part of the model"
        )
    # All threads of a process draw masks from one generator, in an order that nobody knows.
    for name, layer in strategy.workspace.model.named_children():
        if has_dropout(layer):
            raise RunError(
                f'model = "{s.model}": {name} has dropout, and with {s.strategy} clients and '
                "server train at the same time: no run could be repeated; use one without"
            )
