"""Strategies in whose mean every client counts the same, however many samples it has."""

from collections.abc import Iterator

from fedapps.method.aggregation import weighted_mean
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import ClientUpdate, replace
from fedapps.models.layers import Arrays


class PlainMean(BaseStrategy):
    """The server's model is the plain mean over the clients of a round."""

    weighs_by_count = False

    def aggregate(self, round_: int, updates: Iterator[ClientUpdate]) -> Arrays:
        """Return unweighted means."""
        return weighted_mean(replace(update, weight=1.0) for update in updates)[0]
