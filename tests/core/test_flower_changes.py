"""What we replace of Flower is checked first, and left alone where Flower is not as we know it."""

import importlib
import inspect
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from flwr.app import Message, RecordDict

from fedapps.core import flower
from fedapps.core.errors import RunError
from fedapps.core.flower import ChangedError, Known, Overlay
from fedapps.device import superexec, supernode, warm
from fedapps.wire import serial_grid as serial


@pytest.fixture(autouse=True)
def notes(capsys):
    """Return notes() -> the lines that were said of this Flower, from the beginning of the test."""
    flower.leave_as_it_is.cache_clear()
    return lambda: [s for s in capsys.readouterr().out.splitlines() if s.startswith("note: ")]


@pytest.fixture
def loop(monkeypatch):
    """Flower's loop of a SuperNode, which is restored after the test."""
    return restored(monkeypatch, supernode.LOOP, "time", "subprocess")


@pytest.fixture
def executor(monkeypatch):
    """Flower's executor of a SuperExec, which is restored after the test."""
    module = restored(monkeypatch, superexec.EXECUTOR.module, "subprocess")
    kind = module.SubprocessExecutor
    monkeypatch.setattr(kind, "reconcile", kind.reconcile)
    return module


def restored(monkeypatch, name, *attributes):
    module = importlib.import_module(name)
    for attribute in attributes:
        monkeypatch.setattr(module, attribute, getattr(module, attribute))
    return module


def change_source(monkeypatch, module, old, new):
    """Let a module look as if its source had another text in a place."""
    source = inspect.getsource(module)
    assert old in source
    real = inspect.getsource
    changed = source.replace(old, new)
    monkeypatch.setattr(inspect, "getsource", lambda m: changed if m is module else real(m))


def test_a_stand_in_has_all_else_of_its_module():
    stand_in = Overlay(time, sleep="mine")
    assert stand_in.sleep == "mine" and stand_in.monotonic is time.monotonic
    with pytest.raises(AttributeError):
        stand_in.nothing  # noqa: B018


@pytest.mark.parametrize(("known", "line"), [
    (Known("flwr.nowhere", {}, {}), "flwr.nowhere: No module named 'flwr.nowhere'"),
    (Known(supernode.LOOP, {"datetime": time}, {}), "has no attribute 'datetime'"),
    (Known(supernode.LOOP, {"os": time}, {}), f"{supernode.LOOP}.os is not the module os"),
    (
        Known(supernode.LOOP, {}, {r"\btime\.(\w+)": {"nap"}}),
        f"{supernode.LOOP} has ['sleep'], not ['nap']",
    ),
    (Known(supernode.LOOP, {}, {}, {"gone": ()}), "has no attribute 'gone'"),
    (
        Known(supernode.LOOP, {}, {}, {"_insert_message": ("message",)}),
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


def test_this_flowers_loop_is_the_one_that_we_know(loop, notes):
    supernode.poll_sooner()
    assert loop.time.sleep.__func__ is supernode.PollingPause.sleep
    assert loop.time.monotonic is time.monotonic
    assert loop.subprocess.Popen is supernode.start_superexec
    assert loop.subprocess.DEVNULL is subprocess.DEVNULL
    assert notes() == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("time.sleep(3)", "time.sleep(1)"), ("time.sleep(3)", "event.wait(3)"), (None, None)],
)
def test_a_loop_that_waits_in_another_way_keeps_it(loop, notes, monkeypatch, old, new):
    if old:
        change_source(monkeypatch, loop, old, new)
    else:
        monkeypatch.setattr(loop, "time", SimpleNamespace())
    was = loop.time
    supernode.poll_sooner()
    assert loop.time is was
    assert loop.subprocess.Popen is supernode.start_superexec  # that is as it was
    (line,) = notes()
    assert "the SuperNode's wait is left as it is" in line and line.endswith("take 3 s longer")


@pytest.mark.parametrize(("old", "new"), [
    ('["flower-superexec"]', '["flower-executor"]'),
    ("subprocess.Popen", "subprocess.run"),
    (None, None),
])  # fmt: skip
def test_a_loop_that_starts_something_else_starts_it(loop, notes, monkeypatch, old, new):
    if old:
        change_source(monkeypatch, loop, old, new)
    else:
        monkeypatch.delattr(loop, "subprocess")
    was = vars(loop).get("subprocess")
    supernode.poll_sooner()
    assert vars(loop).get("subprocess") is was
    assert loop.time.sleep.__func__ is supernode.PollingPause.sleep
    (line,) = notes()
    assert "the SuperNode's SuperExec is left as it is" in line


def test_another_process_than_the_superexec_is_started_as_it_is():
    words = [sys.executable, "-c", "print('as it is')"]
    process = supernode.start_superexec(words, stdout=subprocess.PIPE, text=True)
    assert process.communicate() == ("as it is\n", None)


def test_a_supernode_ends_though_flower_does_not_know_how(monkeypatch, capsys):
    ends = []
    monkeypatch.setattr(supernode.os, "_exit", ends.append)
    monkeypatch.setitem(vars(flower), "flwr_exit", lambda: None)  # takes no code and no text
    supernode.leave("Lost the SuperLink.")
    assert ends == [1] and capsys.readouterr().out == "error: Lost the SuperLink.\n"


def test_this_flowers_executor_is_the_one_that_we_know(executor, notes):
    forks, rests, asked = superexec.Forks(), [], []
    forks.end_idle = lambda: rests.append(1)
    executor.SubprocessExecutor.reconcile = lambda self: asked.append(self)
    superexec.start_messages_as_forks(forks)
    assert executor.subprocess.Popen == forks.start
    assert executor.subprocess.PIPE is subprocess.PIPE
    one = executor.SubprocessExecutor()
    one.reconcile()
    assert (rests, asked) == ([1], [one])  # what Flower does there, it still does
    assert notes() == []


@pytest.mark.parametrize("change", ["source", "parameters", "class", "module"])
def test_an_executor_that_is_another_one_is_left_as_it_is(executor, notes, monkeypatch, change):
    kind = executor.SubprocessExecutor
    if change == "source":
        change_source(monkeypatch, executor, "subprocess.Popen(args)", "subprocess.run(args)")
        change_source(monkeypatch, executor, "--allow-runtime-dependency", "--install")
    elif change == "parameters":
        monkeypatch.setattr(kind, "reconcile", lambda self, now: None)
    elif change == "class":
        monkeypatch.delattr(executor, "SubprocessExecutor")
    else:
        monkeypatch.setattr(executor, "subprocess", SimpleNamespace())
    was, reconcile = executor.subprocess, kind.reconcile
    superexec.start_messages_as_forks(superexec.Forks())
    assert executor.subprocess is was and kind.reconcile is reconcile
    (line,) = notes()
    assert "SuperExec is left as it is" in line and line.endswith("which takes seconds")


@pytest.mark.parametrize("change", ["name", "default", "word", "kind", "module"])
def test_pulls_that_wait_in_another_way_are_left_as_they_are(notes, monkeypatch, change):
    pulls = importlib.import_module(warm.PULLS)
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
        monkeypatch.setattr(warm, "PULLS", "flwr.nowhere")
    warm.shorten_backoff()
    assert both["pull_objects"].__kwdefaults__ == was
    (line,) = notes()
    assert "left as it is" in line and line.endswith("take a second longer")


@pytest.mark.parametrize("change", ["command", "function"])
def test_messages_without_flowers_function_are_processes_of_their_own(monkeypatch, notes, change):
    def load():
        raise AttributeError("no flwr_clientapp")

    entries = [SimpleNamespace(load=load)] if change == "function" else []
    monkeypatch.setattr(warm.metadata, "entry_points", lambda **_: entries)
    assert warm.clientapp() is None
    (line,) = notes()
    assert "flwr-clientapp cannot be loaded" in line and line.endswith("which takes seconds")
    code = "import sys; from fedapps.device import warm; warm.run(sys.argv[1:], None)"
    words = [sys.executable, "-c", "import sys; print(sys.argv[1:], repr(sys.stdin.read()))", "t"]
    done = subprocess.run([sys.executable, "-c", code, *words], stdout=subprocess.PIPE, text=True)
    assert (done.returncode, done.stdout) == (0, "['t'] ''\n")


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


@pytest.mark.parametrize("gone", ["name", "field"])
def test_without_a_tasks_identity_messages_are_made_as_flower_does(notes, monkeypatch, gone):
    if gone == "name":
        module = importlib.import_module("flwr.supercore.task_identity")
        monkeypatch.delattr(module, "TaskIdentity")
        monkeypatch.delitem(vars(flower), "TaskIdentity", raising=False)
    else:
        monkeypatch.setitem(vars(flower), "TaskIdentity", SimpleNamespace(run_id=None))
    serial.SerialGrid(lambda *_: None, {}, 1)
    (line,) = notes()
    assert "the identity of a task is left as it is" in line and "\n" not in line


def test_a_message_that_names_itself_keeps_its_name(notes):
    metadata = SimpleNamespace(message_id="own")
    serial.give_id(SimpleNamespace(metadata=metadata))
    assert metadata.message_id == "own"
    assert "a message's id is left as it is" in notes()[0]


def test_messages_without_any_id_end_a_serial_run_in_one_line():
    with pytest.raises(RunError, match=r"gives messages no id .* pip install 'flwr==1\.41\.\*'$"):
        serial.give_id(SimpleNamespace(metadata=SimpleNamespace(message_id="")))
