"""The keys of a device's node-config."""

import json
import os
import sys
from pathlib import Path

import pytest

from fedapps import cli
from fedapps.core import signing
from fedapps.core.errors import RunError
from fedapps.device.device import Device
from fedapps.device.node_config import NodeConfig

MOST = 99999999999999999999  # more than a message can hold
BOUNDS = "must be an integer from 0 to num-clients - 1"
NODE = {"client-id": 0, "data": "/a.npz", "state-dir": "/b"}


@pytest.fixture(autouse=True)
def _argv(monkeypatch):
    monkeypatch.setattr(sys, "argv", [])


@pytest.mark.parametrize(("key", "told"), [
    ("model-kye", "unknown key model-kye, did you mean model-key?"),
    ("dp_budget", "unknown key dp_budget, did you mean dp-budget?"),
    ("ward", "unknown key ward: must be one of client-id, data, state-dir, model-key, dp-budget, "
     "dp-delta, scores, ready"),
])  # fmt: skip
def test_an_unknown_key_keeps_a_device_out(key, told, capsys):
    """With a misspelt `model-key` it would take part in a run that this key refuses."""
    with pytest.raises(RunError, match=r"^node-config: ") as error:
        Device.of(NODE | {key: 1})
    assert str(error.value) == f"node-config: {told}"
    words = 'client-id=0 data="/a.npz" state-dir="/b"'
    assert cli.main(["supernode", "--insecure", "--node-config", f"{words} {key}=1"]) == 1
    assert capsys.readouterr().err == f"error: node-config: {told}\n"


@pytest.mark.parametrize(("key", "value", "told"), [
    ("client-id", "x", f'client-id = "x": {BOUNDS}'),
    ("client-id", MOST, f'client-id = "{MOST}": {BOUNDS}'),
    ("dp-delta", 1, 'dp-delta = "1": must be a number between 0 and 1'),
    ("dp-budget", "8,5",
     'dp-budget = "8,5": must be a number above 0; for no budget, leave it out'),
    ("scores", "no", 'scores = "no": must be true or false'),
    ("ready", 1, 'ready = "1": must be a command, a text'),
    ("state-dir", "b", 'state-dir = "b": must be absolute or start with ~, for example ~/b'),
])  # fmt: skip
def test_a_wrong_value_is_named_before_the_supernode_starts(key, value, told, capsys):
    """Otherwise a device that starts again fails the messages of a run that goes on."""
    assert started(NODE | {key: value}) == 1
    assert capsys.readouterr().err == f"error: node-config: {told}\n"


def started(node):
    """The status of a SuperNode with this node-config."""
    words = [f"{key}={json.dumps(value)}" for key, value in node.items()]
    return cli.main(["supernode", "--insecure", "--node-config", " ".join(words)])


@pytest.fixture
def device(tmp_path, monkeypatch):
    """The node-config of a device that can start, as far as its files tell."""
    monkeypatch.setattr("os.umask", lambda _: 0)
    monkeypatch.setattr("fedapps.device.supernode.shorten_backoff", lambda: sys.exit("it starts"))
    monkeypatch.setenv("PATH", os.environ["PATH"])
    signing.make_key(tmp_path / "model")
    (tmp_path / "train.npz").write_text("x")
    return {"client-id": 0, "data": f"{tmp_path}/train.npz", "state-dir": f"{tmp_path}/a/state",
            "model-key": f"{tmp_path}/model.pub"}  # fmt: skip


@pytest.mark.parametrize(("key", "name", "told"), [
    ("data", "gone.npz", 'node-config: data = "{}": no such file or folder'),
    ("state-dir", "train.npz", 'node-config: state-dir = "{0}": must be a folder; {0} is a file'),
    ("model-key", "gone.pub", "{}: cannot be read as a public key (No such file or directory)"),
    ("model-key", "train.npz", "{}: cannot be read as a public key (it is none in PEM format); "
     "fedapps nightly --make-key makes one"),
])  # fmt: skip
def test_files_that_cannot_serve_are_named_before_it_starts(
    key, name, told, device, tmp_path, capsys
):
    path = f"{tmp_path}/{name}"
    assert started(device | {key: path}) == 1
    assert capsys.readouterr().err == f"error: {told.format(path)}\n"


@pytest.mark.parametrize(("command", "told"), [
    ("/no/such/file --quiet", "must be a command that can be run, such as /usr/local/bin/idle"),
    (" ", "must be a command that can be run, such as /usr/local/bin/idle"),
    ("sh -c 'exit", "No closing quotation"),
])  # fmt: skip
def test_a_command_that_cannot_be_run_is_named_before_it_starts(command, told, device, capsys):
    assert started(device | {"ready": command}) == 1
    assert capsys.readouterr().err == f'error: node-config: ready = "{command}": {told}\n'


@pytest.mark.parametrize(("key", "told"), [
    ("data", 'data = "{}": cannot be read'), ("state-dir", 'state-dir = "{}": cannot write in {}'),
])  # fmt: skip
def test_files_of_another_user_are_named_before_it_starts(key, told, device, monkeypatch, capsys):
    path = str(Path(device[key]).parent if key == "state-dir" else device[key])
    access = os.access
    monkeypatch.setattr(os, "access", lambda there, *a: str(there) != path and access(there, *a))
    Path(device["state-dir"]).parent.mkdir()
    assert started(device) == 1
    said = f"node-config: {told.format(device[key], path)} (Permission denied); chown or chmod it"
    assert capsys.readouterr().err == f"error: {said} for this user\n"


def test_a_private_key_on_a_device_is_warned_of(device, tmp_path, capsys):
    for name, warned in (("model.pub", ""), ("model", f"warning: model-key: {tmp_path}/model is")):
        with pytest.raises(SystemExit, match="it starts"):
            started(device | {"model-key": f"{tmp_path}/{name}"})
        said = capsys.readouterr().out
        assert said.startswith(warned) and said.count("\n") == bool(warned)


def test_a_missing_key_is_named():
    for key in NODE:
        with pytest.raises(RunError, match=rf"^node-config: {key} is missing; give all three: "):
            NodeConfig.of({other: value for other, value in NODE.items() if other != key})
    with pytest.raises(RunError, match=r"^node-config: client-id is missing"):
        NodeConfig.of({"model-key": "/a.pub"})


def test_keys_of_any_supernode_are_no_mistake():
    more = dict.fromkeys(("workers", "partition-id", "num-partitions"), 1)
    assert NodeConfig.of(NODE | more) == NodeConfig(0, Path("/a.npz"), Path("/b"))
    assert NodeConfig.of(more) is None and NodeConfig.of({}) is None


def test_a_device_with_misspelt_keys_only_is_no_supernode_without_data():
    for key, hint in (
        ("clientid", ", did you mean client-id"),
        ("site", ": must be one of client-id"),
    ):
        with pytest.raises(RunError, match=f"^node-config: unknown key {key}{hint}"):
            NodeConfig.of({key: 3, "dat": "/x"})
