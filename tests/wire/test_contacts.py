"""What devices say about themselves: checked, kept in devices.json, and warned of."""

import json
import math
from types import SimpleNamespace

import msgspec
import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedapps.wire import contacts, health, nodes
from fedapps.wire.contacts import LeftOut, Lookout, read
from fedapps.wire.fleet import Bound, Fleet
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.health import DAY, Clock, Health
from fedapps.wire.hello import Hello, pack_greeting, pack_hello, unpack_hello
from fedapps.wire.nodes import NodeRegistry
from tests.support.clock import passing
from tests.support.fake_grid import FakeGrid, error, said
from tests.support.tls import make_tls

NOW = 1_800_000_000.0
VERSIONS = {"fedapps": "0.1.0", "flwr": "1.41.0", "torch": "2.9.1+cpu", "python": "3.11.7"}


def about(clock=NOW, **other):
    return Health(**{"clock": clock, "disk": 10**10} | VERSIONS | other)


def test_a_greeting_carries_the_health_of_a_device_alone(tmp_path):
    for found in (None, health.of_this_machine(tmp_path)):
        hello = Hello(client=3, train=5, health=found)
        assert unpack_hello(pack_hello(pack_greeting(1), hello)) == hello
    assert "health" not in pack_hello(pack_greeting(1), Hello()).content


HOSTILE = {
    "clock": [math.nan, math.inf, -1.0, 2.0**40, "now", True, [1.0]],
    "certificate": [math.nan, -1.0, 2.0**41, "soon"],
    "disk": [-2, 2**62, 0.5, "much"],
    "torch": ["2.9\n", "x" * 41, "\x1b[2J", "<b>", 2, "é"],
}


@pytest.mark.parametrize(("key", "value"), [(k, v) for k, vs in HOSTILE.items() for v in vs])
def test_a_hostile_value_makes_the_answer_a_broken_one(key, value):
    figures = msgspec.to_builtins(about()) | {key: value}
    records = {"hello": ConfigRecord({"client": 0}), "health": ConfigRecord(figures)}
    found = unpack_hello(Message(RecordDict(records), reply_to=pack_greeting(1)))
    assert found.problem.startswith("its answer is broken: ") and found.health is None


def test_without_a_clock_the_answer_is_broken():
    records = {"hello": ConfigRecord({"client": 0}), "health": ConfigRecord({"disk": 5})}
    assert unpack_hello(Message(RecordDict(records), reply_to=pack_greeting(1))).problem


def test_this_machine_says_what_it_is(tmp_path):
    folder = make_tls(tmp_path / "tls")  # valid for a day
    found = health.of_this_machine(tmp_path, (None, folder / "ca.crt"))
    assert found.fedapps and found.torch.startswith("2.") and found.disk > 0
    assert found.days(found.clock) == pytest.approx(1.0, abs=0.01)
    other = health.of_this_machine(tmp_path / "gone", (None,))
    assert (other.disk, other.certificate, other.days(NOW)) == (-1, 0.0, None)


def test_a_clock_is_compared_with_the_middle_of_the_question():
    clock = Clock.of(NOW + 70, asked=NOW - 4, answered=NOW)
    assert clock == Clock(ahead=72.0, within=2.0)
    rough = Clock.of(NOW + 70, asked=NOW - 400, answered=NOW + 400)
    assert rough.after(clock) == clock, "it agrees, but says less"
    set_since = Clock.of(NOW, asked=NOW - 10, answered=NOW)
    assert set_since.after(clock) == set_since


@pytest.mark.parametrize(("ahead", "within", "warns"), [
    (4.0, 1.0, True), (4.0, 2.5, False), (-59.0, 0.0, False), (-65.0, 1.0, True),
    (-90.0, 40.0, False), (0.0, 0.0, False),
])  # fmt: skip
def test_a_clock_is_named_if_it_is_wrong_for_certain(ahead, within, warns):
    found = health.differences(about(), about(), Clock(ahead, within))
    assert set(found) == ({"clock"} if warns else set())


def test_a_build_is_no_other_version():
    same = about(torch="2.9.1+cu128", python="3.12.1")
    assert health.differences(same, about(), Clock(0, 0)) == {}
    other = about(torch="2.8.0", fedapps="")
    told = health.differences(other, about(), Clock(0, 0))["version"]
    assert "fedapps ? (the server 0.1.0), torch 2.8.0 (the server 2.9.1+cpu)" in told


@pytest.mark.parametrize(("days", "disk", "kinds"), [
    (20, 2 * 10**9, []), (13.9, 2 * 10**9, ["certificate"]), (-1, 5, ["certificate", "disk"]),
    (None, -1, []),
])  # fmt: skip
def test_what_will_stop_a_machine_is_named_before(days, disk, kinds):
    end = 0.0 if days is None else NOW + days * DAY
    assert sorted(health.problems(about(disk=disk, certificate=end), NOW)) == kinds


class Server:
    """A server with a Lookout in `folder`, whose clock a test sets."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.now, self.events = folder, NOW, []
        self.disk, self.back = 10**10, 0.0  # by how much the clock was set back
        clock = {"time": lambda: self.now - self.back, "monotonic": lambda: self.now}
        monkeypatch.setattr(contacts, "time", SimpleNamespace(**clock))
        monkeypatch.setattr(health, "of_this_machine", lambda *_: about(self.now, disk=self.disk))
        self.again()

    def again(self):
        self.lookout = Lookout(self.folder, lambda *event: self.events.append(event))

    def look(self, *clients, left_out=None, **healths):
        """Look with these clients at nodes 10 + client; `healths` are answers, such as c3=..."""
        for name, found in healths.items():
            self.lookout.greeted(10 + int(name[1:]), found, 0.5)
        bound = {client: Bound(10 + client, {}) for client in clients}
        self.lookout.look(Fleet([10 + c for c in clients], bound=bound), left_out or {})
        return {one.client: one for one in self.known.devices}

    @property
    def known(self):
        return read(self.folder)


@pytest.fixture
def server(tmp_path, monkeypatch):
    return Server(tmp_path, monkeypatch)


def test_a_device_that_is_gone_keeps_its_last_contact(server):
    server.look(0, 3, c0=about(), c3=about(NOW - 0.25))
    server.now += 3600
    found = server.look(0, left_out={9: LeftOut("SuperNode 9: no")})
    assert (found[0].there, found[0].seen, found[0].answered) == (True, NOW + 3600, NOW)
    assert (found[3].there, found[3].seen, found[3].node) == (False, NOW, "13")
    assert (found[3].ahead, found[3].within) == (0.0, 0.25)
    assert server.known.left_out == ["SuperNode 9: no"] and server.known.written == NOW + 3600
    server.again()  # a resumed run
    server.now += 3600
    found = server.look(3)
    assert (found[0].there, found[0].seen) == (False, NOW + 3600)
    assert (found[3].there, found[3].seen, found[3].health) == (True, server.now, about(NOW - 0.25))


def test_an_answer_of_a_device_that_is_left_out_is_a_contact(server):
    server.look(0, c0=about())
    server.now += 3600
    found = server.look(left_out={10: LeftOut("SuperNode 10: broken")}, c0=about(server.now))
    assert (found[0].there, found[0].seen, found[0].answered) == (False, server.now, server.now)
    assert found[0].left_out and not server.look()[0].left_out, "it has gone"
    assert not server.look(0, left_out={11: LeftOut("SuperNode 11: no", 0)})[0].left_out


def test_a_device_that_is_left_out_is_known_by_its_client(server):
    """A restarted SuperNode has another number, and one that never took part is none before."""
    server.look(0, 3, c0=about(), c3=about())
    server.now += 3600
    no = {node: LeftOut(f"client {client}: no", client) for node, client in ((77, 3), (78, 1))}
    for found in (server.look(0, left_out=no), server.look(0, left_out=no)):
        assert {client: one.left_out for client, one in found.items()} == {
            0: False,
            1: True,
            3: True,
        }
        assert {one.seen for one in found.values()} == {server.now}
        assert (found[1].node, found[3].node, found[3].answered) == ("78", "77", NOW)
    server.now += contacts.EVERY
    server.lookout.waits(lambda: [10, 77])
    assert [one.seen for one in server.known.devices] == [server.now, NOW + 3600, server.now]
    found = server.look(0, 3)
    assert not any(one.left_out for one in found.values()) and not found[1].there


@pytest.mark.parametrize(("bound", "seen"), [({5: 10}, 3610), ({}, 3610), ({5: 15}, 3600)])
def test_a_device_whose_node_is_another_client_now_is_gone(server, bound, seen):
    """Be it bound as that client, or left out, perhaps because another node is that client."""
    server.look(0, c0=about())
    server.now += 3600
    left_out = {} if 10 in bound.values() else {10: LeftOut("client 5: no", 5)}
    fleet = Fleet([*bound.values()], bound={c: Bound(node, {}) for c, node in bound.items()})
    server.lookout.look(fleet, left_out)
    server.now += contacts.EVERY
    server.lookout.waits(lambda: [10])
    assert {one.client: one.seen for one in server.known.devices} == {0: NOW, 5: NOW + seen}


def test_who_is_connected_and_has_said_nothing_is_starting(server):
    """Client 1 comes again in a round, and with it one that was never there."""
    server.look(0, 1, c0=about(), c1=about())
    server.now += 3600
    server.look(0, left_out={9: LeftOut("SuperNode 9: no")})
    assert server.known.starting == []
    server.now += contacts.EVERY + 1
    server.lookout.waits(lambda: [9, 10, 11, 77])
    assert server.known.starting == ["11", "77"]
    server.now += 1
    server.lookout.look(Fleet([10], bound={0: Bound(10, {})}), {}, [77, 11])
    known = server.known
    assert known.starting == ["11", "77"] and known.devices[1].seen == server.now
    assert not known.devices[1].there
    server.look(0, 1, c1=about())
    assert server.known.starting == []


def test_who_says_nothing_is_not_starting_for_ever(server):
    """Client 1 comes again at the same node and hangs; it is then gone, so that an alarm fires."""

    def look():
        server.lookout.look(Fleet([10], bound={0: Bound(10, {})}), {}, [11])

    def wait():
        server.lookout.waits(lambda: [10, 11])

    for first, then in ((look, look), (look, wait), (wait, look), (wait, wait)):
        server.look(0, 1, c0=about(), c1=about())
        server.look(0)
        server.now += 3600
        came = server.now
        first()
        for after in (contacts.STARTING - 1, contacts.STARTING + contacts.EVERY, 3600):
            server.now = came + after
            server.back = 60 - server.back  # a clock that is set counts for nothing
            if after < contacts.STARTING:
                last = server.now - server.back
            then()
            known = server.known
            assert known.starting == (["11"] if after < contacts.STARTING else [])
            assert known.devices[1].seen == last
            assert known.devices[0].seen == server.now - server.back
        server.look(0)  # it leaves, and may start anew
        server.now += contacts.EVERY
        look()
        assert server.known.starting == ["11"]
        assert server.known.devices[1].seen == server.now - server.back


def test_who_takes_the_place_of_a_device_is_known_from_its_own_answer(server):
    server.look(0, c0=about())
    server.lookout.greeted(77, about(torch="2.0"), 0.5)  # left out: client 0 is there
    assert server.look(0)[0].health == about()
    server.lookout.look(Fleet([77], bound={0: Bound(77, {})}), {})
    (found,) = server.known.devices
    assert (found.node, found.health.torch) == ("77", "2.0")


def test_an_answer_is_a_contact_and_an_error_is_none(server):
    server.look(0, 1, c0=about(), c1=about())
    server.now += contacts.EVERY + 1
    asked = {node: pack_greeting(node) for node in (10, 11, 12)}
    server.lookout.heard(error(11)(asked))
    server.lookout.heard(said(12)(asked))
    assert {one.answered for one in server.known.devices} == {NOW}
    server.lookout.heard(said(10)(asked))
    assert [one.answered for one in server.known.devices] == [server.now, NOW]


def test_whom_the_server_waits_for_is_kept_up_to_date(server):
    server.look(0, 1, 2, c0=about(), c1=about(), c2=about())
    server.now += contacts.EVERY + 1
    asked, replies = server.now, {node: pack_greeting(node) for node in (10, 11)}
    server.lookout.asks([10, 11, 99])
    server.lookout.heard(said(10)(replies))
    assert [one.asked for one in server.known.devices] == [0, asked, 0]
    server.now += contacts.EVERY + 1
    server.lookout.waits(list)
    assert (server.known.written, server.known.devices[1].asked) == (server.now, asked)
    server.lookout.asks([12])  # the next round, in which client 1 is not asked
    server.now += contacts.EVERY + 1
    server.lookout.waits(list)
    assert [bool(one.asked) for one in server.known.devices] == [False, False, True]
    assert not any(one.asked for one in server.look(0, 1, 2, c1=about()).values())


def test_the_file_is_kept_up_to_date_although_the_clock_is_set_back(server):
    server.look(0, c0=about())
    server.back = DAY
    server.now += contacts.EVERY
    server.lookout.waits(lambda: [10])
    assert server.known.written == server.known.devices[0].seen == server.now - DAY
    server.now += contacts.EVERY
    server.lookout.heard(said(10)({10: pack_greeting(10)}))
    assert server.known.written == server.known.devices[0].answered == server.now - DAY
    server.now += contacts.EVERY
    assert server.look(0)[0].seen == server.known.written == server.now - DAY


def test_a_device_that_is_connected_is_seen_while_the_server_waits(server):
    """Else an alarm would take it for gone when another one makes a round long."""
    server.look(0, 1, c0=about(), c1=about())
    asked = []
    for seconds in (contacts.EVERY - 1, 1, contacts.EVERY - 1, 3600):
        server.now += seconds
        server.lookout.waits(lambda: asked.append(server.now) or [10, 99])
    assert asked == [NOW + contacts.EVERY, server.now], "no more often than the file is written"
    assert [(one.seen, one.answered) for one in server.known.devices] == [
        (server.now, NOW),
        (NOW, NOW),
    ]


def test_a_warning_is_one_event_until_it_is_over(server):
    full, behind = about(disk=5), about(NOW - 100, disk=5)
    for found, kinds in [
        (full, ["disk"]), (full, ["disk"]), (behind, ["clock", "disk"]), (about(), []),
        (full, ["disk"]),
    ]:  # fmt: skip
        assert sorted(server.look(0, c0=found)[0].warnings) == kinds
    assert [event[:2] for event in server.events] == [(0, "disk"), (0, "clock"), (0, "disk")]
    server.disk = 7
    server.look(0, 1)
    assert server.events[3:] == [("server", "disk", server.known.warnings["disk"])]


def test_without_a_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lookout = Lookout()
    lookout.greeted(1, about(), 0.1)
    lookout.look(Fleet([1], bound={0: Bound(1, {})}), {})
    lookout.heard(said(1)({1: pack_greeting(1)}))
    assert [*tmp_path.iterdir()] == [] and read(tmp_path) is None


def test_a_full_disk_costs_the_file_only(server):
    server.lookout.folder = server.folder / "gone"
    server.lookout.look(Fleet([10], bound={0: Bound(10, {})}), {})


def test_a_broken_file_is_as_good_as_none(server):
    (server.folder / contacts.FILE).write_text('{"devices": 3}')
    assert server.known is None
    server.again()
    assert server.look(2)[2].there


def test_the_registry_tells_of_answers_and_asks_again_after_a_while(tmp_path, monkeypatch):
    """It asks for the health of a device anew once `REFRESH` seconds have passed."""
    clock = passing(monkeypatch, nodes)
    values = msgspec.to_builtins(about(NOW))

    def owner(by_node):
        records = {"hello": {"client": 0, "train": 5, "test": 5}, "health": values}
        content = RecordDict({name: ConfigRecord(of) for name, of in records.items()})
        return Message(content, reply_to=by_node[1])

    grid = FakeGrid(polls=[[owner]] * 9, nodes=[[1]])
    registry = NodeRegistry(StreamingGrid(grid), 1, 5.0, 3, False)
    registry.lookout = Lookout(tmp_path)
    greeted = []
    for _ in range(5):
        registry.wait_for_nodes()
        greeted.append(len(grid.pushed))
        clock.now += nodes.REFRESH / 2
    assert greeted == [1, 1, 1, 2, 2], "after more than REFRESH, not before"
    (found,) = json.loads((tmp_path / contacts.FILE).read_text())["devices"]
    assert (found["client"], found["node"], found["health"]) == (0, "1", values)
