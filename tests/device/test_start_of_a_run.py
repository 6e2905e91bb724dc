"""What a device takes anew at the start of each run: its data, and the initial model."""

import os
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Message
from safetensors.numpy import load_file, save_file

from fedapps.core import config, signing
from fedapps.core.errors import RunError
from fedapps.device.device import Device, device_workspace
from fedapps.training.workspace import workspace
from fedapps.wire.hello import pack_greeting, read_greeting
from tests.device.helpers import RUN as OWN
from tests.device.helpers import initial_copy, left_out

RUN = 'strategy="fedavg" model="lenet5" num-rounds=1 local-epochs=1'


def train_losses(read_csv, folder):
    return [row["train_loss"] for row in read_csv(folder, "rounds.csv")]


def sizes(read_csv, folder):
    return {row["client"]: int(row["num_train"]) for row in read_csv(folder, "clients.csv")}


def test_data_are_opened_anew_at_the_start_of_each_run(device_run, nodes, make_npz, read_csv):
    """Also by a process that goes on, whose settings are the same."""
    make_npz(Path(nodes[1]["data"]).with_name("changing.npz"), train=48, seed=1)
    nodes[1]["data"] = str(Path(nodes[1]["data"]).with_name("changing.npz"))
    first = device_run(RUN)
    again = device_run(RUN)
    make_npz(Path(nodes[1]["data"]), train=80, seed=2)
    second = device_run(RUN)
    before, same, after = (sizes(read_csv, folder) for folder in (first, again, second))
    assert before == same and (before["1"], after["1"]) == (48, 80)
    assert {c: n for c, n in before.items() if c != "1"} == {
        c: n for c, n in after.items() if c != "1"
    }
    assert train_losses(read_csv, first) == train_losses(read_csv, again)
    assert train_losses(read_csv, first) != train_losses(read_csv, second)


@pytest.fixture
def night(device_run, tmp_path):
    """The model of a run, its key, and where the next run finds it."""
    folder = device_run(RUN)
    path = tmp_path / "given" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes((folder / "model.safetensors").read_bytes())
    signing.make_key(tmp_path / "model.key")
    return path


def test_a_device_with_a_key_takes_only_signed_models(
    device_run, nodes, night, tmp_path, read_csv, capsys
):
    for node in nodes[:2]:
        node["model-key"] = str(tmp_path / "model.pub")
    run = RUN, f'initial-model="{night}"'
    folder = device_run(*run)
    refused = left_out(read_csv, folder)
    assert refused.keys() == {"0", "1"}
    assert all("initial-model: it is not signed" in detail for detail in refused.values())
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("left out: initial-model: it is not") for line in lines)
    assert not initial_copy(nodes[0]["state-dir"])

    signing.sign(night, tmp_path / "model.key")
    assert left_out(read_csv, device_run(*run)) == {}

    signing.make_key(tmp_path / "other.key")
    nodes[1]["model-key"] = str(tmp_path / "other.pub")
    (detail,) = left_out(read_csv, device_run(*run)).values()
    assert f"not signed with the key of {tmp_path / 'other.pub'}" in detail

    arrays = load_file(night)
    save_file({key: value * np.float32(1.01) for key, value in arrays.items()}, night)
    with pytest.raises(RunError, match=f'^initial-model = "{night}": it was altered; its SHA-256'):
        device_run(*run)  # the server itself sees this
    workspace.cache_clear()  # as in a new process
    forged = signing.Manifest(sha256=signing.digest(night.read_bytes()))
    signature = night.with_suffix(".manifest.sig").read_bytes()
    signing.write_manifest(night, forged)
    night.with_suffix(".manifest.sig").write_bytes(signature)
    refused = left_out(read_csv, device_run(*run))
    assert refused.keys() == {"0", "1"}  # but device 2 has no key, and takes what it gets
    assert all("its manifest was altered, or not signed" in line for line in refused.values())


def test_runs_with_other_initial_models_can_take_turns_on_a_device(flat_config, nodes, night):
    """The copy of a run is there as long as no two others have come since; it can come again."""
    device, keys, given = Device.of(nodes[0]), {}, load_file(night)
    for scale, name in enumerate("abc", 1):
        path = night.with_name(f"{name}.safetensors")
        save_file({key: value * np.float32(scale) for key, value in given.items()}, path)
        keys[name] = config.read(flat_config(OWN, RUN, f'initial-model="{path}"'))

    def sent(name):
        return signing.read(Path(keys[name].initial_model))

    def scale(name):
        found = device_workspace(keys[name], device).initial
        return {float(np.median(found[key] / given[key]).round()) for key in found}

    for name in "ab":
        assert not device.hello(keys[name], sent(name)).problem
    assert [scale(name) for name in "abba"] == [{1.0}, {2.0}, {2.0}, {1.0}]
    assert not device.hello(keys["a"]).problem
    assert not device.hello(keys["c"], sent("c")).problem
    assert "does not have the one of this run any more" in device.hello(keys["a"]).problem
    assert not device.hello(keys["a"], sent("a")).problem
    assert [scale(name) for name in "ac"] == [{1.0}, {3.0}]
    assert len([*device.state_dir.glob("initial-model*")]) == 2
    for path in device.state_dir.glob("initial-model*"):
        os.utime(path, (2**33, 2**33))  # the clock has gone back since
    assert not device.hello(keys["b"], sent("b")).problem
    assert scale("b") == {2.0}
    assert len([*device.state_dir.glob("initial-model*")]) == 2


def test_a_device_takes_no_copy_that_another_key_has_signed(flat_config, nodes, night, tmp_path):
    """Nor one that came when it had no key: the server is asked for the model again."""
    settings = config.read(flat_config(OWN, RUN, f'initial-model="{night}"'))
    mine, other = tmp_path / "mine.key", tmp_path / "other.key"
    for key in (mine, other):
        signing.make_key(key)

    def problem(key, model=None):
        return Device.of(nodes[0] | key).hello(settings, model).problem

    gone = "initial-model: this device does not have the one of this run any more"
    has_key = {"model-key": str(tmp_path / "mine.pub")}
    assert not problem({}, signing.read(night)) and not problem({})
    assert problem(has_key) == gone
    assert "it is not signed" in problem(has_key, signing.read(night))
    signing.sign(night, mine)
    assert not problem(has_key, signing.read(night)) and not problem(has_key)
    (tmp_path / "mine.pub").write_bytes((tmp_path / "other.pub").read_bytes())
    assert problem(has_key) == gone
    with pytest.raises(RunError, match=f"^{gone}$"):  # in a run that goes on since
        device_workspace(settings, Device.of(nodes[0] | has_key))
    assert "not signed with the key of" in problem(has_key, signing.read(night))


def test_a_key_that_cannot_be_used_is_said_by_the_device(device_run, nodes, read_csv):
    """Even if no model has come yet that it would have to check."""
    nodes[0]["model-key"] = "model.pub"
    nodes[1]["model-key"] = "/gone/model.pub"
    found = left_out(read_csv, device_run(RUN))
    assert "must be absolute" in found["server"]  # it does not even say which client it is
    assert "/gone/model.pub: cannot be read as a public key (No such file" in found["1"]


def greeting(change):
    message = pack_greeting(5, signing.SignedModel(b"weights", b"{}", b"s" * 64))
    change(message.content)
    return message


def test_a_greeting_brings_the_model_as_it_is():
    assert read_greeting(pack_greeting(5)) is None
    model = signing.SignedModel(b"weights", b"{}", b"s" * 64)
    assert read_greeting(pack_greeting(5, model)) == model
    assert isinstance(pack_greeting(5, model), Message)


@pytest.mark.parametrize("change", [
    lambda content: content["config"].update(signature=b"s" * 65),
    lambda content: content["config"].update(manifest=b"m" * (2**20 + 1)),
    lambda content: content["config"].update(manifest=7),
    lambda content: content["initial-model"].clear(),
    lambda content: setattr(content["initial-model"]["file"], "stype", "numpy.ndarray"),
])  # fmt: skip
def test_a_broken_greeting_is_one_line(change):
    with pytest.raises(RunError, match=r"^the greeting is broken: "):
        read_greeting(greeting(change))
