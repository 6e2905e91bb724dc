"""Real SuperLink, proxy and SuperNodes on this machine, with TLS and keys (deploy/deployment.py).

Everything here is compared with the serial engine on the same data and seeds, bit for bit.
"""

import csv
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from deploy.deployment import Deployment
from fedapps import client_app
from fedapps.core import config
from fedapps.serial import run_serial
from fedapps.wire.probes import LOST
from tests.deploy.helpers import outcome
from tests.support import ROOT
from tests.support.fits import fail_fits

pytestmark = pytest.mark.deployment

# The proxy keeps the body of every request of a device: all that ever leaves it.
RECORD = "client_body_in_file_only on; "
DEVICES = 3
RUN = (
    f'dataset="device" input-shape="1,8,8" num-classes=3 num-clients={DEVICES} '
    f'min-available={DEVICES} model="cnn" fraction-train=1.0 local-epochs=2 batch-size=8 lr=0.05 '
    'finetune-epochs=1 seed=0 threads=1 device="cpu" round-timeout=300.0'
)
POISON = ROOT / "tests" / "support" / "poison"
HALTING = ROOT / "tests" / "support" / "halting"
LEAN = ROOT / "tests" / "support" / "lean"  # a device with the packages of its lock
PATIENCE = 300.0  # seconds for what takes a few where nothing else runs
HELD = 64  # bytes of an array that are looked for in what left a device


@pytest.fixture(scope="module")
def files(tmp_path_factory, make_npz):
    """The data of each device, by client id; the last one has other classes."""
    folder = tmp_path_factory.mktemp("own")
    sizes = {client: 48 + 16 * client for client in range(8)}
    return [make_npz(folder / f"{c}.npz", train=n, seed=c) for c, n in sizes.items()]


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    """A SuperLink with its proxy; each test brings SuperNodes of its own."""
    with Deployment(tmp_path_factory.mktemp("deployment"), RECORD) as running:
        yield running


class Devices:
    """SuperNodes of one test with data of their own, and the same ones on the serial engine."""

    def __init__(self, deployment, files, tag, serial_states):
        self.deployment, self.tag, self.files = deployment, tag, files
        self.serial_states = serial_states

    def name(self, client):
        return f"{self.tag}-{client}"

    def node_config(self, client):
        return f'client-id={client} data="{self.files[client]}"'

    def start(self, *clients, **env):
        for client in clients:
            self.deployment.register(self.name(client))
            self.again(client, **env)

    def again(self, client, **env):
        return self.deployment.supernode(self.name(client), self.node_config(client), **env)

    def restart(self, client):
        """Start a killed SuperNode until it is let in, as systemd does: Flower waits for a minute
        whether the one that it knows will be heard of again."""
        joined = self.log(client).count("SuperNode ID")
        process, start = None, time.monotonic()
        while self.log(client).count("SuperNode ID") == joined:
            assert time.monotonic() < start + PATIENCE, f"client {client} is not let in again"
            if process is None or process.poll() is not None:
                time.sleep(5)
                process = self.again(client)
            time.sleep(0.1)

    def state(self, client):
        return self.deployment.folder / "devices" / self.name(client)

    def log(self, client):
        return self.deployment.log(self.name(client)).read_text()

    def serial(self, clients, *run_config):
        nodes = [
            {
                "client-id": client,
                "data": str(self.files[client]),
                "state-dir": str(self.serial_states / str(client)),
            }
            for client in clients
        ]
        return run_serial(config.parse([*run_config]), node_configs=nodes)

    def stop(self):
        mine = [name for name in self.deployment.processes if name.startswith(f"{self.tag}-")]
        for name in mine:
            self.deployment.stop(name)


@pytest.fixture
def devices(deployment, files, request, tmp_path):
    """Make SuperNodes; they leave when the test is over."""
    tag = "".join(c if c.isalnum() else "-" for c in request.node.name)
    made = Devices(deployment, files, tag, tmp_path / "states")
    yield made
    made.stop()


def events(folder: Path) -> dict[int, str]:
    """Failures of a run by client."""
    if not (folder / "events.csv").exists():
        return {}
    with (folder / "events.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "failure"]
    return {int(row["client"]): row["detail"] for row in rows}


def kinds_of(folder: Path, client: int) -> set[str]:
    """What kinds of events of a client there are in round 2."""
    with (folder / "events.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["round"] == "2"]
    return {row["kind"] for row in rows if row["client"] == str(client)}


def wait_for(condition, what):
    start = time.monotonic()
    while not condition():
        assert time.monotonic() < start + PATIENCE, what
        time.sleep(0.02)


def bodies(deployment, since):
    """All bytes that devices sent since a point in time."""
    folder = deployment.folder / "proxy" / "body"
    kept = [path for path in folder.rglob("*") if path.is_file()]
    return b"\0".join(path.read_bytes() for path in kept if path.stat().st_mtime >= since)


def held(path):
    """The first bytes of each array of a state file, long enough to be unique."""
    return {
        key: array.tobytes()[:HELD]
        for key, array in load_file(path).items()
        if array.nbytes >= HELD and not key.startswith("norms/")
    }


@pytest.mark.parametrize("strategy", ["perfreezeclip", "fedbabu"])
def test_supernodes_give_the_numbers_of_the_serial_engine(strategy, devices, deployment, tmp_path):
    """With `score-last` a device keeps its whole model: the body was sent, the head never."""
    start = time.time()
    devices.start(*range(DEVICES), PYTHONPATH=str(LEAN))
    run = [RUN, f'strategy="{strategy}" num-rounds=2 score-last=true runs-dir="{tmp_path}"']
    result = deployment.run(*run, 'run-name="real"')
    assert result.completed, result.error
    mine = devices.serial(range(DEVICES), *run, 'run-name="serial"')
    assert outcome(tmp_path / "real") == outcome(mine)

    sent = bodies(deployment, start)
    for client in range(DEVICES):
        files = sorted(devices.state(client).rglob("*.safetensors"))
        theirs = sorted((devices.serial_states / str(client)).rglob("*.safetensors"))
        assert [path.name for path in files] == [path.name for path in theirs]
        assert {"personalized.safetensors", "round-000002.safetensors"} <= {p.name for p in files}
        for path, other in zip(files, theirs, strict=True):
            kept, expected = held(path), held(other)
            assert kept == expected
            for key, value in kept.items():
                shared = key.startswith("last/") and "/fc2." not in key
                assert (value in sent) == shared, (client, path.name, key)


def test_a_killed_supernode_comes_back_with_its_state(devices, deployment, tmp_path, monkeypatch):
    """The power of device 2 is cut while it trains in round 2; it is back before round 3."""
    lost, rounds = 2, 4
    run = [RUN, f'strategy="perfreezeclip" num-rounds={rounds} evaluate-every=0 score-last=true']
    run.append(f'runs-dir="{tmp_path}" round-timeout=120.0')  # what the lost one may cost
    devices.start(*range(DEVICES))

    def cut():
        wait_for(lambda: "ROUND 2]" in devices.log(lost), "no round 2")
        deployment.kill(devices.name(lost))
        devices.restart(lost)

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(cut)
        result = deployment.run(*run, 'run-name="real"')
        done.result()
    assert result.completed, result.error
    failures = [row for row in outcome(tmp_path / "real")[0] if row["failures"] != "0"]
    assert [(row["round"], row["failures"]) for row in failures] == [("2", "1")]
    # Flower gives a SuperNode up after a minute, unless it has been back by then.
    cause = events(tmp_path / "real")[lost]
    assert "Node Unavailable" in cause or cause in ("no reply in time", LOST)

    fail_fits(monkeypatch, lambda *asked: asked == (2, lost))
    mine = devices.serial(range(DEVICES), *run, 'run-name="serial"')
    assert outcome(tmp_path / "real") == outcome(mine)
    for client in range(DEVICES):
        for name in ("round-000003.safetensors", f"round-00000{rounds}.safetensors"):
            (path,) = devices.state(client).rglob(name)
            (other,) = (devices.serial_states / str(client)).rglob(name)
            kept, expected = load_file(path), load_file(other)
            assert kept.keys() == expected.keys()
            assert all(np.array_equal(kept[key], expected[key]) for key in expected), (client, name)


@pytest.mark.parametrize("halt", ["train", "unmask"])
def test_a_secure_sum_does_without_a_killed_supernode(
    halt, devices, deployment, tmp_path, monkeypatch
):
    """The power of device 3 is cut in round 2, before its upload or after it."""
    lost, there = 3, tmp_path / "halted"
    run = [RUN, f'strategy="fedper" num-rounds=2 evaluate-every=0 runs-dir="{tmp_path}"']
    run.append("secure-sum=true num-clients=4 min-available=4 round-timeout=120.0")
    devices.start(0, 1, 2)
    devices.start(lost, PYTHONPATH=str(HALTING), HALT=f"{halt} 2 {there}")

    def cut():
        wait_for(there.exists, "it has not halted")
        deployment.kill(devices.name(lost))

    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(cut)
        result = deployment.run(*run, 'run-name="real"')
        done.result()
    assert result.completed, result.error

    step = client_app.step_answer

    def fail_step(store, asked, client, given):
        if (halt, asked.step, asked.round, client) == ("unmask", "unmask", 2, lost):
            raise RuntimeError("no power")
        return step(store, asked, client, given)

    monkeypatch.setattr(client_app, "step_answer", fail_step)
    fail_fits(monkeypatch, lambda *asked: (halt, *asked) == ("train", 2, lost))
    mine = devices.serial(range(4), *run, 'run-name="serial"')
    kinds = {folder: kinds_of(folder, lost) for folder in (tmp_path / "real", mine)}
    assert kinds[mine] == {"train": {"failure"}, "unmask": {"unanswered"}}[halt]
    assert kinds[tmp_path / "real"] >= kinds[mine]  # it is also missing in the evaluation
    one, other = (load_file(folder / "model.safetensors") for folder in kinds)
    assert one.keys() == other.keys() and all((one[key] == other[key]).all() for key in one)
    kept = {c for c in range(4) if [*devices.state(c).rglob("secure-sum.bin")]}
    assert kept <= {lost}, "secrets of a round that is over"


def test_a_dishonest_device_costs_itself_only(devices, deployment, tmp_path, monkeypatch):
    """Two honest devices and four: NaN, twice the bytes, 1e30, and 10 GB said in a header."""
    poison = {2: "nan", 3: "shape", 4: "huge", 5: "10 GB"}
    run = [RUN, f'strategy="fedper" num-rounds=2 evaluate-every=0 runs-dir="{tmp_path}"']
    run.append("num-clients=6 min-available=6")
    devices.start(0, 1)
    for client, kind in poison.items():
        devices.start(client, PYTHONPATH=str(POISON), POISON=kind)
    result = deployment.run(*run, 'run-name="real"')
    assert result.completed, result.error
    causes = events(tmp_path / "real")
    assert causes.keys() == poison.keys()
    assert "not finite" in causes[2] and "bytes for" in causes[3]
    assert "as float32(50000, 50000): expected float32" in causes[5]
    assert "1e+30" in causes[4] and "max-value" in causes[4]

    fit = client_app._fit

    def fail(space, request, store):
        update = yield from fit(space, request, store)
        if request.client in poison:  # it has trained and kept its layers
            raise RuntimeError("not heard")
        return update

    monkeypatch.setattr(client_app, "_fit", fail)
    mine = devices.serial(range(6), *run, 'run-name="serial"')
    assert outcome(tmp_path / "real") == outcome(mine)


def test_strangers_and_misfits_stay_outside(devices, deployment, tmp_path, make_npz):
    """A SuperNode without a registered key, and one with a class that the run does not have."""
    other = tmp_path / "other.npz"
    make_npz(other, train=60, classes=4)
    devices.files = {0: devices.files[0], 1: devices.files[1], 2: other, 3: devices.files[3]}
    devices.start(0, 1, 2)
    stranger = devices.name(3)
    deployment.script("device-key.sh", deployment.folder / "keys", stranger)
    process = deployment.supernode(stranger, devices.node_config(3))
    assert process.wait(PATIENCE) != 0, "a SuperNode without a registered key was let in"
    assert "Failed to activate SuperNode" in devices.log(3)
    run = [RUN, f'strategy="fedbabu" num-rounds=1 runs-dir="{tmp_path}" num-clients=4']
    run.append('min-available=2 input-shape="1,8,8"')
    result = deployment.run(*run, 'run-name="real"')
    assert result.completed, result.error
    (line,) = {line for line in result.lines if "left out" in line}
    assert "client 2" in line and "it has other labels; the run has 0..2 (num-classes)" in line
    wait_for(lambda: "label 3 found" in devices.log(2), "nothing said on the device")
    rows = outcome(tmp_path / "real")[0]
    assert [(row["clients"], row["failures"]) for row in rows] == [("2", "0")]


def test_a_supernode_refuses_an_expired_certificate(devices, deployment, tmp_path):
    folder = tmp_path / "certificates"
    shutil.copytree(deployment.certificates, folder)
    deployment.script("certificates.sh", "--days", "-1", folder, "127.0.0.1")
    port = deployment.start_proxy(devices.name("expired"), folder)
    deployment.register(devices.name(0))
    process = deployment.supernode(devices.name(0), devices.node_config(0), port=port)
    assert process.wait(PATIENCE) != 0
    assert "certificate has expired" in devices.log(0)
    assert "SuperNode ID" not in devices.log(0)
