"""The server's own training after each round, on the samples of `server-data`."""

from fedapps.method.flower import BaseStrategy
from fedapps.training.costs import TrainingStats


def train(strategy: BaseStrategy, round_: int) -> TrainingStats:
    """With `server-data`, train one epoch on the server's own samples (FedBABU, data sharing).

    Only layers of `server-part` that clients upload are trained.
    """
    s, layout = strategy.settings, strategy.layout
    if not s.server_data:
        return TrainingStats()
    plan = strategy.plan(round_, strategy.workspace.population.some_client)
    shared = {name.partition(":")[0] for name in plan.upload}
    names = tuple(name for name in layout.slice_of(s.server_part) if name in shared)
    stage = strategy.stage(round_, names, epochs=1)
    samples = strategy.workspace.data.server_samples
    return strategy.train_here(round_, samples, stage).costs_only()
