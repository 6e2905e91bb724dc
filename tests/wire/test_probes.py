"""Replies that never come: probes find out, and wait for whoever is only slow."""

from types import SimpleNamespace

import pytest
from flwr.app import Message, RecordDict

from fedapps.wire import grid, probes
from tests.support.fake_grid import FakeGrid, echo, error


@pytest.fixture
def exchange(monkeypatch):
    """Return exchange(polls) -> (replies by node, nodes and kinds of what was sent to them).

    Each look at the clock takes a second. Two devices, 7 and 8, get a message each.
    """

    def exchange(polls):
        clock = iter(range(100_000))
        monkeypatch.setattr(
            grid, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None)
        )
        below = FakeGrid(polls)
        streaming = grid.StreamingGrid(below)
        streaming._devices = True
        messages = [Message(RecordDict(), node, "train") for node in (7, 8)]
        replies = [*streaming.send_and_receive(messages)]
        nodes = {m.metadata.message_id: m.metadata.dst_node_id for m in below.pushed}
        sent = [(m.metadata.dst_node_id, m.metadata.message_type) for m in below.pushed]
        return {nodes[r.metadata.reply_to_message_id]: r for r in replies}, sent

    return exchange


def first(node):
    """A reply to the message of a node that was sent before any probe."""
    return lambda by_node: Message(RecordDict(), reply_to=first.pushed[node])


def later(*replies):
    """Nothing until the first probes are sent, and then these replies."""
    return [[] for _ in range(12)] + [[*replies]]


@pytest.fixture(autouse=True)
def remember_first_messages(monkeypatch):
    push = FakeGrid.push_messages

    def pushing(self, messages):
        messages = [*messages]
        if not self.pushed:
            first.pushed = {}
        for message in messages:
            first.pushed.setdefault(message.metadata.dst_node_id, message)
        return push(self, messages)

    monkeypatch.setattr(FakeGrid, "push_messages", pushing)


def test_a_message_that_a_probe_has_overtaken_is_lost(exchange):
    replies, sent = exchange([[echo(8)], *later(echo(7))])
    assert sent == [(7, "train"), (8, "train"), (7, "query.probe")]
    assert not replies[8].has_error()
    assert replies[7].error.reason == probes.LOST


def test_a_reply_that_comes_with_the_answer_to_its_probe_counts(exchange):
    replies, sent = exchange(later(first(7), echo(7), first(8)))
    assert [kind for _, kind in sent] == 2 * ["train"] + 2 * ["query.probe"]
    assert replies.keys() == {7, 8}
    assert not any(reply.has_error() for reply in replies.values())


def test_who_is_only_slow_is_waited_for_and_asked_ever_less_often(exchange):
    replies, sent = exchange([[echo(8)], *([] for _ in range(300)), [first(7)]])
    assert not replies[7].has_error()
    assert 3 <= len(sent) - 2 <= 8  # after 30 s, 60 s, 120 s, ... of 300 polls


def test_a_probe_that_has_not_reached_the_device_says_nothing(exchange):
    """An error stands for the answer, such as that the SuperLink has not heard of the device."""
    replies, _ = exchange([[echo(8)], *later(error(7)), *([] for _ in range(20)), [first(7)]])
    assert not replies[7].has_error()


def test_no_probe_goes_to_a_simulation(monkeypatch):
    monkeypatch.setattr(probes, "FIRST", 0.0)
    below = FakeGrid([[], [echo(7)]])
    messages = [Message(RecordDict(), 7, "train")]
    assert len([*grid.StreamingGrid(below).send_and_receive(messages)]) == 1
    assert len(below.pushed) == 1
