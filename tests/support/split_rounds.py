"""A round of split learning beside a client that does what none should.

Clients are real ones in threads, or ends of the real channel on loopback that misbehave. Messages
are left out: what a client computes is handed to the strategy directly.
"""

import math
import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from types import SimpleNamespace

import msgspec
import numpy as np
import torch

from fedapps.core import registry
from fedapps.method.update import ClientUpdate
from fedapps.split.client import Link
from fedapps.split.connection import Connection
from tests.support.clock import PATIENCE, until

BAD = 1  # the client that misbehaves; 0 and 2 are real ones
LONG = PATIENCE  # seconds of all limits: nothing takes as long unless it waits for one in vain
BROKEN = re.compile("its stream (broke|ended)")  # gRPC tells a dead peer now so, now so
SOON = LONG / 2  # seconds in which a round is over if it waits for no limit, on a busy machine too
RUN = (
    'strategy="fedfc" fedfc.cuts="2" num-clients=3 fraction-train=1.0 num-rounds=1 '
    f"evaluate-every=0 round-timeout={LONG} join-timeout={LONG} step-timeout={LONG}"
)


def opened(strategy, round_):
    """Begin a round as the engine would; return its plans."""
    plans = {client: strategy.plan(round_, client) for client in strategy.select(round_)}
    return strategy.begin_round(round_, plans)


def fit(strategy, plan, client):
    """Run a client as the ClientApp would, with its numbers as they are; return its update."""
    torch.set_num_threads(1)
    space = strategy.workspace
    if plan.channel:
        space = space.restricted(plan.stages[0].layers)
    runner = registry.client_class(strategy.settings.strategy)(space, client, {})
    arrays = strategy.download(plan.round, client, plan)
    return runner.train_round(plan, arrays)


def play(strategy, misbehave=None, begin=None):
    """Play a round of the real clients 0 and 2 beside `misbehave(plan)` of client 1.

    `misbehave` "fit" is a real client 1, None a round without it. The real clients 0 and 2 start
    when the event `begin` is set. The result: the session, the updates of real clients, the
    arrays after the round, what client 1 returned or raised, and the seconds.
    """
    bad = (lambda plan: fit(strategy, plan, BAD)) if misbehave == "fit" else misbehave
    if bad is None:
        strategy.select = lambda round_: [0, 2]
    start = time.monotonic()
    with strategy.running(), ThreadPoolExecutor(3) as threads:
        plans = opened(strategy, 1)
        session = strategy._session
        odd = threads.submit(bad, plans[BAD]) if bad else None
        if begin:
            assert begin.wait(LONG)
        real = [threads.submit(fit, strategy, plans[client], client) for client in (0, 2)]
        updates = [work.result(LONG) for work in real]
        outcome = odd and (odd.exception(LONG) or odd.result())
        if isinstance(outcome, ClientUpdate):
            updates.insert(1, outcome)
        strategy.served()
        stayed = [update for update in updates if update.client not in session.lost]
        arrays = strategy.aggregate(1, iter(stayed))
        took = time.monotonic() - start
    return SimpleNamespace(
        session=session, updates=updates, arrays=arrays, outcome=outcome, seconds=took
    )


@contextmanager
def joined(plan, client=BAD, token=None):
    """An end of the channel of its own, as of another SuperNode, that joins as `client`."""
    channel = msgspec.structs.replace(plan.channel, token=token or plan.channel.token, wait=LONG)
    connected = Connection(channel, client)
    try:
        yield Link(client, channel, connected)
    finally:
        connected.close()


def wait_for_others(strategy):
    """Wait until the real clients 0 and 2 have joined, so that only client 1 is missing."""
    until(lambda: {0, 2} <= strategy._session._streams.keys())


def let_time_pass(clock, session, seconds):
    """Move the clock by half of `seconds`, see that nobody is lost by that, then by the rest."""
    clock.move(seconds / 2)
    taken = Event()
    session._inbox.put(taken.set)  # behind it, the session looks at the clock again
    assert taken.wait(LONG)
    assert session.lost == {}
    clock.move(seconds / 2)


def batch(strategy, size=4, classes=1):
    """A batch that the server takes: smashed data and labels."""
    shape = strategy._smashed_shape(strategy.plan(1, BAD))
    return {"data": torch.ones(size, *shape), "labels": torch.arange(size) % classes}


def check_mean_of_updates(result, clients):
    """Layers that the server does not hold are the mean of those who finished, all is finite.

    And no limit in time was waited for.
    """
    assert result.seconds < SOON
    assert [update.client for update in result.updates] == clients
    for update in result.updates:
        assert update.metrics["batches"] > 0 and math.isfinite(update.metrics["train_loss"])
    assert all(np.isfinite(value).all() for value in result.arrays.values())
    for key in result.updates[0].arrays:
        mean = np.mean([update.arrays[key] for update in result.updates], axis=0)
        np.testing.assert_allclose(result.arrays[key], mean, rtol=0, atol=1e-6)


ALONE = {}  # by the options of the method: what the round of clients 0 and 2 alone gives


def check_as_without(result, strategy):
    """The round is that of clients 0 and 2 alone: what client 1 did has left no trace."""
    check_mean_of_updates(result, [0, 2])
    if strategy.options not in ALONE:
        alone = play(strategy)
        assert alone.session.lost == {}
        ALONE[strategy.options] = alone.arrays
    for key, value in ALONE[strategy.options].items():
        np.testing.assert_allclose(result.arrays[key], value, rtol=0, atol=1e-6, err_msg=key)
