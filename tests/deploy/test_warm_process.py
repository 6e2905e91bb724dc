"""The process that forks itself for each message, and the SuperExec that asks it to."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from fedapps.device import warm
from tests.deploy.helpers import DEPLOY, PATIENCE, flower

# A message's process tells what it is like, instead of asking a SuperNode for the message.
TELL = """if True:
    import atexit, fcntl, json, multiprocessing, random, signal, sys
    from flwr.supernode import cli

    def tell():
        facts = {"argv": sys.argv, "modules": sorted(sys.modules), "stdin": sys.stdin.read()}
        facts["signals"] = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGCHLD)]
        facts["start"] = multiprocessing.get_start_method()
        facts["random"] = [random.random(), __import__("numpy").random.rand()]
        import fedapps.client_app
        facts["app"] = sorted(sys.modules)
        atexit.register(say, json.dumps(facts, default=str))

    def say(line):
        with open(__file__) as mine:  # a pipe mixes long lines of two processes
            fcntl.flock(mine, fcntl.LOCK_EX)
            print(line, flush=True)

    cli.flwr_clientapp = tell
"""
LAUNCH = """if True:
    import importlib, os, select, signal, sys
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor import ExecutionSpec, SubprocessExecutor
    from fedapps.device import superexec

    spec = ExecutionSpec(task_type=TaskType.CLIENT_APP, **SPEC)
    executor = SubprocessExecutor()
    superexec.flower.command = lambda name: lambda: None
    superexec.main()
    forks = importlib.import_module(superexec.EXECUTOR.module).subprocess.Popen.__self__

    def wait_for_libraries():
        forks.warm = forks.warm or forks._begin()
        select.select([forks.loading], [], [])

"""
# Loads the libraries when there is a certain file.
HELD = """
import os, runpy, sys, time
_, gate, *sys.argv = sys.argv
while not os.path.exists(gate):
    time.sleep(0.01)
runpy.run_path(sys.argv[0], run_name="__main__")
"""
SPEC = {"runtime_api_address": "127.0.0.1:1", "token": "t", "task_id": 1, "insecure": True}
SPEC |= {"root_certificates_path": None, "parent_pid": 1, "runtime_dependency_install": False}
SPEC |= {"suppress_output": False}
WORDS = ["--runtime-api-address", "127.0.0.1:1", "--token", "t", "--insecure", "--parent-pid", "1"]


@pytest.fixture
def messages(tmp_path):
    """Run code that lets Flower's executor in our SuperExec launch messages; returns what was said.

    First what the SuperExec printed, then what all processes of messages told.
    """
    (tmp_path / "sitecustomize.py").write_text(TELL)
    paths = os.pathsep.join([str(tmp_path), str(DEPLOY.parent)])

    def run(code, **spec):
        code = LAUNCH.replace("**SPEC", f"**{SPEC | spec!r}") + textwrap.indent(code, "    ")
        done = subprocess.run(
            [sys.executable, "-c", code], timeout=PATIENCE, capture_output=True, text=True,
            env=os.environ | flower(tmp_path) | {"PYTHONPATH": paths},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        said = [json.loads(line) for line in done.stdout.splitlines()]
        return sorted(said, key=lambda it: isinstance(it, dict))

    return run


def test_messages_get_forks_with_the_libraries_and_without_an_app(messages):
    code = """
wait_for_libraries()
pid = forks.warm.pid
executor.launch(spec)
executor.launch(spec)
print(+(forks.warm.pid == pid))
"""
    same, *told = messages(code)
    assert same and len(told) == 2
    for facts in told:
        assert facts["argv"] == ["flwr-clientapp", *WORDS]
        libraries, app = set(facts["modules"]), set(facts["app"])
        assert set(warm.LIBRARIES) <= libraries
        tops = {name.partition(".")[0] for name in libraries} | set(sys.stdlib_module_names)
        new = {name.partition(".")[0] for name in app} - tops
        # The app finds all libraries loaded, and nothing of another app; methods come later.
        assert {name for name in new if name[0] != "_"} == {"fedapps"}


def test_a_message_does_not_wait_for_the_libraries_to_be_loaded(messages, tmp_path):
    """Only a process that is there says that it lives; Flower gives up the others."""
    code = f"""
gate = {str(tmp_path / "gate")!r}
superexec.WARM = (sys.executable, "-c", {HELD!r}, gate, superexec.WARM[-1])
try:
    executor.launch(spec)
    print(+forks.loaded())
    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
    print(+(ended.si_pid == forks.warm.pid))
finally:
    open(gate, "w").close()
wait_for_libraries()
executor.launch(spec)
"""
    loaded, ended, *told = messages(code)
    assert (loaded, ended) == (0, 0)
    assert [facts["argv"][1:] for facts in told] == [WORDS] * 2
    assert ["torch" in facts["modules"] for facts in told] == [False, True]


def test_a_fork_is_like_a_new_process(messages):
    """Its handlers at exit run, too, as it is there that it tells."""
    first, second = messages("wait_for_libraries()" + "\nexecutor.launch(spec)" * 2)
    assert not set(first["random"]) & set(second["random"])
    for facts in (first, second):
        assert facts["start"] == "fork"
        assert "default_int_handler" in facts["signals"][0]
        assert facts["signals"][1] == signal.SIG_DFL
        assert facts["stdin"] == ""


@pytest.mark.thorough
def test_a_process_that_is_to_install_the_app_is_started_as_flower_does(messages):
    code = "executor.launch(spec); print(+(forks.warm is None))"
    without, facts = messages(code, runtime_dependency_install=True)
    assert without == 1
    assert "torch" not in facts["modules"]
    assert facts["argv"][1:] == [*WORDS, "--allow-runtime-dependency-installation"]


@pytest.mark.thorough
def test_what_is_forked_is_started_again_if_it_was_killed(messages):
    """By a kernel that is short of memory, say; once before that is seen, and once after."""
    code = """
wait_for_libraries()
warm, forks.warm.poll = forks.warm, lambda: None
os.kill(warm.pid, signal.SIGKILL)
os.waitid(os.P_PID, warm.pid, os.WEXITED | os.WNOWAIT)
executor.launch(spec)
del warm.poll
executor.launch(spec)
wait_for_libraries()
executor.launch(spec)
"""
    told = messages(code)
    assert sorted("torch" in facts["modules"] for facts in told) == [False, False, True]


@pytest.mark.thorough
def test_what_is_forked_rests_when_no_message_comes_and_its_forks_go_on(messages):
    code = """
wait_for_libraries()
executor.launch(spec)
executor.reconcile()
print(+(forks.warm is None))
superexec.IDLE = 0
executor.reconcile()
print(+(forks.warm is None))
wait_for_libraries()
executor.launch(spec)
"""
    before, after, *told = messages(code)
    assert (before, after) == (0, 1)
    assert ["torch" in facts["modules"] for facts in told] == [True, True]


@pytest.mark.parametrize("starts", ["warm.run(words, stay)", "warm.end_with_parent(words); stay()"])
def test_what_is_blocked_ends_when_nobody_is_left_who_started_it(starts):
    """Flower's signal does not reach a main thread that waits for another one."""
    parent = subprocess.Popen(["sleep", "1000"])
    program = f"""if True:
        import threading
        from flwr.supercore.app_utils import start_parent_process_monitor
        from fedapps.device import warm

        def stay():
            start_parent_process_monitor({parent.pid})
            print("on", flush=True)
            threading.Event().wait()

        warm.GRACE, words = 0.5, ["x", "--token", "t", "--parent-pid", "{parent.pid}"]
        {starts}
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
