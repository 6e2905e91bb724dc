"""`fedapps nightly` on real SuperNodes: nights with new data, an altered model, and a roll back.

Each night is compared with the serial engine, which does the same on the same data, bit for bit.
"""

import csv
import shutil

import pytest

from deploy.deployment import NAME, QUICK, Deployment
from fedapps import cli
from fedapps.core import signing
from fedapps.core.signing import Manifest
from fedapps.engine import ledger
from tests.deploy.helpers import outcome
from tests.device.helpers import initial_copy
from tests.support import ROOT

pytestmark = pytest.mark.deployment

DEVICES = 2
RUN = (
    f'dataset="device" input-shape="1,8,8" num-classes=3 num-clients={DEVICES} '
    f'min-available={DEVICES} strategy="fedper" model="cnn" num-rounds=2 fraction-train=1.0 '
    'local-epochs=1 batch-size=8 lr=0.05 seed=0 threads=1 device="cpu" round-timeout=300.0 '
    'dp.mode="local" dp.clip-norm=0.1'
)


@pytest.fixture
def deployment(tmp_path, monkeypatch):
    for name, value in QUICK.items():
        monkeypatch.setenv(name, value)  # for `flwr`, which the command starts
    with Deployment(tmp_path / "deployment") as running:
        yield running


def told(device):
    """A node-config as an option."""
    return " ".join(f"{k}={v}" if k == "client-id" else f'{k}="{v}"' for k, v in device.items())


def left_out(folder):
    with (folder / "events.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["kind"] == "left-out"]
    return {row["client"]: row["detail"] for row in rows}


def test_nights(deployment, tmp_path, make_npz, capsys):
    key, public = tmp_path / "model.key", tmp_path / "model.pub"
    assert cli.main(["nightly", "--make-key", str(key)]) == 0
    real, twin = tmp_path / "real", tmp_path / "twin"
    devices = [
        {"client-id": c, "data": str(tmp_path / f"{c}.npz"), "model-key": str(public)}
        for c in range(DEVICES)
    ]
    states = [tmp_path / f"state-{client}" for client in range(DEVICES)]
    sizes = {client: 48 + 16 * client for client in range(DEVICES)}

    def write(seed):
        for client, size in sizes.items():
            made = make_npz(tmp_path / "new.npz", train=size, seed=10 * seed + client)
            made.rename(tmp_path / f"{client}.npz")

    def night(folder, *words):
        return cli.main(["nightly", str(ROOT), "--folder", str(folder), *map(str, words)])

    def both(number):
        """Make a night on the SuperNodes and its twin; return the run directory."""
        run = "-c", RUN, "--key", key
        link = "--connection", NAME, "--home", deployment.home
        assert night(real, *run, *link) == 0, capsys.readouterr()
        nodes = [told(d | {"state-dir": s}) for d, s in zip(devices, states, strict=True)]
        more = [word for node in nodes for word in ("--node-config", node)]
        assert night(twin, *run, *more) == 0, capsys.readouterr()
        found, expected = (folder / f"run-{number:04}" for folder in (real, twin))
        assert outcome(found) == outcome(expected)
        signing.check(signing.read(found / "model.safetensors"), public, "it")
        return found

    write(1)
    deployment.register(*(f"ward-{client}" for client in range(DEVICES)))
    for client, device in enumerate(devices):
        deployment.supernode(f"ward-{client}", told(device))
    first = both(1)
    sizes[1] += 40  # the server, too, has to hear of it
    write(2)
    second = both(2)
    for client in range(DEVICES):
        state = deployment.folder / "devices" / f"ward-{client}"
        kept = initial_copy(state).read_bytes()
        assert kept == (first / "model.safetensors").read_bytes()
        # Noise from the seed, with which the twin gets the same numbers, counts as none.
        assert (state / "privacy.json").read_text() == '{"updates":{"0.0":4}}'

    # Somebody who has no key changes the last model, and its manifest as well.
    altered = tmp_path / "altered" / "model.safetensors"
    shutil.copytree(second, altered.parent)
    altered.write_bytes((first / "model.safetensors").read_bytes())
    signature = altered.with_suffix(".manifest.sig").read_bytes()
    signing.write_manifest(altered, Manifest(sha256=signing.digest(altered.read_bytes())))
    altered.with_suffix(".manifest.sig").write_bytes(signature)
    more = f'runs-dir="{tmp_path}" run-name="refused" initial-model="{altered}" round-timeout=60.0'
    result = deployment.run(RUN, more)
    assert not result.completed and "its manifest was altered" in result.error
    refused = left_out(tmp_path / "refused")
    assert refused.keys() == {str(client) for client in range(DEVICES)}
    for client, detail in refused.items():
        line = f"initial-model: its manifest was altered, or not signed with the key of {public}"
        assert line in detail
        assert f"left out: {line}" in deployment.log(f"ward-{client}").read_text()

    for folder in (real, twin):
        assert night(folder, "--roll-back", "run-0001") == 0
    write(3)
    third = both(3)
    kept = initial_copy(deployment.folder / "devices" / "ward-0")
    assert kept.read_bytes() == (first / "model.safetensors").read_bytes()
    assert len({outcome(folder)[2] for folder in (first, second, third)}) == 3
    runs = ledger.read(real).runs
    assert [n.parent for n in runs] == ["", runs[0].run, runs[0].run]
    assert ledger.epsilon(runs, 1e-5) == pytest.approx(runs[0].mechanism.epsilon(6, 1e-5))
