"""The process of a SuperNode: when it looks for messages, what it starts, how it ends."""

import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest
from flwr.supercore.inflatable import inflatable_utils
from flwr.superlink.grid.http_grid import HttpGrid

from fedapps import server_app
from fedapps.core import config
from fedapps.device import waiting
from fedapps.wire.serial_grid import SerialGrid
from tests.deploy.helpers import PATIENCE, flower
from tests.support.clock import passing

PULLS = dict(inflatable_utils.pull_objects.__kwdefaults__)


@pytest.fixture
def clock(monkeypatch):
    clock = passing(monkeypatch, waiting)
    clock.now = 1000.0
    return clock


def test_a_supernode_looks_again_after_a_tenth_of_its_wait(clock):
    polling, slept = waiting.PollingPause(), clock.slept
    while clock.now < 1100.0:  # an idle device ends up with Flower's pause
        polling.sleep(3.0)
    assert slept[:10] == [waiting.SHORTEST] * 10 and slept[-5:] == [3.0] * 5
    assert len(slept) < 100.0 / 3.0 + 65  # the price: some 60 more questions, once
    for pause in (0.5, 3.0):  # a message has come, the reply is gone
        polling.sleep(pause)
        assert slept[-1] == waiting.SHORTEST
    for _ in range(200):
        polling.sleep(0.5)
    assert slept[-1] == 0.5


def test_a_new_wait_begins_when_a_message_has_been_answered(clock):
    answered = [0.0]
    polling = waiting.PollingPause(lambda: answered[0])
    while clock.now < 1020.0:
        polling.sleep(3.0)
    answered[0] = clock.now - 0.1
    polling.sleep(3.0)
    assert clock.slept[-2] > 1.5 and clock.slept[-1] == waiting.SHORTEST


def test_asking_takes_a_supernode_a_tenth_of_its_time_at_most(clock):
    polling = waiting.PollingPause()
    polling.sleep(3.0)
    for asking in (0.0, 0.02, 0.2, 1.0):
        clock.now += asking
        polling.sleep(3.0)
    assert clock.slept == pytest.approx([*[waiting.SHORTEST] * 2, 0.18, 1.8, 3.0])


def test_next_to_no_pause_is_made_if_the_superlink_has_waited(clock):
    preference = waiting.Preference()
    polling = waiting.PollingPause(preference=preference)
    for preference.applied in (True, True, False, True):
        clock.now += 3.0  # until the SuperLink has answered
        polling.sleep(3)
    assert clock.slept == [waiting.SHORTEST, waiting.SHORTEST, 3, waiting.SHORTEST]
    for _ in range(60):  # it says that it waits, but does not
        polling.sleep(3)
    assert clock.slept[-1] == 3
    clock.now += 4.0
    polling.sleep(0.5)
    polling.sleep(0.5)
    clock.now += 4.0
    polling.sleep(0.5)  # of the app's reply the SuperLink knows nothing
    assert clock.slept[-1] == 0.5


@pytest.mark.parametrize("name", ["pull_objects", "pull_and_inflate_object_from_tree"])
def test_arrays_that_are_on_their_way_are_asked_for_again_soon(monkeypatch, name):
    """Not a second later, as Flower does by default."""
    function = getattr(inflatable_utils, name)
    was = dict(function.__kwdefaults__)
    assert was["initial_backoff"] == 1  # else look again what it means
    for key in ("pull_objects", "pull_and_inflate_object_from_tree"):
        defaults = dict(getattr(inflatable_utils, key).__kwdefaults__)
        monkeypatch.setattr(getattr(inflatable_utils, key), "__kwdefaults__", defaults)
    waiting.shorten_backoff()
    assert function.__kwdefaults__ == was | {"initial_backoff": waiting.INITIAL_BACKOFF}


def test_no_array_is_given_up_sooner(monkeypatch):
    waits, tries = [], iter(range(12))
    monkeypatch.setattr(inflatable_utils.pull_objects, "__kwdefaults__", dict(PULLS))
    waiting.shorten_backoff()

    def pull(_):
        if next(tries) < 11:
            raise inflatable_utils.ObjectUnavailableError("x")
        return b"there"

    event = SimpleNamespace(is_set=lambda: False, wait=waits.append, set=lambda: None)
    own = SimpleNamespace(**vars(threading) | {"Event": lambda: event})
    monkeypatch.setattr(inflatable_utils, "threading", own)
    assert inflatable_utils.pull_objects(["x"], pull) == {"x": b"there"}
    expected = [min(waiting.INITIAL_BACKOFF * 2**n, 10.0) for n in range(11)]
    assert waits == pytest.approx(expected, rel=0.21)  # Flower draws 20 % more or less


@pytest.mark.parametrize("grid", [HttpGrid, SerialGrid])
def test_a_server_of_supernodes_asks_again_soon_and_no_other(monkeypatch, flat_config, grid):
    asked = []
    monkeypatch.setattr(server_app, "shorten_backoff", lambda: asked.append(1))
    space = SimpleNamespace(settings=config.read(flat_config()))
    server_app.node_registry(object.__new__(grid), space)
    assert len(asked) == (grid is HttpGrid)


def test_a_supernode_that_cannot_start_says_why_and_ends(tmp_path):
    """A key in place of a certificate, say; Flower's shows a traceback, and its threads stay."""
    code = """if True:
        import threading
        from fedapps.device import supernode

        def flowers():
            threading.Thread(target=threading.Event().wait).start()
            raise ValueError("a traceback\\nno certificate in device.key")

        supernode.flower.command = lambda name: flowers
        supernode.main()
    """
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=PATIENCE, text=True,
        env=os.environ | flower(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert done.returncode == 1
    told = "ValueError: no certificate in device.key"
    assert told in done.stdout and "Traceback" not in done.stdout
