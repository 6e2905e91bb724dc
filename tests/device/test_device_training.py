"""Training on devices gives the numbers of one data set that is partitioned the same way."""

import json
from pathlib import Path

import pytest
import torch

from fedapps import serial
from fedapps.core import registry
from fedapps.core.errors import RunError
from fedapps.device import personalized
from tests.device.helpers import DEVICES, RUN
from tests.support.methods import each_method, needed

CENTRAL = [name for name in registry.names() if registry.strategy_class(name).needs_union]


@pytest.mark.parametrize("strategy", ["fedper", "fedfomo", "fedseq"])
def test_devices_are_as_one_partitioned_data_set(
    strategy, device_run, serial_run, union, untimed_rounds
):
    method = f'strategy="{strategy}" fraction-train=0.67'
    if strategy == "fedfomo":  # it holds out a validation part
        method += " num-rounds=3"
    mine, theirs = device_run(method), serial_run(union.options, method)
    assert untimed_rounds(mine) == untimed_rounds(theirs)
    for name in ("model.safetensors", "clients.csv", "classes.csv"):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes(), name
    assert not (mine / "clients").exists(), "what is personal stays on the device"


@pytest.mark.parametrize("strategy", each_method(leave_out=CENTRAL))
def test_every_method_runs_on_devices(strategy, device_run, read_csv, nodes, monkeypatch):
    save = personalized.save

    def check(path, client):
        images = client.test_data[0]
        with torch.no_grad():
            assert torch.equal(client.module().eval()(images), client.predict(images))
        save(path, client)

    monkeypatch.setattr(personalized, "save", check)
    folder = device_run(f'strategy="{strategy}" local-epochs=2 evaluate-every=0 {needed(strategy)}')
    trained = [row for row in read_csv(folder, "rounds.csv") if row["phase"] != "finetune"]
    assert [(row["clients"], row["failures"]) for row in trained] == [(str(DEVICES), "0")] * 2
    for node in nodes:
        path = Path(node["state-dir"])
        assert personalized.load(path).about.client == node["client-id"]


def test_a_split_method_gives_the_same_numbers_on_devices(
    device_run, serial_run, union, untimed_rounds
):
    mine = device_run('strategy="fedfc" fedfc.cuts="1,2,1"')
    theirs = serial_run(union.options, 'strategy="fedfc" fedfc.cuts="1,2,1"')
    assert untimed_rounds(mine) == untimed_rounds(theirs)


def test_cuts_by_speed_are_asked_of_each_device(device_run, read_csv):
    folder = device_run('strategy="fedfc" fedfc.cuts="auto" num-rounds=1')
    cuts = [row["client"] for row in read_csv(folder, "events.csv") if row["kind"] == "cut"]
    assert cuts == [str(client) for client in range(DEVICES)]


@pytest.mark.parametrize("option", ['strategy="centralized"', "server-data=0.1"])
def test_what_needs_the_union_of_the_data_is_refused(device_run, option):
    with pytest.raises(RunError, match=r'not with dataset = "device"$'):
        device_run(option)


def test_the_serial_engine_takes_node_configs(nodes, tmp_path, data_root, no_plots, capsys):
    arguments = ["--run-config", RUN, "--run-config", 'strategy="fedper" num-rounds=1 threads=1']
    arguments += ["--run-config", f'runs-dir="{tmp_path}/runs" data-root="{data_root}"']
    for node in nodes:
        text = " ".join(f"{key}={json.dumps(value)}" for key, value in node.items())
        arguments += ["--node-config", text]
    assert serial.main(arguments) == 0
    folder = Path(capsys.readouterr().out.splitlines()[-1])
    assert (folder / "rounds.csv").is_file()
    assert serial.main([*arguments, "--num-supernodes", "7"]) == 1
    said = "error: --num-supernodes 7: --node-config adds each; leave it out\n"
    assert capsys.readouterr().err == said
    assert serial.main([*arguments, "--run-config", "dataset=digits"]) == 1
    said = 'error: --node-config adds a device: it needs dataset = "device"\n'
    assert capsys.readouterr().err == said
    assert serial.main(["--node-config", "client-id = 3"]) == 1
    assert capsys.readouterr().err.startswith("error: --node-config client-id = 3: cannot read")
    assert serial.main(["--node-config", 'client=3 dta="x.npz"']) == 1
    said = "error: node-config: unknown key client, did you mean client-id?\n"
    assert capsys.readouterr().err == said
    assert serial.main(["--node-config", "workers=1"]) == 1
    said = (
        "error: --node-config workers: has none of client-id, data, state-dir; give --node-config"
    )
    assert capsys.readouterr().err.startswith(said)
