"""SuperNodes, ServerApp and SuperLink that are killed: the run goes on where it was."""

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace

import psutil
import pytest

from fedapps import launch
from fedapps.core.errors import RunError
from fedapps.engine import checkpoint
from tests.deploy.devices import PAIR, RUN, TWO, wait_for
from tests.deploy.helpers import PATIENCE, outcome
from tests.support.killed import differences
from tests.support.marks import THOROUGH

pytestmark = pytest.mark.deployment


def below(deployment, name):
    """What the SuperLink of a deployment has started and whose command has this word."""
    process = psutil.Process(deployment.processes["superlink"].pid)
    found = [
        child
        for child in process.children(recursive=True)
        if any(name in word for word in child.cmdline())
    ]
    assert found, f"no {name} below the SuperLink"
    return found


def kill(deployment, name):
    """SIGKILL these processes."""
    for child in below(deployment, name):
        child.kill()


@contextmanager
def going(strategy, devices, deployment, runs):
    """A run of two devices, at any point of its round 3 or 4: in training, aggregation, writing.

    Gives its settings, its directory, and `ended`, which waits for it. What comes after it is
    compared by `is_as_if_nothing_had_happened`.
    """
    devices.start(*PAIR)
    run = [RUN, TWO, f'strategy="{strategy}" num-rounds=5 runs-dir="{runs}"']
    with ThreadPoolExecutor(1) as background:
        ended = background.submit(deployment.run, *run, 'run-name="real"').result
        wait_for(lambda: 2 in checkpoint.rounds(runs / "real"), "no second round")
        seconds = random.uniform(0, 3)
        print(f"killed {seconds:.3f} s later")
        time.sleep(seconds)
        yield SimpleNamespace(settings=run, folder=runs / "real", ended=ended)


def is_as_if_nothing_had_happened(run, devices, deployment):
    """Resume it; its files are those of one that went through on the serial engine."""
    result = deployment.run(f'resume="{run.folder}"')
    assert result.completed, result.error
    mine = devices.serial(PAIR, *run.settings, 'run-name="serial"')
    assert outcome(run.folder) == outcome(mine)
    assert differences(mine, run.folder) == []
    return True


@pytest.mark.parametrize("strategy", ["perfreezeclip", THOROUGH("fedper"), THOROUGH("feddyn")])
def test_a_server_app_that_is_killed(strategy, devices, deployment, tmp_path):
    """A device is killed, too, while Flower takes its minute to find that out of either.

    Its states are the same as well.
    """
    with going(strategy, devices, deployment, tmp_path) as run:
        kill(deployment, "flwr-serverapp")
        process = deployment.processes[devices.name(1)]
        process.kill()
        process.wait()
        devices.restart(1)
        assert not run.ended().completed
    assert is_as_if_nothing_had_happened(run, devices, deployment)
    for client in PAIR:
        states = sorted(devices.state(client).rglob("round-*.safetensors"))
        theirs = sorted((devices.serial_states / str(client)).rglob("round-*.safetensors"))
        assert [path.name for path in states] == [path.name for path in theirs]
        for path, other in zip(states, theirs, strict=True):
            assert path.read_bytes() == other.read_bytes()


def test_a_superlink_that_is_killed(devices, deployment, tmp_path, monkeypatch):
    """And nothing else: the ServerApp and the devices find out by themselves.

    The new SuperLink has no database, so it knows nobody: the devices are registered again.
    """
    monkeypatch.setattr(launch, "PATIENCE", 20.0)  # it asks for the run's status for so long
    with going("fedper", devices, deployment, tmp_path) as run:
        link = deployment.processes["superlink"]
        started = psutil.Process(link.pid).children(recursive=True)
        link.kill()
        link.wait()
        with pytest.raises(RunError, match="Connection to the SuperLink is unavailable"):
            run.ended()
    assert psutil.wait_procs(started, PATIENCE)[1] == [], "what the SuperLink started goes on"
    devices.stop()
    deployment.start_superlink()
    devices.start(*PAIR)
    assert is_as_if_nothing_had_happened(run, devices, deployment)
