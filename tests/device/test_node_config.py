"""The keys of a device's node-config."""

import subprocess
import sys
from pathlib import Path

import pytest

from fedapps import cli
from fedapps.core.errors import RunError
from fedapps.device.device import Device
from fedapps.device.node_config import NodeConfig

NODE = {"client-id": 0, "data": "/a.npz", "state-dir": "/b"}


@pytest.mark.parametrize(("key", "told"), [
    ("model-kye", "unknown key model-kye, did you mean model-key?"),
    ("dp_budget", "unknown key dp_budget, did you mean dp-budget?"),
    ("ward", "unknown key ward: must be one of client-id, data, state-dir, model-key, dp-budget"),
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
    ("client-id", "x", 'client-id = "x": must be an integer >= 0'),
    ("dp-budget", "8,5",
     'dp-budget = "8,5": must be a number above 0; for no budget, leave it out'),
    ("state-dir", "b", 'state-dir = "b": must be absolute or start with ~, for example ~/b'),
])  # fmt: skip
def test_a_wrong_value_is_named_before_the_supernode_starts(key, value, told, capsys):
    """Otherwise a device that starts again fails the messages of a run that goes on."""
    words = " ".join(f'{name}="{text}"' for name, text in (NODE | {key: value}).items())
    assert cli.main(["supernode", "--insecure", "--node-config", words.replace('"0"', "0")]) == 1
    assert capsys.readouterr().err == f"error: node-config: {told}\n"


def test_a_missing_key_is_named():
    with pytest.raises(RunError, match=r"^node-config: data is missing; give all three: "):
        NodeConfig.of({"client-id": 0, "state-dir": "/b"})
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


def test_keys_are_checked_without_pytorch():
    """`fedapps supernode` names a mistake at once, and its process never needs PyTorch."""
    code = "import fedapps.device.node_config, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
