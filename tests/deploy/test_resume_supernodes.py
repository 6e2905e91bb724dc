"""SuperNodes, ServerApp and SuperLink that are killed: the run goes on where it was."""

import random
import time
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from fedapps.core.errors import RunError
from fedapps.engine import checkpoint
from tests.deploy.helpers import outcome
from tests.support.killed import differences
from tests.test_supernodes import (  # noqa: F401 (fixtures)
    DEVICES,
    PATIENCE,
    RUN,
    deployment,
    devices,
    files,
    wait_for,
)

pytestmark = pytest.mark.deployment


def kill(deployment, name):  # noqa: F811
    """SIGKILL what a process of the deployment has started and whose command has this word."""
    process = psutil.Process(deployment.processes["superlink"].pid)
    found = [
        child
        for child in process.children(recursive=True)
        if any(name in word for word in child.cmdline())
    ]
    assert found, f"no {name} below the SuperLink"
    for child in found:
        child.kill()


def some_time_after_round_2(folder):
    """At any point of round 3 or 4: in training, in aggregation, while something is written."""
    wait_for(lambda: 2 in checkpoint.rounds(folder), "no second round")
    seconds = random.uniform(0, 3)
    print(f"killed {seconds:.3f} s later")
    time.sleep(seconds)


@pytest.mark.parametrize("strategy", ["perfreezeclip", "fedper", "feddyn"])
def test_a_server_app_that_is_killed(strategy, devices, deployment, tmp_path):  # noqa: F811
    """A device is killed and started again while nothing runs."""
    devices.start(*range(DEVICES))
    folder = tmp_path / "real"
    run = [RUN, f'strategy="{strategy}" num-rounds=5 runs-dir="{tmp_path}"']
    with ThreadPoolExecutor(1) as background:
        going = background.submit(deployment.run, *run, 'run-name="real"')
        some_time_after_round_2(folder)
        kill(deployment, "flwr-serverapp")
        assert not going.result().completed
    process = deployment.processes[devices.name(1)]
    process.kill()
    process.wait()
    devices.restart(1)
    result = deployment.run(f'resume="{folder}"')
    assert result.completed, result.error
    mine = devices.serial(range(DEVICES), *run, 'run-name="serial"')
    assert outcome(folder) == outcome(mine)
    assert differences(mine, folder) == []
    for client in range(DEVICES):
        states = sorted(devices.state(client).rglob("round-*.safetensors"))
        theirs = sorted((devices.serial_states / str(client)).rglob("round-*.safetensors"))
        assert [path.name for path in states] == [path.name for path in theirs]
        for path, other in zip(states, theirs, strict=True):
            assert path.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("strategy", ["fedper"])
def test_a_superlink_that_is_killed(strategy, devices, deployment, tmp_path):  # noqa: F811
    """And nothing else: the ServerApp and the devices find out by themselves.

    The new SuperLink has no database, so it knows nobody: the devices are registered again.
    """
    devices.start(*range(DEVICES))
    folder = tmp_path / "real"
    run = [RUN, f'strategy="{strategy}" num-rounds=5 runs-dir="{tmp_path}"']
    with ThreadPoolExecutor(1) as background:
        going = background.submit(deployment.run, *run, 'run-name="real"')
        some_time_after_round_2(folder)
        link = deployment.processes["superlink"]
        below = psutil.Process(link.pid).children(recursive=True)
        link.kill()
        link.wait()
        with pytest.raises(RunError, match="Connection to the SuperLink is unavailable"):
            going.result()
    assert psutil.wait_procs(below, PATIENCE)[1] == [], "what the SuperLink started goes on"
    devices.stop()
    deployment.start_superlink()
    devices.start(*range(DEVICES))
    result = deployment.run(f'resume="{folder}"')
    assert result.completed, result.error
    mine = devices.serial(range(DEVICES), *run, 'run-name="serial"')
    assert differences(mine, folder) == []
    assert outcome(folder) == outcome(mine)
