"""The process of a sweep's runs as users have it, started anew and not forked."""

import os
import sys
import threading

import pandas as pd
import pytest

from fedapps import client_app
from fedapps.compare import workers
from fedapps.compare.workers import Worker, crew, stop
from fedapps.core.errors import RunError
from fedapps.report import directory
from fedapps.report.about import About, command
from fedapps.serial import idle_workers
from fedapps.training.workspace import workspace
from tests.support.clock import until
from tests.support.killed import differences
from tests.support.marks import WORKERS

pytestmark = pytest.mark.slow


def test_a_worker_runs_as_this_process(flat_config, tiny_npz, serial_run, untimed_rounds, tmp_path):
    options = [tiny_npz, "num-clients=4 num-rounds=2 model=lenet5"]
    worker, log = Worker(), tmp_path / "logs" / "log.txt"
    try:
        with pytest.raises(RunError, match=rf"num-clients.*; see {log}$"):
            worker.run(flat_config(*options, "num-clients=1000"), log, plots=False)
        process = worker.process
        folder = worker.run(flat_config(*options), log, plots=False)
        assert worker.process is process and process.is_alive()
        shared = worker.run(flat_config(*options), log, plots=False, at_once=1000)
    finally:
        stop([worker])
    assert not process.is_alive()
    assert len(pd.read_csv(folder / "rounds.csv")) == 2
    assert " round 2/2 " in f" {log.read_text('utf-8')}".replace("\n", " ")
    assert untimed_rounds(folder) == untimed_rounds(serial_run(*options))
    assert differences(folder, shared) == []
    assert About.read(folder).command == command(sys.orig_argv)  # the user's, not of its process


@WORKERS
def test_a_split_run_in_its_process_is_silent_on_grpc(flat_config, monkeypatch, tmp_path):
    """With idle cores it has workers, which are forked while the channel's server runs."""
    for name in [name for name in os.environ if name.startswith("GRPC_")]:
        monkeypatch.delenv(name)
    worker, log = Worker(), tmp_path / "log.txt"
    options = 'strategy="fedfc" num-clients=6 num-rounds=1 fraction-train=1.0 batch-size=8'
    try:
        worker.run(flat_config(options), log, plots=False)
    finally:
        stop([worker])
    assert "fork" not in log.read_text("utf-8")


def test_a_run_leaves_no_data_in_its_process(flat_config, tiny_npz):
    workers._run(flat_config(tiny_npz, "num-clients=4 num-rounds=1"), plots=False, at_once=1000)
    assert workspace.cache_info().currsize == 0


def test_a_run_goes_on_on_the_cpu_on_which_it_began(serial_run, flat_config, monkeypatch):
    """Although device=auto would now take a GPU. The clients only say whether they see one."""
    see, own = [False], client_app.Hello
    monkeypatch.setattr(client_app, "Hello", lambda **told: own(**told | {"cuda": see[0]}))
    folder, see[0] = serial_run('num-rounds=1 device="auto"'), True
    with pytest.raises(RunError, match="resume with -c device=cpu"):
        serial_run('num-rounds=2 device="auto"', f'resume="{folder}"')
    goes_on = flat_config('num-rounds=2 device="auto"', f'resume="{folder}"')
    assert workers._run(goes_on, plots=False, at_once=1000) == folder
    assert directory.has_finished(folder) and directory.row_count(folder / "rounds.csv") == 2


def test_nothing_begins_in_a_worker_that_is_ended(tmp_path):
    """A thread between two runs would start a process that nobody ends, and the exit waits for."""
    ended, known = threading.Event(), []

    def work(worker):
        known.append(worker)
        assert ended.wait(60)
        return worker.call(tmp_path / "log.txt", os.path.realpath, tmp_path)

    with crew(1) as submit:
        late = submit(work)
        until(lambda: known or late.done())
        assert not late.done()
    ended.set()
    with pytest.raises(RunError, match="stopped"):
        late.result(60)
    assert known[0].process is None


@WORKERS
def test_runs_share_the_cores_unless_that_changes_digits(monkeypatch, flat_config):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(6)))
    assert [idle_workers(flat_config(), runs) for runs in (1, 2, 4, 9)] == [6, 3, 1, 1]
    for option in ("presum=true", "group=5", 'group="auto"', "threads=2"):
        assert idle_workers(flat_config(option), 1) == 1
