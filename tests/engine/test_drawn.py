"""Hooks of a strategy that draw random numbers which no seed decides are named."""

import random
from contextlib import nullcontext
from itertools import count

import numpy as np
import pytest
import torch

from fedapps.core import registry
from fedapps.engine.drawn import Drawn

LINE = "{} of fedavg draws from torch's global generator"
AMOUNTS = count(1)


@pytest.fixture
def told(serial_run, monkeypatch, caplog):
    """Return run(hook, before, after, *options) -> warnings of drawing in runs of FedAvg.

    `before` and `after` are called with the strategy around its own hook, where it ends.
    """

    def run(hook, before, after, *options):
        cls = registry.strategy_class("fedavg")
        own = getattr(cls, hook)

        def changed(self, *arguments):
            before(self)
            found = own(self, *arguments)
            after(self)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(cls, hook, changed, raising=False)
            serial_run('strategy="fedavg" num-rounds=2 finetune-epochs=1', *options)
        return [text for text in caplog.messages if "draws from" in text]

    return run


def draw(strategy):
    torch.rand(3)


def nothing(strategy):
    pass


@pytest.mark.parametrize(
    "hook", ["select", "plan", "download", "aggregate", "after_round", "evaluation_plan"]
)
@pytest.mark.parametrize("around", [(draw, nothing), (nothing, draw)], ids=["before", "after"])
def test_a_hook_that_draws_from_torchs_generator_is_told_once(told, hook, around):
    """Clients that train in the same process seed it while `aggregate` awaits their updates."""
    (line,) = told(hook, *around)
    assert line.startswith(LINE.format(hook))
    assert line.endswith('use generator(self.settings.seed, "fedavg", round_)')


def draw_from_numpy(strategy):
    np.random.randn()  # every other one of these only takes what the last one left


@pytest.mark.parametrize("hook", ["select", "download", "aggregate", "after_round"])
def test_a_hook_that_draws_from_numpys_generator_is_told_once(told, hook):
    (line,) = told(hook, nothing, draw_from_numpy)
    assert line.startswith(f"{hook} of fedavg draws from NumPy's global generator, which the whole")
    assert line.endswith('use generator(self.settings.seed, "fedavg", round_)')


def test_draws_of_flowers_threads_are_not_told(told):
    """They draw from Python's generator, such as after each heartbeat."""
    assert not told("aggregate", nothing, lambda strategy: random.random())


def test_what_is_drawn_once_as_at_an_import_is_not_told(told):
    for hook in ("select", "download", "aggregate"):
        left = [draw_from_numpy]
        assert not told(hook, nothing, lambda strategy, left=left: left and left.pop()(strategy))


@pytest.mark.parametrize(
    ("hook", "what"), [("after_training", "training"), ("extra_scores", "evaluation")]
)
def test_a_client_that_draws_from_numpys_generator_is_told_once(told, monkeypatch, hook, what):
    cls = registry.client_class("fedavg")
    own = getattr(cls, hook)

    def changed(self, *arguments):
        np.random.rand()
        return own(self, *arguments)

    monkeypatch.setattr(cls, hook, changed, raising=False)
    (line,) = told("select", nothing, nothing)
    assert line.startswith(f"{what} at a client of fedavg draws from NumPy's global generator")
    assert line.endswith('generator(self.settings.seed, "fedavg", plan.round, self.client)')


def test_draws_between_the_updates_are_told(told, monkeypatch):
    """After the first update, and before the last one, a client trains and seeds."""

    class Drawing:
        def __init__(self, updates):
            self.updates = updates

        def __iter__(self):
            for place, update in enumerate(self.updates):
                if place == 1:
                    torch.rand(3)
                yield update

    cls = registry.strategy_class("fedavg")
    own = cls.aggregate
    monkeypatch.setattr(
        cls, "aggregate", lambda self, r, updates: own(self, r, Drawing(updates)), raising=False
    )
    (line,) = told("select", nothing, nothing)
    assert line.startswith(LINE.format("aggregate"))


def seeded(strategy):
    """Draw after the same seed, each time another amount."""
    torch.manual_seed(strategy.settings.seed)
    torch.rand(next(AMOUNTS))


def forked(strategy):
    with torch.random.fork_rng():
        torch.rand(3)


def with_own_generator(strategy):
    torch.rand(3, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize("right", [seeded, forked, with_own_generator])
@pytest.mark.parametrize("hook", ["select", "download", "aggregate", "after_round"])
def test_who_seeds_what_is_drawn_is_told_nothing(told, hook, right):
    assert not told(hook, right, right)


def test_what_is_drawn_does_not_depend_on_whether_somebody_watches():
    def drawn(watched):
        with torch.random.fork_rng():
            torch.manual_seed(7)
            with watched:
                found = torch.rand(700)
            return torch.initial_seed(), [*found.tolist(), *torch.randn(700).tolist()]

    assert drawn(Drawn("fedavg").watched("plan")) == drawn(nullcontext())


def trained_here(strategy):
    data = strategy.workspace.samples(0, "train")
    strategy.train_here(1, data, strategy.stage(1, strategy.layout.names))


def test_training_on_the_server_is_told_nothing(told):
    """The trainer seeds what it draws."""
    assert not told("after_round", nothing, trained_here, "server-data=0.2")
