"""Connects the two classes of any method to Flower's `Strategy` and `NumPyClient`.

Flower calls a strategy back in each round. A method's class has hooks only, so each callback is
passed on to the engine that runs the rounds (`fedapps/engine/rounds.py`). Flower's clients get and
return arrays as lists; here the arrays get their names, which all other code uses.
"""

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.client import NumPyClient
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy

from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Arrays, Layout
from fedapps.training.plan import Plan

Aggregated = tuple[ArrayRecord | None, MetricRecord | None]


class Engine(Protocol):
    """The engine, which runs the rounds of a strategy."""

    def configure_train(self, round_: int) -> list[Message]:
        """Return the messages that start a round."""

    def aggregate_train(self, round_: int, replies: Iterable[Message]) -> None:
        """Aggregate the replies of a round."""

    def configure_evaluate(self, round_: int) -> list[Message]:
        """Return the messages that start an evaluation, if one is due."""

    def aggregate_evaluate(self, round_: int, replies: Iterable[Message]) -> None:
        """Collect the scores."""


class FlowerStrategy(Strategy):
    """Passes Flower's callbacks on; the model lives in `arrays`, not in Flower's records."""

    engine: Engine  # set before the first round

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Start a round: Flower calls this hook."""
        return self.engine.configure_train(server_round)

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> Aggregated:
        """Aggregate the replies of a round: Flower calls this hook."""
        self.engine.aggregate_train(server_round, replies)
        return None, None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> list[Message]:
        """Start an evaluation: Flower calls this hook."""
        return self.engine.configure_evaluate(server_round)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Collect the replies of an evaluation: Flower calls this hook."""
        self.engine.aggregate_evaluate(server_round, replies)
        return None

    def summary(self) -> None:
        """Print nothing when Flower asks for a summary: the report's header has it all."""


class FlowerClient(NumPyClient):
    """A client with Flower's interface: arrays and a config come in, arrays and figures go out.

    The arrays are in the order of `Plan.down` and `Plan.up`; the config holds the plan as JSON.
    """

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The layers of the model."""

    @abstractmethod
    def train_round(self, plan: Plan, received: Arrays) -> ClientUpdate:
        """Train as a plan says."""

    @abstractmethod
    def score_round(self, plan: Plan, received: Arrays) -> ClientUpdate:
        """Score, personalize and score again, as a plan says."""

    def fit(
        self, parameters: list[np.ndarray], config: Mapping[str, Any]
    ) -> tuple[list[np.ndarray], int, dict[str, Any]]:
        """Train; return the upload, the sample count and the metrics."""
        plan, received = self._named(parameters, config)
        update = self.train_round(plan, received)
        sent = update.arrays | update.extras
        names = plan.up(self.layout)
        return [sent[name] for name in names], update.num_examples, dict(update.metrics)

    def evaluate(
        self, parameters: list[np.ndarray], config: Mapping[str, Any]
    ) -> tuple[float, int, dict[str, Any]]:
        """Score; return the loss, the number of test samples and the metrics."""
        update = self.score_round(*self._named(parameters, config))
        metrics: dict[str, Any] = dict(update.metrics)
        return metrics["loss"], update.num_examples, metrics

    def _named(
        self, parameters: list[np.ndarray], config: Mapping[str, Any]
    ) -> tuple[Plan, Arrays]:
        plan = msgspec.json.decode(config["plan"], type=Plan)
        return plan, dict(zip(plan.down(self.layout), parameters, strict=True))
