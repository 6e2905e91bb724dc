"""Delay, cut connections, a SuperLink that is away, devices that sleep: the run goes on."""

import csv
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import psutil
import pytest

from fedapps.wire.probes import LOST
from tests.deploy.devices import DEVICES, PAIR, RUN, TWO, events, wait_for
from tests.deploy.helpers import outcome
from tests.deploy.test_resume_supernodes import below, going, is_as_if_nothing_had_happened
from tests.support import ROOT
from tests.support.fits import fail_fits
from tests.support.relay import Relay

pytestmark = pytest.mark.deployment

LOSING = f"{ROOT / 'tests' / 'support' / 'losing'}{os.pathsep}{ROOT}"
DELAY = 0.5  # seconds; a run that waits for something else takes less of the processor
GONE = 75.0  # seconds; Flower takes for gone whom it has not heard from for 60


def rows(folder):
    """The rows of rounds.csv so far, whole ones only."""
    if not (folder / "rounds.csv").exists():
        return []
    lines = (folder / "rounds.csv").read_text().splitlines(keepends=True)
    return [*csv.DictReader(line for line in lines if line.endswith("\n"))]


@contextmanager
def asleep(*processes):
    """Suspend processes and all below them, as a laptop does whose lid is closed."""
    found = [psutil.Process(process.pid) for process in processes]
    found += [child for one in found for child in one.children(recursive=True)]
    for process in found:
        process.suspend()
    yield
    for process in found:
        process.resume()


def works(process):
    """Whether it has not ended; its parent need not have noticed yet."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_delay_and_cut_connections_change_no_number(devices, deployment, tmp_path):
    run = [RUN, TWO, f'strategy="fedper" num-rounds=3 runs-dir="{tmp_path}"']
    with Relay(deployment.proxy_port, delay=0.2, cuts=0.02) as relay:
        devices.start(*PAIR, port=relay.port)
        result = deployment.run(*run, 'run-name="real"')
        assert result.completed, result.error
        devices.stop()
    print(f"{relay.cut} connections were cut")
    assert relay.cut > 0
    mine = devices.serial(PAIR, *run, 'run-name="serial"')
    assert outcome(tmp_path / "real") == outcome(mine)
    assert events(tmp_path / "real") == {}


def test_lost_answers(devices, deployment, tmp_path, monkeypatch):
    """One is to an upload, which is tried again; with the other a device loses its message."""
    again, lost = PAIR
    run = [RUN, TWO, f'strategy="fedper" num-rounds=3 evaluate-every=0 runs-dir="{tmp_path}"']
    devices.start(again, PYTHONPATH=LOSING, LOSE="PushObject 1")
    devices.start(lost, PYTHONPATH=LOSING, LOSE="PullMessages 2")
    result = deployment.run(*run, 'run-name="real"')
    assert result.completed, result.error
    assert all("retrying in" in devices.log(client) for client in PAIR)
    assert events(tmp_path / "real") == {lost: LOST}

    fail_fits(monkeypatch, lambda *asked: asked == (2, lost))
    mine = devices.serial(PAIR, *run, 'run-name="serial"')
    assert outcome(tmp_path / "real") == outcome(mine)


def test_a_superlink_that_nobody_reaches(devices, deployment, tmp_path):
    """Nothing comes through in the middle of the run, for longer than Flower waits for devices."""
    run = [RUN, TWO, f'strategy="fedper" num-rounds=6 runs-dir="{tmp_path}" run-name="real"']
    with Relay(deployment.proxy_port) as relay, ThreadPoolExecutor(1) as background:
        devices.start(*PAIR, port=relay.port)
        processes = [deployment.processes[devices.name(client)] for client in PAIR]
        ended = background.submit(deployment.run, *run).result
        wait_for(lambda: len(rows(tmp_path / "real")) >= 2, "no second round")
        relay.die()
        time.sleep(GONE)
        assert all(process.poll() is None for process in processes)
        relay.revive()
        result = ended()
        assert result.completed, result.error
        assert all(process.poll() is None for process in processes)
        devices.stop()
    found = rows(tmp_path / "real")
    assert [row["round"] for row in found] == [str(number) for number in range(1, 7)]
    assert sum(row["failures"] != "0" for row in found) <= 1
    assert [(row["clients"], row["failures"]) for row in found[-2:]] == 2 * [("2", "0")]


def test_a_superlink_that_is_suspended(devices, deployment, tmp_path):
    """Flower then takes the run for dead; devices go on by themselves, and the run by a resume."""
    with going("fedper", devices, deployment, tmp_path) as run:
        processes = [deployment.processes[devices.name(client)] for client in PAIR]
        server_app = below(deployment, "flwr-serverapp")
        with asleep(*(deployment.processes[name] for name in ("superlink", "proxy"))):
            time.sleep(GONE)
        assert not run.ended().completed
    wait_for(lambda: not any(map(works, server_app)), "the ServerApp goes on")
    assert is_as_if_nothing_had_happened(run, devices, deployment)
    assert all(process.poll() is None for process in processes)


def test_devices_that_sleep(devices, deployment, tmp_path):
    """One is suspended; of the other the network is gone, too, and its connections after it."""
    folder = tmp_path / "real"
    run = [RUN, f'strategy="fedper" num-rounds=10000 runs-dir="{tmp_path}" min-available=1']
    everyone = (str(DEVICES), "0")

    def full(row):
        return (row["clients"], row["failures"]) == everyone

    way, cut = Relay(deployment.proxy_port, DELAY), Relay(deployment.proxy_port, DELAY)
    with way, cut, ThreadPoolExecutor(1) as background:
        devices.start(0, 1, port=way.port)
        devices.start(2, port=cut.port)
        two = [deployment.processes[devices.name(client)] for client in (1, 2)]
        ended = background.submit(deployment.run, *run, 'run-name="real"').result
        wait_for(lambda: any(map(full, rows(folder))), "no round of all")
        with asleep(*two):
            cut.die()
            wait_for(lambda: rows(folder) and rows(folder)[-1]["clients"] == "1", "they are there")
        cut.revive()
        alone = len(rows(folder))
        wait_for(lambda: any(map(full, rows(folder)[alone:])), "they did not come back")
        deployment.stop_run()
        ended()
        devices.stop()
    failed = [row for row in rows(folder)[:alone] if row["failures"] != "0"]
    assert len(failed) == 1, "they cost more than the round in which they fell asleep"
