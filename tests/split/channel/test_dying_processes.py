"""SuperNodes that die or never start: their clients are given up, the others go on."""

import os
import subprocess
import sys
import time
from threading import Thread

import msgspec
import pytest
from flwr.app import Message

from fedapps.split import strategy as split
from fedapps.split.client import Link
from fedapps.split.connection import Connection
from fedapps.split.frames import Frame
from fedapps.training.plan import Plan
from fedapps.wire import serial_grid
from fedapps.wire.requests import read_request
from fedapps.wire.serial_grid import SerialGrid
from tests.support import ROOT
from tests.support.clock import until
from tests.support.split_rounds import (
    BAD,
    BROKEN,
    LONG,
    RUN,
    SOON,
    check_mean_of_updates,
    joined,
    let_time_pass,
    opened,
    play,
)

CHILD = """
import sys
import msgspec, torch
from fedapps.split.connection import Connection
from fedapps.split.frames import Frame
from fedapps.training.channel import Channel
print("ready", flush=True)
channel, shape = msgspec.json.decode(sys.stdin.readline(), type=tuple[Channel, tuple[int, ...]])
connected = Connection(channel, 1)
connected.join(1, channel.token)
connected.receive(1, "begin", 600)
batch = {"data": torch.ones(4, *shape), "labels": torch.zeros(4, dtype=torch.int64)}
connected.send(Frame("data", 1), batch)
connected.receive(1, "gradient", 600)
print("trained", flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module", autouse=True)
def child():
    """A process that waits for a channel; started early, since its imports take seconds."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    yield process
    process.kill()
    process.communicate()


def test_a_client_whose_process_is_killed_is_lost_at_once(world, child):
    """It dies after one batch; nobody waits for a timeout."""
    strategy = world()
    assert child.stdout.readline() == "ready\n"

    def misbehave(plan):
        shape = strategy._smashed_shape(plan)
        child.stdin.write(msgspec.json.encode((plan.channel, shape)).decode() + "\n")
        child.stdin.flush()
        assert child.stdout.readline() == "trained\n"
        child.kill()  # SIGKILL
        return child.wait(LONG)

    waves, step = [], strategy.step

    def record(round_, wave):
        waves.append([smashed.client for smashed in wave])
        return step(round_, wave)

    strategy.step = record
    result = play(strategy, misbehave)
    assert result.outcome == -9
    assert waves[0] == [0, 1, 2]
    assert result.session.lost.keys() == result.session.gone.keys() == {BAD}
    assert BROKEN.match(result.session.lost[BAD])
    check_mean_of_updates(result, [0, 2])


class Dying(SerialGrid):
    """Two SuperNodes; the second joins the channel for its clients, dies and never replies."""

    def __init__(self, *args):
        super().__init__(*args)
        for context in self.contexts.values():
            context.node_config["workers"] = 0

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        for message in [*self.messages]:
            if message.metadata.dst_node_id == 2 and message.metadata.message_type == "train":
                self.messages.remove(message)
                Thread(target=self.die, args=(message,)).start()
        return ids

    def die(self, message: Message):
        header = read_request(message).header
        plans = [msgspec.json.decode(text, type=Plan) for text in header.plans]
        connected = Connection(plans[0].channel, header.clients[0])
        for client, plan in zip(header.clients, plans, strict=True):
            Link(client, plan.channel, connected).begin()
        connected._channel.close()


def test_a_dead_supernode_is_given_up(serial_run, tiny_npz, read_csv, read_rounds, monkeypatch):
    """Its message is never answered; the run does not wait for the end of round-timeout."""
    monkeypatch.setattr(split, "REPLY_TIME", 0.3)
    monkeypatch.setattr(serial_grid, "SerialGrid", Dying)
    start = time.monotonic()
    folder = serial_run(tiny_npz, RUN, num_supernodes=2)
    assert time.monotonic() - start < SOON
    failures = [e for e in read_csv(folder, "events.csv") if e["kind"] == "failure"]
    assert failures
    assert all(BROKEN.match(e["detail"]) for e in failures)
    (row,) = read_rounds(folder)
    assert row["failures"] == len(failures) < row["clients"] == 3


def test_a_supernode_that_never_starts_costs_join_timeout_in_each_round(
    serial_run, tiny_npz, read_csv, read_rounds, monkeypatch, clock, sessions
):
    class Silent(Dying):
        """The second SuperNode never even starts its message; time goes by as it has to."""

        def die(self, message: Message):
            session, missing = sessions[-1], {*read_request(message).header.clients}
            until(lambda: session.rules.shapes.keys() - missing == session._streams.keys())
            let_time_pass(clock, session, 2.0)
            until(lambda: missing == session.lost.keys())
            clock.move(split.REPLY_TIME + 1)

    monkeypatch.setattr(serial_grid, "SerialGrid", Silent)
    start = time.monotonic()
    folder = serial_run(tiny_npz, RUN, "num-rounds=2 join-timeout=2.0", num_supernodes=2)
    assert time.monotonic() - start < SOON
    failures = [e for e in read_csv(folder, "events.csv") if e["kind"] == "failure"]
    assert {e["round"] for e in failures} == {"1", "2"}
    late = "did not join the channel in 2 s (join-timeout): its SuperNode is down or busy"
    assert all(e["detail"].startswith(late) for e in failures)
    assert all(row["failures"] < row["clients"] for row in read_rounds(folder))


@pytest.mark.parametrize("before", ["done", "dropped"])
def test_a_supernode_that_dies_is_given_up_whatever_its_clients_did_before(world, clock, before):
    """Clients 0 and 1 share a stream that breaks in client 1's work; client 0 was done, or out.

    Its reply will not come either, and a message is given up only if all its clients are.
    """
    strategy = world()
    frame = Frame("done", 0) if before == "done" else Frame("gradient", 0)
    with strategy.running():
        plans = opened(strategy, 1)
        with joined(plans[0], 0) as first:
            second = Link(1, plans[1].channel, first.connection)
            with joined(plans[2], 2) as third:
                third.begin(), first.begin(), second.begin()
                first.connection.send(frame)
                session = strategy._session
                until(lambda: 0 in {*session._done, *session.lost})
                assert strategy.unreachable() == {}
                first.connection._channel.close()  # as a process that dies
                until(lambda: 1 in session.gone)
                clock.move(split.REPLY_TIME + 1)
                assert strategy.unreachable().keys() == {0, 1}
                third.connection.send(Frame("done", 2))
                strategy.served()
    assert BROKEN.match(session.lost[1])
