"""The process in which a SuperNode's messages are answered, and the SuperNode that hands them over.

Messages take Flower's own way into a SuperNode and out of it (tests/support/node.py).
"""

import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.supercore.run import RunNotRunningException

from fedapps.device import answering, warm
from tests.deploy.helpers import PATIENCE
from tests.support import ROOT
from tests.support.clock import until
from tests.support.node import Node, fab_of

# What a message finds in its process.
FACTS = """
import random, signal
import numpy as np
COUNT = []

def tell(asked, context):
    COUNT.append(1)
    return {
        "pid": os.getpid(), "count": len(COUNT), "run": context.run_id,
        "modules": sorted(sys.modules), "path": sys.path, "stdin": sys.stdin.read(),
        "interrupt": signal.getsignal(signal.SIGINT) == signal.SIG_IGN,
        "random": [random.random(), np.random.rand()], "config": context.node_config,
        "heaps": os.environ["MALLOC_ARENA_MAX"],
        "killed first": open("/proc/self/oom_score_adj").read().strip(),
    }
"""
# Keeps something where Flower lets an app keep it; the number comes from a module of its own.
KEEPS = """
import part

def tell(asked, context):
    kept = context.state.config_records.setdefault("kept", ConfigRecord({"sum": 0}))
    kept["sum"] += part.STEP
    part.SEEN.append(kept["sum"])
    return {"sum": kept["sum"], "seen": part.SEEN, "step": part.STEP, "pid": os.getpid()}
"""


# To load torch takes most of the time, and makes no difference to most tests.
LIGHT = """
from fedapps.device import warm
warm.LIBRARIES = ("flwr.clientapp",)
for name in [name for name in sys.modules if name.partition(".")[0] == "fedapps"]:
    del sys.modules[name]
warm.main()
"""


@pytest.fixture(autouse=True)
def home(request, tmp_path, monkeypatch):
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "home"))
    if "whole" not in request.fixturenames:
        code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{LIGHT}"
        monkeypatch.setattr(answering, "WARM", (sys.executable, "-P", "-c", code))


@pytest.fixture
def whole():
    """The process is the one that a device has."""


@pytest.fixture
def node():
    made = Node()
    yield made
    made.process.end()


def test_one_process_answers_the_messages_of_a_run_and_has_nothing_of_another(node, whole):
    fab = fab_of(FACTS)
    first, second, other = (node.ask(fab, run) for run in (7, 7, 8))
    assert (first["count"], second["count"], other["count"]) == (1, 2, 1)
    assert first["pid"] == second["pid"] != other["pid"]
    assert not psutil.pid_exists(first["pid"])
    assert [facts["run"] for facts in (first, second, other)] == [7, 7, 8]
    for facts in (first, other):
        assert set(warm.LIBRARIES) <= set(facts["modules"])
        assert "fedapps" not in facts["modules"]  # the app brings its own
        assert facts["stdin"] == "" and facts["interrupt"]
        assert facts["config"] == {"client-id": 1}
        assert facts["heaps"] == "1"
        assert facts["killed first"] == "1000"  # so that the SuperNode is left, and says so
        assert not [path for path in facts["path"] if path.endswith("fedapps/device")]


def test_an_app_that_says_nothing_has_a_new_process_for_each_message(node):
    fab = fab_of(FACTS, stays=False)
    first, second, other = (node.ask(fab, run) for run in (7, 7, 8))
    assert (first["count"], second["count"], other["count"]) == (1, 1, 1)
    assert len({facts["pid"] for facts in (first, second, other)}) == 3
    node.process.end()
    assert not any(psutil.pid_exists(facts["pid"]) for facts in (first, second, other))
    assert not set(first["random"]) & set(second["random"])
    assert {facts["stdin"] for facts in (first, second, other)} == {""}


def test_such_an_app_can_do_what_it_has_to_at_its_end(node, tmp_path):
    """As those do that send or write in another thread what they have logged."""
    path = tmp_path / "written"
    tell = f"""
        import atexit, pathlib, time

        def write():
            time.sleep(0.5)
            pathlib.Path({str(path)!r}).write_text("all of it")

        atexit.register(write)

        def tell(asked, context):
            return "told"
    """
    assert node.ask(fab_of(textwrap.dedent(tell), stays=False)) == "told"
    node.process.end()
    assert path.read_text() == "all of it"


@pytest.mark.parametrize("stays", [True, False])
def test_apps_with_the_same_names_and_runs_of_one_see_nothing_of_each_other(node, stays):
    """Their messages come in turn; each run has its own state, and each app its own modules."""
    one, two = (fab_of(KEEPS, stays, part=f"STEP = {n}\nSEEN = []\n") for n in (1, 100))
    told = [node.ask(fab, run) for fab, run in [(one, 1), (two, 2), (one, 3), (two, 2), (one, 1)]]
    assert [facts["sum"] for facts in told] == [1, 100, 1, 200, 2]
    assert [facts["step"] for facts in told] == [1, 100, 1, 100, 1]
    assert [facts["seen"] for facts in told] == [[1], [100], [1], [200], [2]]


def test_arrays_come_and_go_as_they_are(node):
    code = "def again(message, context): return Message(message.content, reply_to=message)\n"
    fab = fab_of(code + 'app._registered_funcs["query.default"] = again\n')
    values = np.random.default_rng(0).standard_normal((300, 1000))
    config = ConfigRecord({"a": 1, "b": [0.1], "c": b"\0", "d": "x", "e": True})
    sent = RecordDict({"arrays": ArrayRecord({"w": Array(values), "none": Array(values[:0])})})
    sent["config"] = config
    for _ in range(2):
        content = node.reply(fab, 1, sent).content
        assert np.array_equal(content["arrays"]["w"].numpy(), values)
        assert content["arrays"]["none"].numpy().shape == (0, 1000)
        assert content["config"] == config


@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize(("tell", "line"), [
    ("def tell(*_): raise ValueError('no, thanks')", "ValueError('no, thanks')"),
    ("def tell(*_): os._exit(3)", "its process ended (exit status 3) before it had answered"),
    ("def tell(*_): os.kill(os.getpid(), 9)", "usually because memory ran out"),
    ("import nowhere", "No module named 'nowhere'"),
    ("app = 1", "LoadClientAppError"),
])  # fmt: skip
def test_what_fails_is_an_error_of_this_message_alone(node, stays, tell, line, capfd):
    assert line in node.ask(fab_of(tell, stays))
    ended = "process" in line or "memory" in line
    said = [s for s in capfd.readouterr().out.splitlines() if s.startswith("error: ")]
    assert len(said) == ended and all(line in s for s in said)
    assert node.ask(fab_of(FACTS, stays), run=2)["count"] == 1


def test_a_message_whose_run_ended_on_its_way_holds_up_no_later_one(node, capfd):
    """Flower leaves it behind; if it were answered in place of the next, that would be for ever."""
    fab = fab_of(FACTS)

    def ended(run, key):
        raise RunNotRunningException

    assert node.ask(fab, run=7)["run"] == 7
    assert node.receive(fab, 7, RecordDict({"asked": ConfigRecord({"json": "{}"})}), ended) is None
    first, second = node.ask(fab, run=8), node.ask(fab, run=8)
    assert (first["run"], first["count"]) == (8, 1) and second["count"] == 2
    assert "its run ended before all of it had come" in capfd.readouterr().out


def test_too_little_memory_costs_one_message(node):
    tell = """if True:
        import resource

        def tell(asked, context):
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + 2**27, resource.RLIM_INFINITY))
            return len(bytearray(asked["size"])), os.getpid()
    """
    fab = fab_of(tell)
    (small, pid), reason, (again, same) = (node.ask(fab, size=n) for n in (2**20, 2**30, 2**20))
    assert reason == "MemoryError()" and (small, again, same) == (2**20, 2**20, pid)


def test_a_process_that_was_killed_or_has_rested_is_started_again(node, monkeypatch):
    fab = fab_of(FACTS)
    pid = node.ask(fab)["pid"]
    os.kill(pid, signal.SIGKILL)  # by a kernel that is short of memory, say
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    again = node.ask(fab)["pid"]
    assert node.process.end_idle() and psutil.pid_exists(again)
    monkeypatch.setattr(answering, "IDLE", 0.0)
    node.process.end_idle()
    assert not psutil.pid_exists(again)
    assert node.ask(fab)["count"] == 1


def test_flower_hears_of_a_message_that_takes_long(node, monkeypatch):
    beats = []
    monkeypatch.setattr(answering, "BEAT", 0.01)
    monkeypatch.setattr(node.state, "acknowledge_task_heartbeat", beats.append)
    create, made = node.state.create_task, []
    monkeypatch.setattr(node.state, "create_task", lambda **a: made.append(create(**a)) or made[-1])
    node.ask(fab_of(FACTS))  # it takes long to load the libraries
    assert set(beats) == set(made) and len(made) == 1 < len(beats)


# Flower copies the files of an app; while `full` is there, the disk is full in the middle of one.
FULL = """
import errno, os, pathlib, shutil
copy, full = shutil.copy2, pathlib.Path({full!r})

def copy2(source, target, **how):
    if str(source).endswith("/code.py") and full.exists():
        pathlib.Path(target).write_bytes(pathlib.Path(source).read_bytes()[:40])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return copy(source, target, **how)

shutil.copy2 = copy2
"""


@pytest.mark.parametrize("stays", [True, False])
def test_an_install_that_was_cut_off_is_done_again(node, stays, tmp_path, monkeypatch):
    """The disk was full in the middle of it, or, later, the power went before all was written."""
    full, fab = tmp_path / "full", fab_of(FACTS, stays, part="")
    *python, code = answering.WARM
    monkeypatch.setattr(answering, "WARM", (*python, FULL.format(full=str(full)) + code))
    full.touch()
    assert "No space left" in node.ask(fab)
    full.unlink()
    assert node.ask(fab)["count"] == 1
    (folder,) = (tmp_path / "home" / "apps").iterdir()
    for run, damage in enumerate([Path.unlink, lambda path: path.write_bytes(b"")], 2):
        damage(folder / "code.py")
        assert node.ask(fab, run)["count"] == 1
    assert {path.name for path in folder.iterdir()} >= {"code.py", "part.py", "pyproject.toml"}


# Installs beside this folder, says where, and goes on when it hears of it.
INSTALLS = """
import sys
from pathlib import Path
from fedapps.device.warm import beside
with beside(Path(sys.argv[1])) as folder:
    (folder / "half").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_what_a_killed_install_has_left_is_removed_but_nothing_of_a_living_one(tmp_path):
    started = []

    def install():
        command = [sys.executable, "-c", INSTALLS, str(tmp_path / "app")]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
        )
        started.append(process)
        return process, Path(process.stdout.readline().strip())

    try:
        (dead, left), (alive, used) = install(), install()
        (tmp_path / "app").mkdir()
        dead.kill()
        dead.wait()
        with warm.beside(tmp_path / "app") as own:
            assert {*tmp_path.iterdir()} == {tmp_path / "app", left, used, own}
            assert [*own.iterdir()] == []
        alive.communicate()
        assert {*tmp_path.iterdir()} == {tmp_path / "app", left}
        with warm.beside(tmp_path / "app") as own, warm.beside(tmp_path / "app") as other:
            assert {*tmp_path.iterdir()} == {tmp_path / "app", own, other}
        assert [*tmp_path.iterdir()] == [tmp_path / "app"]
    finally:
        for process in started:
            process.kill()
            process.communicate()


def test_a_supernode_keeps_no_task_of_a_message_that_is_answered(node, monkeypatch):
    """Neither of one that was refused, nor of one that did not arrive as a whole."""
    fab, asked, state = fab_of(""), RecordDict({"asked": ConfigRecord({"json": "{}"})}), node.state

    def dies(*_):
        raise EOFError("it ended")

    def broken(run, key):
        raise OSError("the network is gone")

    monkeypatch.setattr(node.process, "ask", dies)
    for n in range(50):
        if n % 5 == 4:
            assert node.receive(fab, 1, asked, broken) is None
            assert len(state.task_store) == 1
        assert "it ended" in node.ask(fab)
        assert not state.task_store and not state.task_token_store


def test_without_libraries_it_ends_with_one_line(node, whole, tmp_path, monkeypatch, capfd):
    (tmp_path / "safetensors").mkdir()
    (tmp_path / "safetensors" / "__init__.py").write_text("raise MemoryError('no more')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert "exit status 1" in node.ask(fab_of(FACTS))
    assert "error: the libraries cannot be loaded: MemoryError: no more" in capfd.readouterr().err


@pytest.mark.parametrize("stays", [True, False])
def test_a_message_ends_with_its_supernode(stays, tmp_path):
    """Whatever ends the SuperNode, also while the app waits for something that never comes."""
    blocked = tmp_path / "blocked"
    code = f"""if True:
        from tests.support.node import Node, fab_of
        tell = '''def tell(*_):
            import threading
            with open({str(blocked)!r} + "-", "w") as file:
                print(os.getpid(), file=file, flush=True)
            os.rename(file.name, {str(blocked)!r})
            threading.Event().wait()
        '''
        Node().ask(fab_of(tell, {stays}))
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    supernode = subprocess.Popen(command, cwd=ROOT)
    try:
        until(lambda: blocked.exists() or supernode.poll() is not None, seconds=PATIENCE)
        process = psutil.Process(int(blocked.read_text()))
    finally:
        supernode.kill()
        supernode.wait()
    process.wait(PATIENCE)


@pytest.mark.parametrize("unread", [False, True])
def test_a_process_ends_with_its_supernode_where_a_poll_says_nothing(unread, monkeypatch):
    """As on macOS: `poll` tells of a peer that hangs up only who also waits for its messages."""
    turns, looks, ended = threading.Semaphore(0), threading.Semaphore(0), threading.Event()
    waits = []

    class Poll:
        def register(self, peer, events):
            assert events == 0

        def poll(self, timeout=None):
            waits.append(timeout)
            looks.release()
            assert turns.acquire(timeout=PATIENCE)
            return []

    def look():
        turns.release()
        assert looks.acquire(timeout=PATIENCE)

    monkeypatch.setattr(warm, "select", SimpleNamespace(poll=Poll))
    monkeypatch.setattr(warm.os, "_exit", lambda status: ended.set())
    mine, supernode = socket.socketpair()
    with Connection(mine.detach()) as connection, supernode:
        warm.end_with_peer(connection)
        assert looks.acquire(timeout=PATIENCE) and waits != [None]  # that would be for ever
        look()
        with Connection(os.dup(supernode.fileno())) as asks:
            asks.send_bytes(b"a message")
        look()
        assert connection.recv_bytes() == b"a message"
        look()
        if unread:
            connection.send_bytes(b"a reply")
        assert not ended.is_set()
        supernode.close()
        turns.release()
        assert ended.wait(PATIENCE)


def test_what_is_blocked_ends_when_nobody_is_left_who_started_it():
    """Flower's signal does not reach a main thread that waits for another one."""
    parent = subprocess.Popen(["sleep", "1000"])
    program = f"""if True:
        import threading
        from fedapps.core import stopping

        stopping.GRACE = 0.5
        stopping.end_with_parent(["x", "--token", "t", "--parent-pid", "{parent.pid}"])
        print("on", flush=True)
        threading.Event().wait()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    blocked = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert blocked.stdout.readline() == "on\n" and blocked.poll() is None
        parent.kill()
        parent.wait()
        assert blocked.wait(PATIENCE) == 1
    finally:
        parent.kill()
        blocked.kill()


@pytest.mark.parametrize("gone", [False, True])
def test_a_run_whose_superlink_has_ended_is_not_said_to_be_stopped_by_hand(gone):
    """Flower raises SIGINT then, as Ctrl-C does."""
    parent = subprocess.Popen(["sleep", "1000"])
    program = f"""if True:
        import signal
        from fedapps.core import stopping

        signal.signal(signal.SIGINT, lambda *_: None)  # as Flower handles it
        stopping.end_with_parent(["x", "--token", "t", "--parent-pid", "{parent.pid}"])
        try:
            with stopping.stoppable():
                input()
                signal.raise_signal(signal.SIGINT)
        except stopping.Stopped as error:
            print(error, error.code)
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as run:
        if gone:
            parent.kill()
            parent.wait()
        told, _ = run.communicate("\n", timeout=PATIENCE)
    parent.kill()
    parent.wait()
    assert told == ("the SuperLink has ended; resume the run" if gone else "SIGINT") + " 130\n"
