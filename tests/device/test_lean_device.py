"""A device needs only the packages of deploy/device-requirements.lock."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pytest

from fedapps.core.errors import RunError, needed
from fedapps.data import forms
from fedapps.data.sources import SOURCES
from fedapps.models.of_torchvision import MODELS
from fedapps.models.zoo import build
from tests.device.helpers import put
from tests.support import ROOT

LEAN = ROOT / "tests" / "support" / "lean"
HEAVY = {"ray", "pandas", "sklearn", "scipy", "matplotlib", "torchvision", "medmnist", "PIL"}
RUN = {
    "dataset": "device", "strategy": "fedper", "input-shape": "1,8,8", "num-classes": 3,
    "num-clients": 3, "model": "cnn", "local-epochs": 1, "device": "cpu",
}  # fmt: skip


def locked(path):
    """Return the package and version of each line of a lock, without what it depends on."""
    lines = (line.partition(" ;")[0].strip() for line in path.read_text("utf-8").splitlines())
    return {line for line in lines if line and not line.startswith("#")}


def lean(*words, cwd):
    """Run Python as on a device: with the packages of its lock."""
    return subprocess.run(
        [sys.executable, *map(str, words)], capture_output=True, text=True, cwd=cwd,
        env=os.environ | {"PYTHONPATH": f"{LEAN}{os.pathsep}{ROOT}"},
    )  # fmt: skip


@pytest.fixture(scope="module")
def walk(tmp_path_factory, make_npz):
    """What `tests/support/walk.py` says of a round on a device, and its state folder."""
    folder = tmp_path_factory.mktemp("walk")
    data, state = make_npz(folder / "own.npz"), folder / "state"
    node = {"client-id": 1, "data": str(data), "state-dir": str(state)}
    program = ROOT / "tests" / "support" / "walk.py"
    done = lean(program, json.dumps(RUN), json.dumps(node), cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"state": state}


def test_the_lock_is_a_part_of_the_whole_one_without_addresses():
    device, whole = ROOT / "deploy" / "device-requirements.lock", ROOT / "requirements.lock"
    assert locked(device) < locked(whole)
    names = {line.partition("==")[0] for line in locked(device)}
    wanted = (ROOT / "deploy" / "device-requirements.in").read_text("utf-8").splitlines()
    assert {name for name in wanted if name[:1] != "#"} <= names
    assert not [name for name in names if re.match("cuda|nvidia|triton|ray|torchvision", name)]
    assert "://" not in device.read_text("utf-8")


def test_the_app_of_a_device_loads_nothing_that_only_servers_need(walk):
    """Each message of another app, and each run, loads it anew; on a small device that counts."""
    names = walk["loaded"]  # in their order; the commands of a device come after the app
    loaded = {*names[: names.index("fedapps.cli")]}
    assert "fedapps.device.personalized" in loaded
    servers = {"drawing", "compare", "report.report", "engine.checkpoint", "engine.rounds"}
    assert loaded.isdisjoint(f"fedapps.{name}" for name in servers)
    assert "torch._dynamo" not in names  # the compiler, which takes seconds


def test_a_round_needs_the_packages_of_the_lock_only(walk):
    assert walk["failures"] == []
    assert np.isfinite(walk["told"]["train"]["loss"])
    assert sum(walk["told"]["evaluate"]["personalized_total"]) > 0
    assert (walk["state"] / "personalized.safetensors").is_file()
    loaded = {name.partition(".")[0] for name in walk["loaded"]}
    assert {"flwr", "torch", "clients"} <= loaded
    assert not loaded & HEAVY


def test_data_that_need_another_package_say_which(tmp_path, monkeypatch):
    table = tmp_path / "own.csv"
    table.write_text("a,b\n1,0\n")
    pictures = put(tmp_path / "own", ["0", "1"])
    monkeypatch.delitem(sys.modules, "fedapps.data.forms.tables", raising=False)
    monkeypatch.delattr(forms, "tables", raising=False)
    for package in ("pandas", "PIL"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(RunError) as caught:
        forms.open_own(table, forms.Form())
    assert str(caught.value) == f"{table}: needs pandas; pip install pandas"
    with pytest.raises(RunError, match=r"own/\S+\.png: needs PIL; pip install pillow$"):
        forms.open_own(pictures, forms.Form())


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_torchvision_says_what_it_needs(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    with pytest.raises(RunError, match=f'^model = "{name}": needs torchvision; pip install tor'):
        build(name, (3, 32, 32), 10, 0)


@pytest.mark.parametrize(
    ("name", "package", "pip"),
    [
        ("digits", "sklearn", "scikit-learn"),
        ("wine", "sklearn", "scikit-learn"),
        ("cifar10", "torchvision", "torchvision"),
        ("organamnist", "medmnist", "medmnist"),
    ],
)
def test_a_named_data_set_says_what_it_needs(name, package, pip, monkeypatch, tmp_path):
    for module in (package, f"{package}.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(RunError) as caught:
        SOURCES[name].read(tmp_path)
    assert str(caught.value) == f'dataset = "{name}": needs {package}; pip install {pip}'


def test_a_package_of_an_extra_is_installed_with_it():
    line = r"^x: needs nowhere; pip install 'fedapps\[hf\]'$"
    with pytest.raises(RunError, match=line), needed("x", "'fedapps[hf]'"):
        import nowhere.inside  # noqa: F401


def test_a_command_that_needs_more_says_so_in_one_line(tmp_path):
    done = lean("-m", "fedapps", "compare", tmp_path, tmp_path, cwd=tmp_path)
    line = "error: fedapps compare: needs pandas; pip install pandas\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", line)
