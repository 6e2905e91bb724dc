"""The keys of a device's node-config."""

import subprocess
import sys

import pytest

from fedapps import cli
from fedapps.core.errors import RunError
from fedapps.device.device import Device
from fedapps.device.node_config import is_device

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


def test_a_missing_key_is_named():
    with pytest.raises(RunError, match=r"^node-config: data is missing; give all three: "):
        is_device({"client-id", "state-dir"})


def test_keys_of_any_supernode_are_no_mistake():
    assert is_device([*NODE, "workers", "partition-id", "num-partitions"])
    assert not is_device(["partition-id", "num-partitions", "site"])


def test_keys_are_checked_without_pytorch():
    """`fedapps supernode` names a mistake at once, and its process never needs PyTorch."""
    code = "import fedapps.device.node_config, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
