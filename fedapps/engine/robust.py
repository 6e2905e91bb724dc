"""Check what needs each client's update: a robust mean, of enough clients, in enough memory."""

import math

from fedapps.core.draws import sample_size, smallest_share
from fedapps.core.errors import RunError
from fedapps.core.memory import reserve
from fedapps.core.settings import Settings
from fedapps.method.flower import BaseStrategy
from fedapps.method.robust import RULES, Rule, expected_attackers, needed_bytes


def refuse_presum(settings: Settings, what: str) -> None:
    """Raise `RunError` if SuperNodes send sums: `what`, a key or a strategy, needs all updates."""
    if settings.presum:
        raise RunError(f"presum = true: {what} needs every client's update; use false")


def check_robust(strategy: BaseStrategy) -> None:
    """Refuse a robust mean without every client's update, of too few clients, or too large."""
    s, clients = strategy.settings, strategy.workspace.population.training
    key = f'aggregation = "{s.aggregation}"'
    refuse_presum(s, key)
    if s.dp.mode == "central":
        raise RunError(f'{key}: dp.mode = "central" makes only the plain mean private; use "mean"')
    count = sample_size(len(clients), s.fraction_train)
    updates, more = count, "fraction-train"
    if s.round_mode == "async":
        updates, more = buffer_of(s, count), "buffer"
    _check_expected(s, RULES[s.aggregation], key, updates, more)
    shapes, upload = strategy.layout.shapes, strategy.plan(s.num_rounds, clients[0]).upload
    sizes = [math.prod(shapes[name]) for name in strategy.layout.shared(upload)]
    what = f"{key}, which holds the updates of all {count} clients of a round,"
    reserve(what, needed_bytes(sizes, count), "use a smaller fraction-train")


def buffer_of(settings: Settings, cohort: int) -> int:
    """Return how many updates make a new model in asynchronous rounds."""
    return settings.buffer or -(-cohort // 2)


def _check_expected(s: Settings, rule: Rule, key: str, count: int, larger: str) -> None:
    """Refuse `robust-share` if that is nobody, or too many, of the `count` clients of a round.

    A larger value of the key `larger` makes them more.
    """
    share, expected = f"robust-share = {s.robust_share:g}", expected_attackers(s, count)
    if count < (needed := rule.least(expected)):
        raise RunError(
            f"{key}: with {share} a round needs {needed} clients or more, but has {count}; "
            f"use a smaller robust-share or a larger {larger}"
        )
    if "robust-share" in rule.keys and s.robust_share and not expected:
        more = f"at least {smallest_share(count):g}, or " if count >= rule.least(1) else ""
        raise RunError(f"{key}: {share} of a round's {count} clients is nobody; use {more}0")
