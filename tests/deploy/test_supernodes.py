"""Real SuperLink, proxy and SuperNodes on this machine, with TLS and keys (deploy/deployment.py).

Everything here is compared with the serial engine on the same data and seeds, bit for bit.
"""

import re
import shutil
import time

import pytest

from deploy.deployment import NAME
from fedapps import client_app
from fedapps.device.refused import UNKNOWN
from tests.deploy.devices import DEVICES, RUN, bodies, events, held, is_shared, wait_for
from tests.deploy.helpers import PATIENCE, outcome
from tests.support import ROOT

pytestmark = pytest.mark.deployment

POISON = ROOT / "tests" / "support" / "poison"
LEAN = ROOT / "tests" / "support" / "lean"  # a device with the packages of its lock


def test_supernodes_give_the_numbers_of_the_serial_engine(devices, deployment, tmp_path):
    """With `score-last` a device keeps its whole model: the body was sent, the head never."""
    start = time.time()
    devices.start(*range(DEVICES), PYTHONPATH=str(LEAN))
    run = [RUN, f'strategy="fedbabu" num-rounds=2 score-last=true runs-dir="{tmp_path}"']
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
                assert (value in sent) == is_shared(key), (client, path.name, key)


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
    assert "not finite" in causes[2] and "is called float32" in causes[3]
    assert "does not begin with NumPy's header of float32" in causes[5]
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


def test_a_device_that_is_removed_says_so_and_ends_with_an_error(devices, deployment):
    """As its unit starts it again every 30 s, and each time it says why it ends."""
    devices.start(0)
    deployment.joined(devices.name(0))
    (node,) = re.findall(r"SuperNode ID: (\d+)", devices.log(0))
    deployment.flwr("supernode", "unregister", node, NAME)
    assert deployment.processes[devices.name(0)].wait(PATIENCE) == 1
    assert UNKNOWN in devices.log(0)


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
