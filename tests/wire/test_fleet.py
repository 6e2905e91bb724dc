"""The fleet: work is spread evenly, replies come as they come, updates leave in client order."""

import itertools
import time
from dataclasses import replace
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from flwr.app import Message, RecordDict
from flwr.app.message import remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import PullObjectResponse
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.superlink.grid.http_grid import HttpGrid
from google.protobuf.message import DecodeError
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fedapps.core import flower
from fedapps.method.update import ClientUpdate, Failure
from fedapps.models.layers import Layout
from fedapps.training.plan import Plan
from fedapps.wire import compact
from fedapps.wire import fleet as fleet_module
from fedapps.wire import grid as grid_module
from fedapps.wire.exchange import Exchange, answers_to
from fedapps.wire.fleet import Fleet, portions, spread
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.questions import (
    QuestionHeader,
    pack_answer,
    pack_answers,
    pack_question,
    read_question,
    unpack_answers,
)
from fedapps.wire.requests import Request, RoundInfo, read_request
from tests.support.clock import passing
from tests.support.fake_grid import FakeGrid, echo, error, reply_to

NONE = frozenset()
LAYOUT = Layout(("a",), ("a",), {"a": ("a.w",)}, {"a.w": (2,)}, frozenset(["a.w"]), {}, NONE)
PLAN = Plan(round=1, download=("a",), stages=(), upload=("a",))
INFO = RoundInfo("/runs/x", "0123")


def make_requests(clients):
    server = {"a.w": np.zeros(2, np.float32)}
    return [Request(client, PLAN, server) for client in clients]


def make_messages(nodes):
    return [Message(RecordDict(), node, "train") for node in nodes]


# Sharing out --------------------------------------------------------------------------------------

work = st.lists(st.integers(0, 1000), max_size=40)


def loads_of(parts, loads):
    return [sum(loads[request.client] for request in part) for part in parts]


@given(work, st.integers(1, 8), st.randoms())
def test_every_request_goes_to_one_node_in_client_order(loads, nodes, random):
    requests = make_requests(random.sample(range(len(loads)), len(loads)))
    mixed = [float(loads[request.client]) for request in requests]
    parts = spread(requests, mixed, range(nodes))
    assert len(parts) == nodes
    assert sorted(r.client for part in parts for r in part) == list(range(len(loads)))
    assert all(part == sorted(part, key=lambda r: r.client) for part in parts)
    assert spread(requests, mixed, range(nodes)) == parts


@settings(max_examples=50)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=6), st.integers(1, 3))
@example([10, 1, 1, 1, 1, 1], 2)
def test_the_busiest_node_is_at_most_a_third_above_the_optimum(loads, nodes):
    """Graham 1969: (4/3 - 1/(3m)) for longest first; the optimum by trying all of them."""
    places = itertools.product(range(nodes), repeat=len(loads))
    best = min(np.bincount(place, loads, nodes).max() for place in places)
    parts = spread(make_requests(range(len(loads))), [float(load) for load in loads], range(nodes))
    assert 3 * nodes * max(loads_of(parts, loads)) <= (4 * nodes - 1) * best


def test_a_node_without_work_gets_no_message():
    fleet = Fleet([7, 8, 9])
    allotted = fleet.allot(make_requests([4, 2]), [1.0, 2.0], fleet.nodes)
    assert [(node, [r.client for r in part]) for node, part in allotted] == [(7, [2]), (8, [4])]


@pytest.mark.parametrize(("limit", "together", "sizes"), [
    (2**28, 0, [5]), (16, 0, [2, 2, 1]), (24, 0, [3, 2]), (1, 0, [1] * 5),
    (24, 2, [2, 2, 1]), (1, 2, [2, 2, 1]), (1, 4, [4, 1]), (1, 9, [5]),
])  # fmt: skip
def test_updates_of_one_message_have_so_many_bytes(limit, together, sizes, monkeypatch):
    """An update has two numbers of four bytes each. Those that train together stay together."""
    monkeypatch.setattr(fleet_module, "PORTION", limit)
    requests = make_requests([1, 3, 4, 6, 9])
    found = portions([(7, requests), (8, make_requests([10]))], LAYOUT, together)
    assert [len(part) for _, part in found] == [*sizes, 1]
    assert [node for node, _ in found] == [7] * len(sizes) + [8]
    assert [request for _, part in found[:-1] for request in part] == requests
    few = Plan(round=1, download=("a",), stages=(), upload=())
    scored = [replace(request, plan=few) for request in requests]
    assert portions([(7, scored)], LAYOUT, together) == [(7, scored)]  # they upload nothing


def test_equal_requests_are_dealt_in_turn():
    parts = spread(make_requests(range(5)), [1.0] * 5, [7, 8, 9])
    assert [[request.client for request in part] for part in parts] == [[0, 3], [1, 4], [2]]
    (part,) = spread(make_requests([3, 1, 2]), [1.0, 2.0, 3.0], [5])  # nothing to spread
    assert [request.client for request in part] == [1, 2, 3]


def test_replies_are_yielded_as_they_come_and_asked_for_no_more():
    grid = FakeGrid(polls=[[echo(2)], [], [echo(3), echo(1)]])
    replies = StreamingGrid(grid).send_and_receive(make_messages([1, 2, 3]))
    assert [m.metadata.dst_node_id for m in grid.pushed] == [1, 2, 3]  # before anybody iterates
    assert grid.asked == []
    assert next(replies).metadata.src_node_id == 2
    assert len(grid.asked) == 1
    assert [reply.metadata.src_node_id for reply in replies] == [1, 3]
    everything = {"message 1", "message 2", "message 3"}
    assert grid.asked == [everything, everything - {"message 2"}, everything - {"message 2"}]


@pytest.fixture
def clock(monkeypatch):
    return passing(monkeypatch, grid_module)


def test_streaming_ends_after_the_timeout(clock):
    grid = FakeGrid(polls=[[echo(1)]])
    replies = StreamingGrid(grid).send_and_receive(make_messages([1, 2]), timeout=0.105)
    assert [reply.metadata.src_node_id for reply in replies] == [1]
    assert clock.slept == [0.01] * len(clock.slept)
    assert clock.now == pytest.approx(0.11) and len(grid.asked) == 1 + 1 + 11  # after the reply


def test_streaming_sleeps_while_it_waits_for_others_than_who_was_given_up(clock):
    """A client that is out of split learning stays given up to the end of the round."""
    grid = FakeGrid(polls=[[]] * 20 + [[echo(2)]])
    replies = StreamingGrid(grid, lambda: {"message 1"}).send_and_receive(make_messages([1, 2]))
    assert [reply.metadata.src_node_id for reply in replies] == [2]
    assert len(clock.slept) == 20 - 1  # not after the pass in which message 1 was given up


def test_without_a_timeout_streaming_waits(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    grid = FakeGrid(polls=[[]] * 500 + [[echo(1)]])
    replies = StreamingGrid(grid).send_and_receive(make_messages([1]))
    assert len(list(replies)) == 1
    assert len(grid.asked) == 501


def test_what_could_not_be_pushed_is_not_waited_for():
    grid = FakeGrid(polls=[[echo(2)]], lost=[1])
    replies = StreamingGrid(grid).send_and_receive(make_messages([1, 2]))
    assert [reply.metadata.src_node_id for reply in replies] == [2]
    grid = FakeGrid()  # and nothing to send is nothing to wait for
    assert list(StreamingGrid(grid).send_and_receive([])) == [] == grid.asked


@pytest.mark.parametrize("error", [KeyError("a"), ValueError("x\ny"), MemoryError(), DecodeError()])
def test_a_reply_that_cannot_be_read_is_an_error_of_its_node_alone(error, monkeypatch):
    monkeypatch.setattr(grid_module, "BROKEN_WAIT", 0.05)
    grid = FakeGrid(polls=[[echo(1), echo(3)]], broken={2: error})
    replies = list(StreamingGrid(grid).send_and_receive(make_messages([1, 2, 3])))
    assert [reply.metadata.reply_to_message_id for reply in replies] == [
        f"message {number}" for number in (1, 3, 2)
    ]
    assert [reply.has_error() for reply in replies] == [False, False, True]
    cause = f"its reply cannot be read: {type(error).__name__}: "
    assert replies[2].error.reason.startswith(cause)


def test_what_somebody_else_sent_with_a_reply_does_not_cost_it():
    """A message to the server that nobody asked for comes with any pull, and may be broken."""
    grid = FakeGrid(polls=[[echo(1)], [], [echo(2)]], broken={2: KeyError("of a stranger")})
    replies = list(StreamingGrid(grid).send_and_receive(make_messages([1, 2])))
    assert [(r.metadata.src_node_id, r.has_error()) for r in replies] == [(1, False), (2, False)]


def test_a_reply_that_takes_long_to_pull_does_not_cost_the_others_that_came_meanwhile(clock):
    class Stalling(FakeGrid):
        def pull_messages(self, message_ids):
            if message_ids == ["message 2"]:
                clock.now += 0.2
            return super().pull_messages(message_ids)

    grid = Stalling(polls=[[], [echo(1), echo(2)]])
    replies = StreamingGrid(grid).send_and_receive(make_messages([1, 2]), timeout=0.1)
    assert [reply.metadata.src_node_id for reply in replies] == [1, 2]


@pytest.mark.parametrize("error", [httpx.ConnectError("gone"), RuntimeError("x"), OSError("y")])
def test_a_superlink_that_died_ends_the_run(error):
    grid = FakeGrid(polls=[[echo(1), echo(3)]], broken={2: error})
    with pytest.raises(type(error)):
        list(StreamingGrid(grid).send_and_receive(make_messages([1, 2, 3])))


def test_nobody_replies_for_somebody_else():
    """To which message a reply belongs is what its sender wrote, whoever it is."""

    class Mixing(FakeGrid):
        def pull_messages(self, message_ids):
            return [echo(2)({message.metadata.dst_node_id: message for message in self.pushed})]

    messages = make_messages([1, 2])
    (reply,) = StreamingGrid(Mixing()).send_and_receive(messages, timeout=0.1)
    assert reply.metadata.reply_to_message_id == "message 2" and not reply.has_error()


def test_asking_takes_a_tenth_of_the_time_at_most(clock):
    class Slow(FakeGrid):
        def pull_messages(self, message_ids):
            clock.now += 0.01
            return super().pull_messages(message_ids)

    grid = Slow(polls=[[], [echo(node) for node in range(5)]])
    assert len(list(StreamingGrid(grid).send_and_receive(make_messages(range(5))))) == 5
    assert clock.slept == [pytest.approx(0.45)]


def make_update(client):
    return ClientUpdate(client, {"a.w": np.full(2, client, np.float32)}, 5, {}, 5.0)


def make_exchange(parts):
    """An exchange whose messages to the nodes 0, 1, ... are pushed."""
    exchange = Exchange([(n, make_requests(part)) for n, part in enumerate(parts) if part])
    messages = exchange.messages(INFO, "train", "1")
    FakeGrid().push_messages(messages)
    return exchange, {message.metadata.dst_node_id: message for message in messages}


def no_figures(update, plan):
    return None


@st.composite
def waves(draw):
    """Parts of some nodes (some empty), the order of replies, who fails, who never answers."""
    clients = draw(st.lists(st.integers(0, 99), min_size=1, max_size=8, unique=True))
    parts = [[] for _ in range(draw(st.integers(1, 4)))]
    for client in sorted(clients):
        parts[draw(st.integers(0, len(parts) - 1))].append(client)
    answering = draw(st.permutations([node for node, part in enumerate(parts) if part]))
    answering = answering[: draw(st.integers(0, len(answering)))]
    return parts, answering, draw(st.sets(st.sampled_from(clients)))


@given(waves())
def test_updates_leave_in_client_order_whatever_the_order_of_replies(wave):
    parts, answering, failing = wave
    exchange, messages = make_exchange(parts)
    assert list(messages) == [node for node, part in enumerate(parts) if part]
    yielded, seen = [], []

    def replies():
        for node in answering:
            updates = [make_update(client) for client in parts[node] if client not in failing]
            failures = [Failure(c, "ValueError: x") for c in parts[node] if c in failing]
            seen.append(len(yielded))
            yield reply_to(messages[node], updates, failures)

    for update in exchange.updates(replies(), LAYOUT, no_figures):
        yielded.append(update.client)
        assert update.arrays["a.w"].tolist() == [update.client] * 2
    answered = {client for node in answering for client in parts[node]}
    everybody = {client for part in parts for client in part}
    assert yielded == sorted(answered - failing)
    assert sorted((f.client, f.cause) for f in exchange.failures) == sorted(
        [(client, "ValueError: x") for client in answered & failing]
        + [(client, "no reply in time") for client in everybody - answered]
    )
    for count, position in zip(seen, range(len(answering)), strict=True):
        known = {client for node in answering[:position] for client in parts[node]}
        ready = list(itertools.takewhile(known.__contains__, sorted(everybody)))
        assert count == len([client for client in ready if client not in failing])


@pytest.mark.parametrize("limit", [1, 16])
def test_few_updates_wait_where_messages_are_answered_in_order(limit, monkeypatch):
    """As many as are at work at once: 40 clients in messages of one or two, at 4 SuperNodes."""
    monkeypatch.setattr(fleet_module, "PORTION", limit)
    fleet = Fleet([1, 2, 3, 4], workers=4)
    allotted = fleet.allot(make_requests(range(40)), [1.0] * 40, fleet.nodes)
    found = portions(allotted, LAYOUT, 0)
    exchange = Exchange(found)
    messages = exchange.messages(INFO, "train", "1")
    FakeGrid().push_messages(messages)
    answered, yielded, waiting = [], [], []

    def replies():
        for message, (_, part) in zip(messages, found, strict=True):
            waiting.append(len(answered) - len(yielded))
            answered.extend(part)
            yield reply_to(message, [make_update(request.client) for request in part], [])

    for update in exchange.updates(replies(), LAYOUT, no_figures):
        yielded.append(update.client)
    assert yielded == [*range(40)]
    assert max(waiting) < sum(len(part) for _, part in found[:4])


def test_late_and_repeated_replies_are_ignored():
    _, earlier = make_exchange([[1], [2]])
    for message in earlier.values():
        message.metadata.__dict__["_message_id"] += " of the round before"
    exchange, messages = make_exchange([[1], [2]])
    answer = reply_to(messages[0], [make_update(1)], [])
    repeated = reply_to(messages[0], [], [Failure(1, "changed its mind")])
    late = reply_to(earlier[1], [make_update(2)], [])
    updates = exchange.updates([late, answer, repeated, answer], LAYOUT, no_figures)
    assert [update.client for update in updates] == [1]
    assert exchange.failures == [Failure(2, "no reply in time")]


def test_an_answer_for_another_nodes_client_is_worth_nothing():
    exchange, messages = make_exchange([[1, 3], [2, 4]])
    stolen = reply_to(messages[0], [make_update(client) for client in (1, 2, 3)], [])
    own = reply_to(messages[1], [make_update(4)], [])
    assert [u.client for u in exchange.updates([stolen, own], LAYOUT, no_figures)] == [1, 3, 4]
    assert exchange.failures == [Failure(2, "the reply has no result of this client")]


def test_figures_are_read_once_and_travel_with_the_update():
    exchange, messages = make_exchange([[1, 2], [3]])
    read = []

    def read_figures(update, plan):
        assert plan is PLAN
        read.append(update.client)
        if update.client == 2:
            raise ValueError("no such\nfigure")
        return {"of": update.client}

    replies = [
        reply_to(messages[1], [make_update(3)], []),
        reply_to(messages[0], [make_update(1), make_update(2)], []),
    ]
    updates = [*exchange.updates(replies, LAYOUT, read_figures)]
    assert [(u.client, u.checked) for u in updates] == [(1, {"of": 1}), (3, {"of": 3})]
    assert read == [3, 1, 2]
    assert exchange.failures == [Failure(2, "the reply's figures are broken: figure")]


def test_clients_are_asked_where_they_are_and_who_gives_no_answer_is_a_failure():
    """Node 1 answers for its clients and for another's, 2 breaks, 3 is silent."""

    def answers(by_node):
        values = {0: [1.0, 2.0], 4: [3.0], 7: [9.0]}
        return pack_answers(by_node[1], {c: pack_answer(v) for c, v in values.items()})

    grid = FakeGrid(polls=[[error(2, "OSError: gone")], [answers]])
    hosts = [(1, [0, 4]), (2, [7]), (3, [5, 6])]
    messages = [pack_question(clients, node, "how many", "/x") for node, clients in hosts]
    asked = [clients for _, clients in hosts]
    found, failures = answers_to(StreamingGrid(grid), messages, asked, 0.05, unpack_answers)
    assert found == {0: [1.0, 2.0], 4: [3.0]}
    late = "no reply in time"
    assert failures == [Failure(7, "OSError: gone"), Failure(5, late), Failure(6, late)]
    assert [read_question(message) for message in grid.pushed] == [
        QuestionHeader("how many", clients, "/x") for _, clients in hosts
    ]


class FakeLink:
    """The SuperLink behind Flower's HttpGrid: it hands out each reply once, then its objects."""

    def __init__(self):
        self.replies = {}  # by the id of the message that they answer
        self.objects = {}

    def put(self, reply, change=None):
        """Keep a reply; `change` breaks its objects, a dict of bytes by id."""
        objects = {key: obj.deflate() for key, obj in get_all_nested_objects(reply).items()}
        reply.metadata.__dict__["_message_id"] = reply.object_id
        proto = message_to_proto(remove_content_from_message(reply))
        self.replies[reply.metadata.reply_to_message_id] = proto, get_object_tree(reply)
        if change:
            change(objects, reply.object_id)
        self.objects |= objects

    def PullMessages(self, request):
        found = [self.replies.pop(id_) for id_ in request.message_ids if id_ in self.replies]
        protos, trees = zip(*found, strict=True) if found else ((), ())
        return PullAppMessagesResponse(messages_list=protos, message_object_trees=trees)

    def PullObject(self, request):
        content = self.objects.get(request.object_id)
        return PullObjectResponse(
            object_found=content is not None, object_available=True, object_content=content or b""
        )

    def ConfirmMessageReceived(self, request):
        pass


def of_kind(objects, kind):
    return next(key for key, content in objects.items() if content.startswith(kind))


def garbage(kind):
    """Random bytes instead of an object."""

    def change(objects, root):
        objects[of_kind(objects, kind)] = bytes(range(256))

    return change


def missing(objects, root):
    del objects[of_kind(objects, b"ArrayChunk ")]


def of_another_type(objects, root):
    """The reply's own object is no message."""
    objects[root] = RecordDict().deflate()


def content_of_another_type(objects, root):
    """The message holds an array record where a dict of records is due."""
    inner, outer = of_kind(objects, b"ArrayRecord "), of_kind(objects, b"RecordDict ")
    objects[root] = objects[root].replace(outer.encode(), inner.encode())


def broken_body(kind, body):
    def change(objects, root):
        key = of_kind(objects, kind)
        head = objects[key].partition(b"\0")[0].rpartition(b" ")[0]
        objects[key] = head + b" %d\0" % len(body) + body

    return change


LARGE = b'{"dtype":"float32", "shape":[2500000000], "stype":"numpy.ndarray", "arraychunk_ids":[]}'
BROKEN_REPLIES = {
    "garbage": garbage(b"Message "),
    "garbage inside": garbage(b"ArrayChunk "),
    "missing": missing,
    "other type": of_another_type,
    "content of another type": content_of_another_type,
    "no JSON": broken_body(b"ArrayRecord ", b"{"),
    "deep JSON": broken_body(b"RecordDict ", b"[" * 100_000),
    "no protobuf": broken_body(b"MetricRecord ", b"\xff" * 9),
    "no such child": broken_body(b"Array ", b'{"arraychunk_ids": [7]}'),
    "10 GB": broken_body(b"Array ", LARGE),
}


def http_grid(link):
    grid = HttpGrid(token="x")
    grid._client, grid._run = link, SimpleNamespace(run_id=1)
    return grid


@pytest.mark.parametrize("name", BROKEN_REPLIES)
def test_objects_that_are_none_cost_their_client_only(name, monkeypatch):
    monkeypatch.setattr(grid_module, "BROKEN_WAIT", 0.0)
    exchange, messages = make_exchange([[1], [2], [3]])
    link = FakeLink()
    for node, message in messages.items():
        change = BROKEN_REPLIES[name] if node == 1 else None
        update = replace(make_update(node + 1), num_examples=node + 1)  # no object is shared
        link.put(reply_to(message, [update], []), change)
    ids = [message.metadata.message_id for message in messages.values()]
    replies = StreamingGrid(http_grid(link))._replies(ids, time.monotonic(), None)
    updates = [*exchange.updates(replies, LAYOUT, no_figures)]
    assert [update.client for update in updates] == [1, 3]
    assert all(u.arrays["a.w"].tolist() == [u.client] * 2 for u in updates)
    (failure,) = exchange.failures
    assert failure.client == 2
    assert "\n" not in failure.cause and failure.cause != "no reply in time"


def test_all_replies_that_are_there_cost_one_question_and_leave_in_the_order_of_the_ids():
    _, messages = make_exchange([[1], [2], [3]])
    link, asked = FakeLink(), []
    for node in (2, 0):
        link.put(compact.pack(reply_to(messages[node], [make_update(node + 1)], [])))
    pull = link.PullMessages
    link.PullMessages = lambda request: asked.append([*request.message_ids]) or pull(request)
    ids = [message.metadata.message_id for message in messages.values()]
    replies = [*StreamingGrid(http_grid(link)).pull_messages(ids)]
    assert [reply.metadata.reply_to_message_id for reply in replies] == [ids[0], ids[2]]
    assert [[*reply.content] for reply in replies] == [["metrics", "arrays", "failures"]] * 2
    assert asked == [ids]


def test_a_reply_that_says_two_things_about_what_it_answers_is_none():
    _, messages = make_exchange([[1], [2]])
    link = FakeLink()
    link.put(reply_to(messages[0], [make_update(1)], []))
    mine, other = (message.metadata.message_id for message in messages.values())
    proto, tree = link.replies.pop(mine)
    proto.metadata.reply_to_message_id = other
    link.replies[other] = proto, tree
    assert [*StreamingGrid(http_grid(link)).pull_messages([mine, other])] == []


def test_a_grid_that_is_another_one_is_asked_for_each_reply(monkeypatch, capsys):
    flower.leave_as_it_is.cache_clear()
    monkeypatch.delattr(HttpGrid, "_runtime_client")
    assert StreamingGrid(http_grid(FakeLink()))._known is None
    assert "how replies are pulled is left as it is" in capsys.readouterr().out


def test_small_messages_to_devices_are_packed():
    class Kept(HttpGrid):
        def push_messages(self, messages):
            return [compact.is_packed(message) for message in messages]

    messages = [*make_exchange([[1]])[1].values()]
    assert StreamingGrid(Kept(token="x")).push_messages(messages) == [True]
    assert read_request(compact.unpack(messages[0])).header.clients == [1]
