"""Runs a method's rounds without Flower: for writing, testing and debugging its two classes.

The hooks that select, plan, download, train and aggregate are called as in a run, in this process
and without messages, checks or files. Any error is raised as it is. What surrounds a round is left
out: the hooks of `Conversation`, privacy but for local noise, `server-data`, `server-optimizer`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedapps.core import config, keywords
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.method.figures import GENERAL
from fedapps.method.flower import BaseClient, BaseStrategy
from fedapps.method.update import ClientUpdate, OnePass, replace
from fedapps.models.layers import Arrays, Layout, as_sent
from fedapps.training.costs import TrainingStats, cost_of
from fedapps.training.plan import Plan
from fedapps.training.workspace import Workspace


@dataclass
class Rehearsal:
    """A method's rounds: the server's `strategy`, and the state of every client by its number."""

    strategy: BaseStrategy
    client_class: type[BaseClient]
    clients: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    round: int = 0

    @property
    def layout(self) -> Layout:
        """The layers of the model."""
        return self.strategy.layout

    def rounds(self, count: int = 1) -> None:
        """Run `count` more rounds: select, train, aggregate."""
        for _ in range(count):
            self.round += 1
            strategy = self.strategy
            selected = strategy.select(self.round)
            plans = {client: strategy.plan(self.round, client) for client in selected}
            updates = [self.train(client, plan) for client, plan in plans.items()]
            new = strategy.aggregate(self.round, OnePass(updates)) if updates else {}
            strategy.arrays.update({k: np.asarray(v, np.float32) for k, v in new.items()})
            cost_of(strategy.after_round, self.round, TrainingStats)

    def train(self, client: int, plan: Plan) -> ClientUpdate:
        """Do one client's work in a round; return its update."""
        made = self.make(client)
        update = made.train_round(plan, self._download(client, plan))
        self.clients[client] = made.state
        return replace(update, arrays=as_sent(update.arrays), extras=as_sent(update.extras))

    def evaluate(self, client: int) -> dict:
        """Evaluate a client after the rounds so far.

        Return what it reports, and with it the values of the task's metrics and of the figures by
        column, such as `accuracy_initial`, `accuracy_personalized` and `accuracy_global`.
        """
        plan = self.strategy.evaluation_plan(max(self.round, 1), client)
        told = self.make(client).evaluate_round(plan, self._download(client, plan)).metrics
        values: dict[str, Any] = {}
        names = self.strategy.task.sizes(self.strategy.workspace.dataset.targets)
        for when in ("initial", "personalized"):
            counts = {name: np.array(told[f"{when}_{name}"]) for name in names}
            values |= {f"{m.name}_{when}": m.of(counts) for m in self.strategy.task.metrics}
        for figure in (*self.strategy.figures, *GENERAL.values()):
            if figure.name in told:
                values[figure.named(self.strategy.task.lead).name] = told[figure.name]
        return told | values

    def make(self, client: int) -> BaseClient:
        """Return a client as it begins a round, with a copy of its state as if read from disk."""
        state = {key: value.clone() for key, value in self.clients.get(client, {}).items()}
        return self.client_class(self.strategy.workspace, client, state)

    def _download(self, client: int, plan: Plan) -> Arrays:
        """Return the arrays that a client receives."""
        return as_sent(self.strategy.download(self.round, client, plan))


def rehearse(
    strategy_class: type[BaseStrategy],
    client_class: type[BaseClient],
    run_config: str | Mapping[str, Any] | Settings = "",
) -> Rehearsal:
    """Prepare rounds of a method's two classes, on digits or on what `run_config` says.

    The text of `run_config` is written like the value of `--run-config`; a mapping has keys as
    `fedapps.run` takes them. Raises `RunError` for keys or classes that do not fit.
    """
    for given, base in ((strategy_class, BaseStrategy), (client_class, BaseClient)):
        if not (isinstance(given, type) and issubclass(given, base)):
            what = f"rehearse: {given!r} is no subclass of {base.__name__}"
            raise RunError(f"{what}; give the strategy's class, then the client's")
    settings: Any = run_config
    if isinstance(settings, Mapping):
        settings = config.read(config.applied({"device": "cpu"} | keywords.read(settings)))
    elif isinstance(settings, str):
        settings = config.read(config.parse(['device="cpu"', settings]))
    elif not isinstance(settings, Settings):
        cure = "give a text as for --run-config, a mapping or Settings"
        raise RunError(f"rehearse: {settings!r} are no keys; {cure}")
    torch.set_num_threads(settings.threads)
    return Rehearsal(strategy_class(Workspace(settings)), client_class)
