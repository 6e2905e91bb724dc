"""Joins the hooks of any method to Flower: `BaseStrategy` and `BaseClient`.

Hooks (`StrategyHooks`, `ClientHooks`) know nothing of Flower. Here they become a `Strategy`, whose
loop calls back the engine that runs the rounds, and a `NumPyClient`.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.client import NumPyClient
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedapps.core import registry
from fedapps.core.errors import as_returned
from fedapps.method import local
from fedapps.method.client import ClientHooks
from fedapps.method.jobs import alone
from fedapps.method.strategy import StrategyHooks
from fedapps.method.update import ClientUpdate, replace
from fedapps.models.layers import Arrays
from fedapps.training.plan import Plan

Aggregated = tuple[ArrayRecord | None, MetricRecord | None]


class Callbacks(Protocol):
    """What Flower's loop calls in each round: the engine (`Rounds` in fedapps/engine/rounds.py)."""

    def configure_train(self, round_: int) -> list[Message]:
        """Return the messages that start a round."""

    def aggregate_train(self, round_: int, replies: Iterable[Message]) -> None:
        """Aggregate the replies of a round."""

    def configure_evaluate(self, round_: int) -> list[Message]:
        """Return the messages that start an evaluation, if one is due."""

    def aggregate_evaluate(self, round_: int, replies: Iterable[Message]) -> None:
        """Collect the replies of an evaluation."""


class _Remembered:
    """A class whose code is remembered as it was when Python loaded it."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        registry.remember(cls)


class BaseStrategy(StrategyHooks, Strategy, _Remembered):
    """The base class of strategies: a method's hooks, and Flower's loop over the rounds.

    The model lives in `arrays`, not in Flower's records.
    """

    _callbacks: Callbacks  # only while `run_rounds` runs

    @property
    def weighs_by_count(self) -> bool:
        """Whether an update weighs by its sample count in what clients get."""
        return True

    def plan_of_newcomer(self, round_: int, client: int) -> Plan:
        """Return `newcomer_plan`, marked as that of a client that has never trained."""
        plan = self.newcomer_plan(round_, client)
        fits = isinstance(plan, Plan)
        return replace(as_returned("newcomer_plan", plan, fits, "a Plan"), newcomer=True)

    def run_rounds(self, callbacks: Callbacks, grid: Any, num_rounds: int, timeout: float) -> None:
        """Run Flower's own loop (`start`), with callbacks that do the work of each round.

        Of the grid, it calls `send_and_receive` alone.
        """
        self._callbacks = callbacks
        try:
            self.start(grid, ArrayRecord(), num_rounds=num_rounds, timeout=timeout)
        finally:
            del self._callbacks

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Start a round: Flower's loop calls this."""
        return self._callbacks.configure_train(server_round)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        """Aggregate the replies of a round: Flower's loop calls this."""
        self._callbacks.aggregate_train(server_round, replies)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Start an evaluation: Flower's loop calls this."""
        return self._callbacks.configure_evaluate(server_round)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Collect the replies of an evaluation: Flower's loop calls this."""
        self._callbacks.aggregate_evaluate(server_round, replies)
        return None

    def summary(self) -> None:
        """Print nothing when Flower asks for a summary: the report's header has it all."""


class BaseClient(ClientHooks, NumPyClient, _Remembered):
    """The base class of clients: a method's hooks, and the rounds in which they are called."""

    def train_round(self, plan: Plan, received: Arrays) -> ClientUpdate:
        """Train as a plan says; `received` holds the arrays of its download, by name."""
        return alone(local.train_round(self, plan, received))

    def evaluate_round(self, plan: Plan, received: Arrays) -> ClientUpdate:
        """Score the received model, personalize it as a plan says, and score it again."""
        return alone(local.evaluate_round(self, plan, received))

    def fit(
        self, parameters: list[np.ndarray], config: Mapping[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Train; return the upload, the sample count and the metrics.

        The arrays are in the order of `Plan.down` and `Plan.up`; the config holds the plan as JSON.
        """
        plan, received = self._named(parameters, config)
        update = self.train_round(plan, received)
        sent = update.arrays | update.extras
        names = plan.up(self.layout)
        return [sent[name] for name in names], update.num_examples, dict(update.metrics)

    def evaluate(
        self, parameters: list[np.ndarray], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Score; return the loss, the number of test samples and the metrics."""
        update = self.evaluate_round(*self._named(parameters, config))
        metrics: dict[str, Any] = dict(update.metrics)
        return metrics["loss"], update.num_examples, metrics

    def _named(
        self, parameters: list[np.ndarray], config: Mapping[str, Any]
    ) -> tuple[Plan, Arrays]:
        plan = msgspec.json.decode(config["plan"], type=Plan)
        return plan, dict(zip(plan.down(self.layout), parameters, strict=True))
