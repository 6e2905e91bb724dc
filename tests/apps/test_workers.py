"""Serial runs with workers: the numbers of one process, and what happens when processes end."""

import os
import signal
import subprocess
import sys
from functools import partial

import pytest
from flwr.app import ConfigRecord, Message, RecordDict

from fedapps import serial
from fedapps.core import config
from fedapps.core.errors import RunError
from fedapps.engine.failed_clients import ClientError
from fedapps.serial import run_serial
from fedapps.wire import grid as grid_module
from fedapps.wire import worker_grid
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.worker_grid import WorkerGrid
from tests.support import ROOT
from tests.support.clock import passing
from tests.support.fits import hooked
from tests.support.killed import differences
from tests.support.marks import THOROUGH, WORKERS

pytestmark = WORKERS
RUN = "fraction-train=1.0 num-clients=5 num-rounds=2"


@pytest.fixture
def run(serial_run, tiny_npz):
    """Return run(*options, **arguments) -> run directory; arguments are those of `run_serial`."""
    return partial(serial_run, tiny_npz, RUN)


@pytest.fixture
def clients(monkeypatch):
    """Return let(act): `act(client, round)` is called in workers before each training."""
    tests = os.getpid()

    def let(act):
        def before_training(client, own, plan):
            assert os.getpid() != tests, "a client of this test has to be in a worker"
            act(client.client, plan.round)
            return own(plan)

        for method in ("fedavg", "fedper"):
            hooked(monkeypatch, method, "before_training", before_training)

    return let


@pytest.mark.parametrize("messages", [2, 12])
@pytest.mark.parametrize(("timeout", "waits"), [(10.0, [10.0]), (70.0, [30.0, 30.0, 8.0])])
def test_a_round_ends_at_its_timeout_however_many_messages_have_no_reply(
    messages, timeout, waits, monkeypatch
):
    """A pull for each of them waits, but all together no longer than one that is alone."""
    clock, waited = passing(monkeypatch, worker_grid, grid_module), []

    def wait(channels, seconds):
        clock.now += seconds
        waited.append(seconds)
        return []

    class Mute:
        channel = None

        def __init__(self, *_):
            self.ask = lambda place: None

    monkeypatch.setattr(worker_grid, "wait", wait)
    monkeypatch.setattr(worker_grid, "Fork", Mute)
    monkeypatch.setattr(worker_grid, "end", list)
    grid = WorkerGrid(lambda *_: None, {}, messages, workers=2, keep_going=False)
    sent = [Message(RecordDict(), node + 1, "train") for node in range(messages)]
    assert [*StreamingGrid(grid).send_and_receive(sent, timeout=timeout)] == []
    assert [seconds for seconds in waited if seconds] == waits
    assert timeout < clock.now <= timeout + 1.0 and max(clock.slept) <= 1.0


def test_workers_need_no_memfd_create_of_python(run, monkeypatch):
    """Pythons that were built for a C library before 2.27 lack it, as many of conda's."""
    monkeypatch.delattr(os, "memfd_create")
    assert differences(run(), run(workers=2)) == []


@pytest.mark.parametrize("workers", [THOROUGH(2), 3])
@pytest.mark.parametrize(
    "options",
    [
        'strategy="fedper"',  # the clients have state
        'strategy="feddyn"',  # clients and server have state
        'strategy="fedavg" dp.mode="local" dp.clip-norm=1.0 dp.noise-multiplier=0.5',
        'strategy="fedavg" dp.mode="central" dp.clip-norm=1.0 dp.noise-multiplier=0.5',
    ],
)
def test_workers_compute_what_one_process_computes(run, options, workers):
    assert differences(run(options), run(options, workers=workers)) == []


def test_workers_take_the_parts_of_more_supernodes_in_turn(run):
    options = 'strategy="fedper"'
    assert differences(run(options), run(options, num_supernodes=5, workers=2)) == []


def test_sums_before_sending_depend_on_how_many_send(run):
    options = 'strategy="fedavg" presum=true'
    assert differences(run(options, num_supernodes=2), run(options, workers=2)) == []


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 1)])
def test_a_run_is_resumed_with_another_number_of_workers(run, before, after):
    whole = run('strategy="fedper" num-rounds=3')
    folder = run('strategy="fedper" num-rounds=1', workers=before)
    run_serial(config.parse([f'resume="{folder}" num-rounds=3']), workers=after)
    assert differences(whole, folder) == []


@pytest.mark.parametrize(("options", "seen"), [
    (["--workers", "2", "-c", "device=cpu"], ""),  # GPUs would spoil the forks of its process
    (["--workers", "2", "-c", "device=auto"], "0"),  # is refused where there is a GPU
    (["-c", "device=cpu"], "0"),
])  # fmt: skip
def test_workers_on_the_cpu_see_no_gpu(monkeypatch, tmp_path, options, seen):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("GRPC_ENABLE_FORK_SUPPORT", "0")  # else it would be set for all tests
    found = []

    def look(*arguments, **options):
        found.append(os.environ["CUDA_VISIBLE_DEVICES"])
        return tmp_path

    monkeypatch.setattr(serial, "run_serial", look)
    assert serial.main(options) == 0
    assert found == [seen]


def test_a_worker_that_is_killed_costs_its_clients_one_round(run, clients, read_csv):
    def act(client, round_):
        if (client, round_) == (3, 1):
            os.kill(os.getpid(), signal.SIGKILL)

    clients(act)
    folder = run('strategy="fedper"', workers=5)
    rows = [row for row in read_csv(folder, "events.csv") if row["kind"] == "failure"]
    cause = "its worker process died: SIGKILL, usually for lack of memory"
    assert [(row["round"], row["client"], row["detail"]) for row in rows] == [("1", "3", cause)]
    assert [row["clients"] for row in read_csv(folder, "rounds.csv")] == ["5", "5"]
    with pytest.raises(RunError, match=cause):
        run('strategy="fedper"', workers=5, keep_going=False)


def no_luck(client, round_):
    if client == 1:
        raise ValueError("no luck")


def test_a_client_that_fails_ends_the_run_with_its_traceback(run, clients):
    clients(no_luck)
    with pytest.raises(ClientError) as e:
        run('strategy="fedavg"', workers=2, keep_going=False)
    assert str(e.value) == "round 1, client 1, train: ValueError: no luck"
    assert "in no_luck" in "".join(e.value.__notes__)


def test_a_run_that_keeps_going_logs_each_traceback_once(run, clients, read_csv):
    clients(no_luck)
    folder = run('strategy="fedavg"', workers=2)
    rows = [row for row in read_csv(folder, "events.csv") if row["kind"] == "failure"]
    assert [(row["round"], row["client"]) for row in rows] == [("1", "1"), ("2", "1")]
    text = (folder / "log.txt").read_text("utf-8")
    assert text.count("Traceback (most recent call last)") == 2
    assert text.count("round 2, client 1, train failed") == 1


WAITING = """
import os, signal, sys
from fedapps.core import registry
from fedapps.serial import main
original = registry.client_class
def client_class(name):
    class Waiting(original(name)):
        def before_training(self, plan):
            if plan.round == 2:
                os.write(1, b"waits\\n")
                signal.pause()
            return super().before_training(plan)
    return Waiting
registry.client_class = client_class
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("how", ["Ctrl-C", "SIGKILL"])
def test_no_worker_is_left_when_the_run_is_ended(tiny_npz, tmp_path, how):
    """Standard output ends only when no process has it any more."""
    options = f'{tiny_npz} {RUN} runs-dir="{tmp_path}" run-name="x" strategy="fedper"'
    command = [sys.executable, "-c", WAITING, "--workers", "2", "-c", options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    run = subprocess.Popen(command, cwd=ROOT, text=True, process_group=0, **pipes)
    waiting = 0
    while waiting < 2:
        line = run.stdout.readline()
        assert line, run.stderr.read()
        waiting += line == "waits\n"
    if how == "Ctrl-C":
        os.killpg(run.pid, signal.SIGINT)
    else:
        run.kill()
    _, said = run.communicate()
    if how == "Ctrl-C":
        assert run.returncode == 130
        assert "Traceback" not in said
        assert (tmp_path / "x" / "summary.json").exists() and "resume" in said
    assert [*(tmp_path / "x").rglob(".*.tmp")] == []


def test_workers_of_split_learning_are_silent_on_grpc(tiny_npz, tmp_path):
    """The channel's server runs while they are forked."""
    options = f'{tiny_npz} {RUN} runs-dir="{tmp_path}" strategy="fedfc"'
    command = [sys.executable, "-m", "fedapps.serial", "--workers", "2", "-c", options]
    env = {key: value for key, value in os.environ.items() if not key.startswith("GRPC_")}
    run = subprocess.run(command, cwd=ROOT, text=True, capture_output=True, env=env)
    assert (run.returncode, run.stderr) == (0, "")
    assert "grpc" not in run.stdout.lower()


def test_a_worker_that_is_late_is_replaced_at_the_next_push():
    def app(message, context):
        if message.content["config"]["late"]:
            signal.pause()
        return Message(RecordDict(), reply_to=message)

    def messages(late):
        asked = ConfigRecord({"late": late, "data": bytes(10_000)})
        return [Message(RecordDict({"config": asked}), node, "train") for node in (1, 2)]

    grid = WorkerGrid(app, {}, 2, 2, keep_going=True)
    try:
        grid.push_messages(messages(late=True))
        late = [worker.fork.pid for worker in grid.workers]
        replies = StreamingGrid(grid).send_and_receive(messages(late=False))
        assert sorted(reply.metadata.src_node_id for reply in replies) == [1, 2]
        for pid in late:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)
    finally:
        grid.close()


@pytest.mark.parametrize(
    ("options", "arguments", "problem"),
    [
        ("", {"workers": 0}, "--workers 0: must be at least 1"),
        ("threads=2", {"workers": 2}, "--workers 2: threads = 2: a worker has one thread; use 1"),
        ("", {"workers": 2, "node_configs": [{}]}, "devices"),
    ],
)
def test_what_workers_cannot_do_is_refused_in_one_line(run, options, arguments, problem):
    with pytest.raises(RunError, match=problem):
        run(options, **arguments)
