"""What we replace of Flower is checked first, and left alone where Flower is not as we know it."""

import importlib
import inspect
import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import uvicorn
from flwr.app import Message, RecordDict

from fedapps.core import flower
from fedapps.core.flower import ChangedError, Known
from fedapps.device import answering, supernode, waiting, warm
from fedapps.wire import serial_grid as serial
from fedapps.wire import superlink
from tests.deploy.helpers import HERE

LOOP = answering.LOOP.module


@pytest.fixture(autouse=True)
def notes(capsys):
    """Return notes() -> the lines that were said of this Flower, from the beginning of the test."""
    flower.leave_as_it_is.cache_clear()
    return lambda: [s for s in capsys.readouterr().out.splitlines() if s.startswith("note: ")]


@pytest.fixture
def loop(monkeypatch):
    """Flower's loop of a SuperNode, which is restored after the test."""
    return restored(monkeypatch, LOOP, "time", "subprocess", "_push_messages")


@pytest.fixture
def command(monkeypatch):
    """Flower's command of a SuperNode, which is restored after the test."""
    return restored(monkeypatch, answering.COMMAND.module, "_start_supernode_http_api")


@pytest.fixture(autouse=True)
def client(monkeypatch):
    """Flower's client of a SuperLink, which is restored after the test."""
    return restored(monkeypatch, waiting.CLIENT.module, "FleetHttpClient")


@pytest.fixture
def server(monkeypatch):
    """Flower's command of a SuperLink, which is restored after the test."""
    return restored(monkeypatch, superlink.COMMAND.module, "uvicorn")


def restored(monkeypatch, name, *attributes):
    module = importlib.import_module(name)
    for attribute in attributes:
        monkeypatch.setattr(module, attribute, getattr(module, attribute))
    return module


def module(known):
    """The module of Flower in which something is replaced."""
    return importlib.import_module(known.module)


def change_source(monkeypatch, module, old, new):
    """Let a module look as if its source had another text in a place."""
    source = inspect.getsource(module)
    assert old in source
    real = inspect.getsource
    changed = source.replace(old, new)
    monkeypatch.setattr(inspect, "getsource", lambda m: changed if m is module else real(m))


@pytest.mark.parametrize(("known", "line"), [
    (Known("flwr.nowhere"), "flwr.nowhere: No module named 'flwr.nowhere'"),
    (Known(LOOP, holds={"datetime": time}), "has no attribute 'datetime'"),
    (Known(LOOP, holds={"os": time}), f"{LOOP}.os is not the module os"),
    (
        Known(LOOP, finds={r"\btime\.(\w+)": {"nap"}}),
        f"{LOOP} has ['sleep'], not ['nap']",
    ),
    (Known(LOOP, parameters={"gone": ()}), "has no attribute 'gone'"),
    (
        Known(LOOP, parameters={"_insert_message": ("message",)}),
        "_insert_message takes ('msg', 'state', 'store'), not ('message',)",
    ),
])  # fmt: skip
def test_what_differs_is_said(known, line):
    with pytest.raises(ChangedError) as caught:
        known.load()
    assert line in str(caught.value)


def test_a_note_is_said_once(notes):
    for _ in range(3):
        flower.leave_as_it_is("a", "b", "c")
    assert notes() == [f"note: Flower {flower.version()}: a is left as it is, because b; c"]


def test_this_flowers_loop_is_the_one_that_we_know(loop, command, client, notes):
    supernode.answer_sooner()
    assert loop.time.sleep.__func__ is waiting.PollingPause.sleep
    assert loop.time.monotonic is time.monotonic
    assert not isinstance(client.FleetHttpClient, type)
    assert loop.subprocess.Popen.__func__ is answering.Answering.start_superexec
    assert loop.subprocess.DEVNULL is subprocess.DEVNULL
    assert loop._push_messages.__func__ is answering.Answering.answer_and_push
    assert notes() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("time.sleep(3)", "time.sleep(1)"), ("time.sleep(3)", "event.wait(3)"), (None, None)],
)
def test_a_loop_that_waits_in_another_way_keeps_it(loop, command, notes, monkeypatch, old, new):
    if old:
        change_source(monkeypatch, loop, old, new)
    else:
        monkeypatch.setattr(loop, "time", SimpleNamespace())
    was = loop.time
    supernode.answer_sooner()
    assert loop.time is was
    assert loop._push_messages.__func__ is answering.Answering.answer_and_push  # as it was
    (line,) = notes()
    assert "the SuperNode's wait is left as it is" in line and line.endswith("take 3 s longer")


def test_this_flowers_superlink_is_the_one_that_we_know(server, notes):
    superlink.answer_sooner()
    assert server.uvicorn.run is not uvicorn.run and server.uvicorn.Config is uvicorn.Config
    assert notes() == []


@pytest.mark.parametrize("change", ["", "other framework", "another lookup"])
def test_what_a_request_needs_is_looked_up_at_once_or_as_before(notes, monkeypatch, change):
    fastapi = restored(monkeypatch, superlink.DEPENDENCIES.module, "run_in_threadpool")
    was = fastapi.run_in_threadpool
    if change == "other framework":
        change_source(
            monkeypatch, fastapi, "run_in_threadpool(call, **", "run_in_threadpool(it, **"
        )
    elif change:
        state = importlib.import_module(superlink.LOOKUPS[0].module)
        monkeypatch.setattr(state, "get_linkstate", lambda request, database: None)
    superlink.look_up_at_once()
    assert (fastapi.run_in_threadpool is was) == bool(change)
    assert len(notes()) == bool(change)


@pytest.mark.parametrize("change", [
    lambda m, server, fleet: change_source(m, server, "uvicorn.run(", "uvicorn.serve("),
    lambda m, server, fleet: change_source(m, fleet, "-> PullObject", "-> Iterator[PullObject"),
    lambda m, server, fleet: m.setattr(superlink, "PULL", "/v2/fleet/pull-messages"),
    lambda m, server, fleet: m.delattr(module(superlink.TYPES), "PROTOBUF_REQUEST_TYPES"),
], ids=["server", "a stream", "path", "no types"])  # fmt: skip
def test_a_superlink_that_answers_in_another_way_does_so(server, notes, monkeypatch, change):
    change(monkeypatch, server, module(superlink.ROUTES[0]))
    superlink.answer_sooner()
    assert server.uvicorn is uvicorn
    (line,) = notes()
    assert "how the SuperLink answers is left as it is" in line
    assert line.endswith("a round takes about twice as long with many devices")


@pytest.mark.parametrize("change", [
    lambda m: change_source(m, module(answering.LOOP), '["flower-superexec"]', '["executor"]'),
    lambda m: change_source(m, module(answering.LOOP), "subprocess.Popen", "subprocess.run"),
    lambda m: m.delattr(module(answering.LOOP), "subprocess"),
    lambda m: m.delattr(module(answering.LOOP), "Error"),
    lambda m: m.setattr(module(answering.LOOP), "_push_messages", lambda state, send: None),
    lambda m: m.delattr(module(answering.API), "PushObjectRequest"),
    lambda m: change_source(m, module(answering.STATE), "self.lock_task_store = ", "self.lock = "),
    lambda m: change_source(m, module(answering.COMMAND), "http_server.should_exit", "http.ends"),
    lambda m: m.setattr(warm, "CLIENTAPP", "flwr.supernode.runtime"),
], ids=[
    "SuperExec", "start", "no start", "names", "parameters", "api", "tasks", "port", "app",
])  # fmt: skip
def test_a_supernode_that_answers_in_another_way_does_so(loop, command, notes, monkeypatch, change):
    change(monkeypatch)
    was = vars(loop).get("subprocess"), loop._push_messages, command._start_supernode_http_api
    supernode.answer_sooner()
    assert was == (
        vars(loop).get("subprocess"), loop._push_messages, command._start_supernode_http_api
    )  # fmt: skip
    assert loop.time.sleep.__func__ is waiting.PollingPause.sleep
    (line,) = notes()
    assert "how the SuperNode answers is left as it is" in line
    assert line.endswith("which takes seconds")


def test_what_the_process_of_messages_calls_is_looked_up_in_its_source():
    flower.check_source(warm.CLIENTAPP, answering.CLIENTAPP)
    for module, known, line in [
        ("flwr.nowhere.at_all", {}, "No module named 'flwr.nowhere'"),
        (warm.CLIENTAPP, {"push_message": ("client",)}, "'message', 'context'), not ('client',)"),
        (warm.CLIENTAPP, {"gone": ()}, ".gone takes None, not ()"),
    ]:
        with pytest.raises(ChangedError) as caught:
            flower.check_source(module, known)
        assert line in str(caught.value)


@pytest.mark.parametrize("words", [
    [sys.executable, "-c", "print('as it is')"],
    ["flower-superexec", answering.INSTALL, "--help"],
])  # fmt: skip
def test_what_has_to_be_a_process_of_its_own_is_started_as_it_is(loop, words):
    made = answering.Answering(loop, None, None)
    process = made.start_superexec(words, stdout=subprocess.PIPE, text=True, env=os.environ | HERE)
    said, _ = process.communicate()
    assert said == "as it is\n" or "Run Flower SuperExec." in said
    assert not made.active
    assert made.start_superexec(["flower-superexec", "--insecure"]) is None and made.active


@pytest.mark.parametrize(("isolation", "install", "serves"), [
    ("subprocess", False, False), ("subprocess", True, True), ("process", False, True),
])  # fmt: skip
def test_a_port_is_served_only_if_other_processes_answer(
    loop, command, monkeypatch, isolation, install, serves
):
    monkeypatch.setattr(command, "_start_supernode_http_api", lambda config, state_factory: "both")
    supernode.answer_sooner()
    config = SimpleNamespace(isolation=isolation, runtime_dependency_install=install)
    served = command._start_supernode_http_api(config, None)
    assert (served == "both") == serves
    if not serves:
        server, thread = served
        server.should_exit = server.force_exit = True
        thread.join()
        assert not thread.is_alive()


def test_a_supernode_ends_though_flower_does_not_know_how(monkeypatch, capsys):
    ends = []
    monkeypatch.setattr(supernode.os, "_exit", ends.append)
    monkeypatch.setitem(vars(flower), "flwr_exit", lambda: None)  # takes no code and no text
    supernode.leave("Lost the SuperLink.")
    assert ends == [1] and capsys.readouterr().out == "error: Lost the SuperLink.\n"


@pytest.mark.parametrize("change", ["name", "default", "word", "kind", "module"])
def test_pulls_that_wait_in_another_way_are_left_as_they_are(notes, monkeypatch, change):
    pulls = importlib.import_module(waiting.PULLS)
    both = {n: getattr(pulls, n) for n in ("pull_objects", "pull_and_inflate_object_from_tree")}
    was = dict(both["pull_objects"].__kwdefaults__)
    for function in both.values():
        monkeypatch.setattr(function, "__kwdefaults__", dict(was))
    changed = both["pull_and_inflate_object_from_tree"]
    if change == "name":
        monkeypatch.delattr(pulls, changed.__name__)
    elif change == "default":
        monkeypatch.setattr(changed, "__kwdefaults__", None)
    elif change == "word":
        changed.__kwdefaults__["first_backoff"] = changed.__kwdefaults__.pop("initial_backoff")
    elif change == "kind":
        changed.__kwdefaults__["initial_backoff"] = "1 s"
    else:
        monkeypatch.setattr(waiting, "PULLS", "flwr.nowhere")
    waiting.shorten_backoff()
    assert both["pull_objects"].__kwdefaults__ == was
    (line,) = notes()
    assert "left as it is" in line and line.endswith("take a second longer")


@pytest.fixture
def message():
    return Message(RecordDict(), dst_node_id=1, message_type="train")


def test_a_serial_run_says_who_it_is_and_names_its_messages(message, notes):
    serial.identify_task()
    identity = flower.TaskIdentity
    assert (identity.run_id, identity.node_id, identity.task_id) == (1, 0, 0)
    assert message.metadata.message_id == ""
    serial.give_id(message)
    assert len(message.metadata.message_id) == 36
    assert notes() == []
