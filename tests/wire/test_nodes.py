"""Which SuperNodes are there and who they are: greeted, waited for, asked again, left out."""

import math
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.core.errors import RunError
from fedapps.core.signing import SignedModel
from fedapps.wire import nodes as nodes_module
from fedapps.wire.contacts import Lookout, read
from fedapps.wire.fleet import Fleet
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.hello import read_greeting
from fedapps.wire.nodes import NodeRegistry
from tests.support.clock import passing
from tests.support.fake_grid import FakeGrid, error, said


def hello(node, nodes=1, cuda=False, workers=0):
    return said(node, client="any", nodes=nodes, cuda=cuda, workers=workers)


def meet(grid, at_least=1, timeout=5.0):
    return NodeRegistry(StreamingGrid(grid), at_least, timeout).wait_for_nodes()


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """The clock of the greetings, which runs only while nobody has anything to do."""
    return passing(monkeypatch, nodes_module)


def test_nodes_that_register_one_by_one_are_waited_for():
    grid = FakeGrid(
        polls=[[hello(node, nodes=3, cuda=True)] for node in (9, 3, 5)],
        nodes=[[], [9], [9, 3], [3, 9], [5, 3, 9]],
    )
    assert meet(grid, at_least=3) == Fleet([3, 5, 9], cuda=True, workers=0)
    assert [message.metadata.dst_node_id for message in grid.pushed] == [9, 3, 5]  # once each
    assert {message.metadata.message_type for message in grid.pushed} == {"query.hello"}


def test_a_simulation_says_how_many_nodes_there_will_be():
    polls = [[hello(1, nodes=2, cuda=True, workers=2)], [hello(2, nodes=2)]]
    grid = FakeGrid(polls=polls, nodes=[[1], [1], [1, 2]])
    assert meet(grid) == Fleet([1, 2], cuda=False, workers=2)


def test_a_device_speaks_for_itself_only():
    """Whatever it says of a simulation: one of them could make the run wait for ever."""
    grid = FakeGrid(polls=[[owner(1, 0, nodes=10**9, workers=7)]], nodes=[[1]])
    fleet = NodeRegistry(StreamingGrid(grid), 1, 5.0, device_count=3).wait_for_nodes()
    assert (fleet.nodes, fleet.workers, list(fleet.bound)) == ([1], 0, [0])


@given(st.lists(st.booleans(), min_size=1, max_size=5))
def test_all_see_a_gpu_only_if_each_does(cuda):
    hellos = [hello(node, cuda=seen) for node, seen in enumerate(cuda)]
    grid = FakeGrid(polls=[hellos], nodes=[range(len(cuda))])
    assert meet(grid) == Fleet(list(range(len(cuda))), cuda=all(cuda), workers=0)


def test_a_node_that_left_is_not_counted():
    grid = FakeGrid(polls=[[hello(n, nodes=2)] for n in (1, 2, 3)], nodes=[[1], [2], [2, 3]])
    assert meet(grid, at_least=2).nodes == [2, 3]


def test_too_few_nodes_end_the_run_after_the_timeout(clock):
    grid = FakeGrid(polls=[[hello(1, nodes=2)]], nodes=[[1]])
    with pytest.raises(RunError) as caught:
        meet(grid, at_least=2, timeout=0.1)
    assert str(caught.value) == "1 of 2 SuperNodes (min-available) after 0.1 s (round-timeout)"
    assert 0.1 <= clock.now < 0.5


def test_a_node_that_never_answers_ends_the_run_after_the_timeout():
    grid = FakeGrid(nodes=[[1, 2, 3, 4, 5]])
    with pytest.raises(RunError) as caught:
        meet(grid, timeout=0.1)
    assert str(caught.value) == (
        "0 of 1 SuperNodes (min-available) after 0.1 s (round-timeout); no answer from "
        "SuperNode 1, SuperNode 2, SuperNode 3, 2 more: see what is printed there"
    )


def test_a_device_with_its_own_data_has_no_part_in_a_simulation(clock):
    grid = FakeGrid(polls=[[owner(1, 0), hello(2)]], nodes=[[1, 2]])
    assert meet(grid).nodes == [2]
    grid = FakeGrid(polls=[[owner(1, 0)]], nodes=[[1]])
    line = 'left out: SuperNode 1, client 0: it has its own data, which needs dataset = "device"'
    with pytest.raises(RunError, match=f"^0 of 1 SuperNodes .*{line}"):
        meet(grid)


@pytest.mark.parametrize("says", [error(1, "not here"), said(1, problem="not here")])
def test_a_node_that_cannot_start_ends_a_simulation_with_its_reason(says, clock):
    with pytest.raises(RunError, match=r"^a SuperNode could not start: not here$"):
        meet(FakeGrid(polls=[[hello(2, nodes=2), says]], nodes=[[1, 2]]))
    assert clock.now < 1, "it is not waited for"


def test_more_nodes_than_a_simulation_has_are_not_waited_for(clock):
    told = "^min-available = 3: must be at most num-supernodes = 2$"
    with pytest.raises(RunError, match=told):
        meet(FakeGrid(polls=[[hello(1, nodes=2)]], nodes=[[1]]), at_least=3)
    assert clock.now < 1


def owner(node, client, **parts):
    return said(node, **{"client": client, "train": 5, "test": 5} | parts)


def make_registry(grid, devices=3, timeout=5.0, at_least=1, held_out=()):
    """Of devices with data of their own, which have 10 samples at most."""
    return NodeRegistry(StreamingGrid(grid), at_least, timeout, devices, False, 10, held_out)


def greeted(grid):
    return [message.metadata.dst_node_id for message in grid.pushed]


def test_who_never_answers_is_waited_for_once(clock):
    grid = FakeGrid(polls=[[owner(1, 0)]], nodes=[[1, 2]])
    registry = make_registry(grid, timeout=1000.0)
    assert registry.wait_for_nodes().nodes == [1]
    first = clock.now
    assert registry.wait_for_nodes().nodes == [1]
    assert first == pytest.approx(60, abs=1) and clock.now == pytest.approx(first, abs=1)
    assert greeted(grid) == [1, 2, 2], "asked again, as it may have been started anew"


def met(grid, rounds, pause):
    """The fleets of so many rounds with a pause after each."""
    registry = make_registry(grid, 2, 1000.0)
    for _ in range(rounds):
        yield [*registry.wait_for_nodes().bound]
        grid.clock.now += pause


class LateGrid(FakeGrid):
    """SuperNodes 1 and 2; each greeting of the second is answered after `delay` seconds.

    `answers` are its answers; None: that greeting is lost. Then it says that it is client 1.
    """

    def __init__(self, clock, answers, delay=0.0):
        super().__init__(nodes=[[1, 2]])
        self.clock, self.answers, self.delay, self.due = clock, [*answers], delay, {}

    def push_messages(self, messages):
        ids = super().push_messages(messages)
        for id_, message in zip(ids, messages, strict=True):
            node, late = message.metadata.dst_node_id, 0.0
            answer = owner(node, node - 1)
            if node == 2:
                late = self.delay
                answer = self.answers.pop(0) if self.answers else answer
            if answer:
                self.due[id_] = self.clock.now + late, answer({node: message})
        return ids

    def pull_messages(self, message_ids):
        (id_,) = message_ids
        at, _ = self.due.get(id_, (math.inf, None))
        return [self.due.pop(id_)[1]] if at <= self.clock.now else []


@pytest.mark.parametrize("failures", [1, 3])
@pytest.mark.parametrize("kind", ["error", "problem", "lost"])
def test_who_fails_its_greeting_is_asked_again_while_the_server_waits(clock, kind, failures):
    failing = {"error": error(2), "problem": owner(2, 1, problem="no such file"), "lost": None}
    grid = LateGrid(clock, [failing[kind]] * failures)
    registry = make_registry(grid, 2, 1000.0, at_least=2)
    assert list(registry.wait_for_nodes().bound) == [0, 1]
    assert greeted(grid) == [1] + [2] * (1 + failures)
    assert clock.now == pytest.approx(60 * failures, abs=2)


@pytest.mark.parametrize("delay", [70, 150])
def test_who_answers_late_is_heard_although_it_was_asked_again(clock, delay):
    """Its process may take longer to load the data than it is waited for, each time."""
    grid = LateGrid(clock, [], delay)
    registry = make_registry(grid, 2, 1000.0, at_least=2)
    assert list(registry.wait_for_nodes().bound) == [0, 1]
    assert clock.now == pytest.approx(delay, abs=2)


@pytest.mark.parametrize(("pause", "problems"), [(30, 1), (30, 2), (600, 1), (600, 2)])
def test_a_repaired_device_takes_part_in_the_round_after_its_answer(clock, pause, problems):
    """It is asked in each round, although the answer of the round before comes after its start."""
    grid = LateGrid(clock, [owner(2, 1, problem="no such file")] * problems, delay=1)
    found = [*met(grid, problems + 3, pause)]
    assert found == [[0]] * (problems + 1) + [[0, 1]] * 2
    assert greeted(grid) == [1] + [2] * (problems + 1)


def test_a_device_whose_answer_takes_rounds_is_not_asked_twice(clock):
    """It would load its data once more."""
    grid = LateGrid(clock, [owner(2, 1, problem="no such file")], delay=2)
    assert [*met(grid, 8, 0.5)][-1] == [0, 1] and greeted(grid) == [1, 2, 2]


def test_an_answer_from_before_a_failure_does_not_count(clock):
    """The process that gave it can be the one that failed."""
    grid = LateGrid(clock, [owner(2, 1), owner(2, 1, train=6), owner(2, 1, train=7)], delay=1)
    registry = make_registry(grid, 2, 1000.0)
    found = []
    for _ in range(4):
        fleet = registry.wait_for_nodes()
        found.append(fleet.bound[1].samples["train"])
        clock.now += 20
        if len(found) < 3:  # it fails in the first two rounds
            registry.recheck([1], fleet)
        clock.now += 10
    assert found == [5, 5, 6, 7]


class SlowGrid(LateGrid):
    """SuperNode 2 answers nothing before the time `free`, as it is at work; then at once."""

    free = 0.0

    def push_messages(self, messages):
        self.delay = max(self.free - self.clock.now, 0.0)
        return super().push_messages(messages)


def at_work(registry, grid, free, why="late"):
    """All are there; at second 20 SuperNode 2 has not answered a round and works until `free`."""
    fleet = registry.wait_for_nodes()
    grid.clock.now, grid.free = 20.0, free
    registry.recheck([1], fleet, **{why: {1}})
    return fleet


def test_who_is_still_at_work_is_not_asked_until_it_answers(clock, capsys):
    """It would work for rounds that are over, one after the other; the others need not wait."""
    grid = SlowGrid(clock, [])
    registry, events, found = make_registry(grid, 2, 20.0, at_least=2), [], []
    registry.lookout.event = lambda *event: events.append(event)
    at_work(registry, grid, free=50.0)
    for _ in range(6):
        found.append((clock.now, [*registry.wait_for_nodes().bound]))
        clock.now += 8
    assert [there for _, there in found] == [[0], [0], [0], [0], [0, 1], [0, 1]]
    assert found[1][0] == pytest.approx(20 + 3 + 8, abs=0.5), "a free device answers within 3 s"
    assert found[-1][0] == pytest.approx(20 + 3 + 5 * 8, abs=0.5), "it is waited for once"
    assert greeted(grid) == [1, 2, 2]
    assert events == [(1, "left-out", f"SuperNode 2, client 1: {nodes_module.BUSY}")]
    assert capsys.readouterr().out.count(nodes_module.BUSY) == 1
    grid.free = clock.now + 50
    registry.recheck([1], registry.wait_for_nodes(), late={1})
    assert [*registry.wait_for_nodes().bound] == [0]
    assert len(events) == 2, "it is late once more, and that is told"


@pytest.mark.parametrize("held_out", [(), (1,)])
def test_who_is_at_work_counts_as_available_only_if_it_trains(clock, held_out):
    """A round goes on without it, but not with fewer than `min-available` that can ever train."""
    grid = SlowGrid(clock, [])
    registry = make_registry(grid, 2, 20.0, held_out=held_out)
    at_work(registry, grid, free=99.0)
    registry.at_least = 2
    if not held_out:
        assert [*registry.wait_for_nodes().bound] == [0]
        return
    with pytest.raises(RunError, match=r"^1 of 2 SuperNodes"):
        registry.wait_for_nodes()


def test_who_was_late_and_is_free_again_misses_no_round(clock):
    grid = SlowGrid(clock, [])
    registry = make_registry(grid, 2, 20.0, at_least=2)
    fleet = at_work(registry, grid, free=21.0)
    assert [*registry.wait_for_nodes().bound] == [0, 1] and clock.now == pytest.approx(21, abs=0.5)
    registry.recheck([1], fleet)  # it has failed, but answered
    assert [*registry.wait_for_nodes().bound] == [0, 1] and clock.now < 22


def test_who_has_more_samples_than_it_said_is_left_out_until_it_says_how_many(clock):
    grid, events = SlowGrid(clock, [owner(2, 1), owner(2, 1, train=7)]), []
    registry = make_registry(grid, 2, 20.0, at_least=2)
    registry.lookout.event = lambda *event: events.append(event)
    at_work(registry, grid, free=30.0, why="grown")
    assert [*registry.wait_for_nodes().bound] == [0] and clock.now == pytest.approx(23, abs=0.5)
    assert events == [(1, "left-out", f"SuperNode 2, client 1: {nodes_module.MORE}")]
    clock.now = 30.0
    assert registry.wait_for_nodes().bound[1].samples["train"] == 7


@pytest.mark.parametrize("free", [35.0, 99.0])
def test_if_all_are_still_at_work_the_first_of_them_is_waited_for(clock, free):
    grid = SlowGrid(clock, [])
    grid.nodes = [[2]]
    registry = make_registry(grid, 2, 20.0)
    at_work(registry, grid, free)
    if free < 40:
        assert [*registry.wait_for_nodes().bound] == [1]
        return
    with pytest.raises(RunError, match=r"^0 of 1 SuperNodes .* after 20 s .*; left out: .*in time"):
        registry.wait_for_nodes()


def test_what_answers_an_earlier_greeting_than_the_last_answer_counts_for_nothing(clock):
    """The first process is given up at last, when another one has long said who it is."""
    grid = LateGrid(clock, [None])
    registry = make_registry(grid, 2, 1000.0, at_least=2)
    there = registry.wait_for_nodes()
    lost = next(m for m in grid.pushed if m.metadata.dst_node_id == 2)
    grid.due[lost.metadata.message_id] = clock.now, error(2)({2: lost})
    assert registry.wait_for_nodes() == registry.wait_for_nodes() == there


def test_who_never_answers_is_not_asked_for_more_answers_than_three(clock):
    grid = LateGrid(clock, [None] * 1000)
    asked = []
    pull = grid.pull_messages
    grid.pull_messages = lambda ids: asked.append((clock.now, *ids)) or pull(ids)
    with pytest.raises(RunError, match=r"; no answer from SuperNode 2: see what is printed there$"):
        make_registry(grid, 2, 1000.0, at_least=2).wait_for_nodes()
    assert greeted(grid).count(2) == pytest.approx(1000 / 60, abs=1)
    assert max(Counter(at for at, _ in asked).values()) <= nodes_module.GREETINGS + 1


def test_who_comes_again_and_again_and_says_nothing_holds_up_the_first_round_alone(clock):
    """SuperNode 2 leaves after each round and comes as another one: 60 + 3 + 3 s, not 60 each."""
    grid = FakeGrid(polls=[[owner(1, 0)]])
    registry, waits = make_registry(grid, 3, 1000.0), []
    for mute in (2, 3, 4, 4):
        grid.nodes, start = [[1, mute]], clock.now
        assert registry.wait_for_nodes().nodes == [1]
        waits.append(clock.now - start)
    assert waits == pytest.approx([60, 3, 3, 0], abs=0.5)


@pytest.mark.parametrize(("delay", "found"), [(1, [[0], [0, 1], [0, 1]]), (20, [[0], [0], [0, 1]])])
def test_a_run_that_has_begun_waits_no_minute_for_a_newcomer(clock, delay, found):
    """It joins the round that begins within 3 s, or the next one after its answer."""
    grid, waits = LateGrid(clock, [], delay), []
    registry = make_registry(grid, 2, 1000.0)
    for there, expected in zip(([1], [1, 2], [1, 2]), found, strict=True):
        grid.nodes, start = [there], clock.now
        assert [*registry.wait_for_nodes().bound] == expected
        waits.append(clock.now - start)
        clock.now += 30
    assert waits == pytest.approx([0, min(delay, 3), 0], abs=0.5)


def test_a_newcomer_is_waited_for_where_too_few_are_there(clock):
    grid = LateGrid(clock, [], 20)
    grid.nodes = [[1]]
    registry = make_registry(grid, 2, 1000.0)
    registry.wait_for_nodes()
    grid.nodes, registry.at_least = [[1, 2]], 2
    assert [*registry.wait_for_nodes().bound] == [0, 1] and clock.now == pytest.approx(20, abs=1)


def test_mute_supernodes_that_come_by_turns_hold_up_no_longer_than_one(clock):
    """Every 40 s another one: each is there for less than a newcomer may take."""
    grid = FakeGrid(polls=[[owner(1, 0)]])
    grid.get_node_ids = lambda: [1, 2 + int(clock.now // 40)]
    registry = make_registry(grid, 3, 1000.0)
    assert registry.wait_for_nodes().nodes == [1]
    assert clock.now == pytest.approx(60, abs=1)


def test_who_did_not_fit_is_asked_again_and_not_waited_for(clock, capsys):
    grid = FakeGrid(polls=[[owner(1, 0), owner(2, 7)], [], [owner(2, 1)]], nodes=[[1, 2]])
    registry = make_registry(grid)
    assert list(registry.wait_for_nodes().bound) == [0]
    clock.now += 1
    assert list(registry.wait_for_nodes().bound) == [0]
    assert greeted(grid) == [1, 2, 2]
    assert list(registry.wait_for_nodes().bound) == [0, 1]
    assert list(registry.wait_for_nodes().bound) == [0, 1]
    assert greeted(grid) == [1, 2, 2]
    assert capsys.readouterr().out.count("left out") == 1


def test_who_says_another_client_when_asked_again_does_not_take_its_place(clock, capsys):
    grid = FakeGrid(polls=[[owner(1, 0), owner(2, 1)], [owner(1, 1)]], nodes=[[1, 2]])
    registry = make_registry(grid)
    fleet = registry.wait_for_nodes()
    assert {client: bound.node for client, bound in fleet.bound.items()} == {0: 1, 1: 2}
    clock.now += 1
    registry.recheck([0], fleet)
    registry.wait_for_nodes()
    fleet = registry.wait_for_nodes()
    assert {client: bound.node for client, bound in fleet.bound.items()} == {1: 2}
    assert "left out: SuperNode 1, client 1" in capsys.readouterr().out


def test_a_repaired_device_does_not_take_the_place_of_one_that_served_meanwhile(clock, capsys):
    polls = [[owner(1, 0, problem="no such file"), owner(2, 0)], [owner(1, 0)]]
    grid = FakeGrid(polls=polls, nodes=[[1, 2]])
    registry = make_registry(grid)
    for _ in range(3):
        assert registry.wait_for_nodes().bound[0].node == 2
        clock.now += 1
    assert "client-id = 0 is also that of SuperNode 2; change one" in capsys.readouterr().out


def test_all_who_do_not_fit_are_named_but_not_endlessly():
    grid = FakeGrid(polls=[[owner(n, 6 + n) for n in range(1, 6)]], nodes=[[1, 2, 3, 4, 5]])
    with pytest.raises(RunError) as caught:
        NodeRegistry(StreamingGrid(grid), 1, 0.1, 3, simulated=False).wait_for_nodes()
    text = str(caught.value)
    assert [text.count(f"SuperNode {n}, client {6 + n}: ") for n in range(1, 6)] == [1, 1, 1, 0, 0]
    assert text.endswith("; 2 more")


def test_who_could_not_be_reached_is_asked_again(clock, capsys):
    grid = FakeGrid(polls=[[owner(1, 0), error(2)], [owner(2, 1)]], nodes=[[1, 2]])
    registry = make_registry(grid)
    assert list(registry.wait_for_nodes().bound) == [0]
    clock.now += 1
    assert list(registry.wait_for_nodes().bound) == [0, 1]
    assert "left out: SuperNode 2: ?[2Jgone\n" in capsys.readouterr().out


@pytest.mark.parametrize("part", ["train", "test", "validation"])
def test_who_claims_more_samples_than_can_be_is_left_out(part, capsys):
    grid = FakeGrid(polls=[[owner(1, 0, **{part: 11}), owner(2, 1, **{part: 10})]], nodes=[[1, 2]])
    assert list(make_registry(grid).wait_for_nodes().bound) == [1]
    reason = f"it claims 11 {part} samples: at most 10 (max-samples)"
    assert capsys.readouterr().out.strip().endswith(f"left out: SuperNode 1, client 0: {reason}")


def test_the_file_of_devices_has_those_that_are_left_out_under_their_clients(tmp_path):
    """Client 1 has restarted as node 4, and has no samples any more; client 2 never had any."""
    none = {"train": 0}
    polls = [[owner(1, 0), owner(2, 1)], [owner(3, 2, **none), owner(4, 1, **none), owner(5, 9)]]
    grid = FakeGrid(polls=polls, nodes=[[1, 2], [1, 3, 4, 5]])
    registry = make_registry(grid)
    registry.lookout = Lookout(tmp_path)
    assert list(registry.wait_for_nodes().bound) == [0, 1]
    assert list(registry.wait_for_nodes().bound) == [0]
    known = read(tmp_path)
    told = [(one.client, one.node, one.there, one.left_out) for one in known.devices]
    assert told == [(0, "1", True, False), (1, "4", False, True), (2, "3", False, True)]
    assert len(known.left_out) == 3, "there is no client 9"


def test_the_file_of_devices_has_those_that_are_starting(clock, tmp_path):
    grid = LateGrid(clock, [], delay=20)
    registry = make_registry(grid, 2, 1000.0)
    registry.lookout, seen = Lookout(tmp_path), []
    sleep = clock.sleep
    clock.sleep = lambda seconds: seen.append(read(tmp_path).starting) or sleep(seconds)
    registry.wait_for_nodes()
    assert seen[0] == seen[-1] == ["2"] and read(tmp_path).starting == []


def test_who_left_and_came_back_is_greeted_as_new():
    """With a key a SuperNode has the same id again; its data may be others by then."""
    polls = [[owner(1, 0), owner(2, 1)], [owner(2, 1, train=9)]]
    grid = FakeGrid(polls=polls, nodes=[[1, 2], [1], [1, 2]])
    registry = make_registry(grid)
    assert registry.wait_for_nodes().bound[1].samples["train"] == 5
    assert list(registry.wait_for_nodes().bound) == [0]
    assert registry.wait_for_nodes().bound[1].samples["train"] == 9


def test_who_failed_is_asked_again_and_keeps_its_place_meanwhile(clock, monkeypatch, tmp_path):
    grid = FakeGrid(polls=[[owner(1, 0)], [], [owner(1, 0, train=9)]], nodes=[[1]])
    registry = make_registry(grid)
    registry.initial = SignedModel(b"a model")
    there = registry.wait_for_nodes()
    clock.now += 1
    registry.recheck([0, 2], there)
    assert registry.wait_for_nodes() == there
    assert registry.wait_for_nodes().bound[0].samples["train"] == 9
    assert greeted(grid) == [1, 1]
    assert [*map(read_greeting, grid.pushed)] == 2 * [registry.initial]  # it may have lost it
    registry.lookout = Lookout(tmp_path)
    monkeypatch.setattr(nodes_module, "REFRESH", 0.5)
    clock.now += 1
    registry.wait_for_nodes()
    assert greeted(grid) == [1, 1, 1] and read_greeting(grid.pushed[-1]) is None


def test_real_supernodes_are_not_believed_what_a_simulation_says():
    answers = [hello(1, nodes=10**9, workers=9), error(2)]
    grid = FakeGrid(polls=[answers], nodes=[[1, 2]])
    there = make_registry(grid, devices=0).wait_for_nodes()
    assert (there.nodes, there.workers) == ([1], 0)


def test_a_hello_that_is_too_large_or_broken_is_a_short_line(capsys):
    large, broken = said(2, client="x" * 2**21), said(3, client="x" * 20_000)
    grid = FakeGrid(polls=[[owner(1, 0), large, broken]], nodes=[[1, 2, 3]])
    assert make_registry(grid).wait_for_nodes().nodes == [1]
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and all("its answer is broken" in line for line in lines)
    assert max(map(len, lines)) < 400
