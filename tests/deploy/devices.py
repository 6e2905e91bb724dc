"""SuperNodes of a test with data of their own, and what they send, keep and cause."""

import csv
import re
import time
from functools import partial
from pathlib import Path

from safetensors.numpy import load_file

from fedapps.core import config
from fedapps.serial import run_serial
from tests.deploy.helpers import PATIENCE
from tests.support.clock import until

# The proxy keeps the body of every request of a device: all that ever leaves it.
RECORD = "client_body_in_file_only on; "
DEVICES = 3
PAIR = (0, 1)  # where a third device would show nothing more; each one has to load PyTorch
TWO = "num-clients=2 min-available=2"  # after RUN
RUN = (
    f'dataset="device" input-shape="1,8,8" num-classes=3 num-clients={DEVICES} '
    f'min-available={DEVICES} model="cnn" fraction-train=1.0 local-epochs=2 batch-size=8 lr=0.05 '
    'finetune-epochs=1 seed=0 threads=1 device="cpu" round-timeout=300.0'
)
HELD = 64  # bytes of an array that are looked for in what left a device


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
        self.deployment.register(*map(self.name, clients))
        for client in clients:
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
                time.sleep(15)
                process = self.again(client)
            time.sleep(0.1)

    def state(self, client):
        return self.deployment.folder / "devices" / self.name(client)

    def log(self, client):
        return self.deployment.log(self.name(client)).read_text()

    def node_id(self, client):
        return re.search(r"SuperNode ID: (\d+)", self.log(client))[1]

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


def events(folder: Path) -> dict[int, str]:
    """Failures of a run by client."""
    if not (folder / "events.csv").exists():
        return {}
    with (folder / "events.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "failure"]
    return {int(row["client"]): row["detail"] for row in rows}


wait_for = partial(until, seconds=PATIENCE)


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


def is_shared(key):
    """Whether an array of a state file is a layer that a device sends: all but the head."""
    return key.startswith("last/") and "/fc2." not in key
