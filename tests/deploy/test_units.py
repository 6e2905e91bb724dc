"""Units of systemd and containers."""

import argparse
import os
import re
import shlex
import shutil
import subprocess
from configparser import ConfigParser

import pytest
import yaml

from fedapps.cli import nightly
from fedapps.core.flower import bin_dir
from tests.deploy.helpers import DEPLOY
from tests.support import ROOT

UNITS = ["fedapps-superlink.service", "fedapps-supernode@.service", "fedapps-nightly.service"]


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="2026-11-21: there is no systemd")
@pytest.mark.parametrize("name", UNITS)
def test_a_unit_is_valid_and_hardened(name, tmp_path):
    text = (DEPLOY / "systemd" / name).read_text("utf-8")
    assert "/opt/fedapps/bin/" in text
    unit = tmp_path / name.replace("@", "@ward-1")
    unit.write_text(text.replace("/opt/fedapps/bin/", "/bin/true "))  # verify wants it to be there
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", unit]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout.splitlines()[-1]


@pytest.mark.parametrize("name", ["fedapps-superlink.service", "fedapps-supernode@.service"])
def test_a_process_that_is_killed_for_its_memory_does_not_end_the_others(name):
    unit = ConfigParser(strict=False, interpolation=None)
    unit.read(DEPLOY / "systemd" / name)
    assert unit["Service"]["OOMPolicy"] == "continue"  # systemd's default is to stop the unit


def command_of(unit, **specifiers):
    """The words of a unit's ExecStart, with what systemd puts in the place of %d and the like."""
    text = (DEPLOY / "systemd" / unit).read_text("utf-8").replace("\\\n", " ")
    command = re.search(r"^ExecStart=(.*)$", text, re.M)[1]
    for letter, value in specifiers.items():
        command = command.replace(f"%{letter}", str(value))
    return shlex.split(command)


@pytest.mark.parametrize("name", UNITS)
def test_a_unit_imports_nothing_from_the_folder_that_code_of_a_run_can_write_to(name, tmp_path):
    """The nightly unit's has the key that signs, which no such code is to see."""
    for planted in ("fedapps/__init__.py", "msgspec.py", "flwr.py", "psutil.py"):
        path = tmp_path / "here" / planted
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("raise SystemExit('planted code was run')")
    program, *words = command_of(name, d=tmp_path / "none", S=tmp_path, i="ward-1")
    done = subprocess.run(
        [program.replace("/opt/fedapps/bin", str(bin_dir())), *words],
        cwd=tmp_path / "here",
        capture_output=True,
        text=True,
        env=os.environ | {"HOME": str(tmp_path), "FLWR_HOME": str(tmp_path / "flwr")},
    )
    told = done.stdout + done.stderr
    assert "planted" not in told
    assert re.search("^error: |not point to a file", told, re.M), "our own code has run"


def test_the_example_of_a_device_sets_what_its_unit_asks_for():
    unit = (DEPLOY / "systemd" / "fedapps-supernode@.service").read_text("utf-8")
    example = (DEPLOY / "systemd" / "supernode.env").read_text("utf-8")
    assert set(re.findall(r"\$\{(\w+)\}", unit)) == set(re.findall(r"^(\w+)=", example, re.M))


def test_the_timer_starts_a_unit_whose_command_exists():
    unit = (DEPLOY / "systemd" / "fedapps-nightly.service").read_text("utf-8")
    assert (DEPLOY / "systemd" / "fedapps-nightly.timer").exists()  # a unit of the same name
    program, name, *words = command_of("fedapps-nightly.service", d="/run/credentials")
    assert (program, name) == ("/opt/fedapps/bin/fedapps", "nightly")
    parser = argparse.ArgumentParser()
    nightly.add_arguments(parser)
    options = parser.parse_args(words)
    given = {
        f"/run/credentials/{name}" for name in re.findall(r"^LoadCredential=(.+):", unit, re.M)
    }
    assert {str(options.key), *options.run_config} <= given


def test_the_hour_of_the_timer_exists_in_every_night():
    """Wherever summer time is kept, clocks are changed between midnight and 4 o'clock."""
    timer = ConfigParser()
    timer.read(DEPLOY / "systemd" / "fedapps-nightly.timer")
    (hour,) = re.findall(r"^\*-\*-\* (\d\d):\d\d$", timer["Timer"]["OnCalendar"])
    assert 4 <= int(hour) < 24


def test_containers_keep_devices_and_the_superlink_apart():
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    assert [name for name, service in services.items() if "ports" in service] == ["proxy"]
    inner = {name for name, service in services.items() if "inner" in service["networks"]}
    assert inner == {"superlink", "proxy", "operator"}
    secret = {name: str(service["volumes"]) for name, service in services.items()}
    volumes = [volume for service in services.values() for volume in service["volumes"]]
    assert not [name for name, text in secret.items() if "ca.key" in text]
    for number in (1, 2, 3):
        mine = services[f"ward-{number}"]
        assert mine["networks"] == ["devices"]
        assert f"client-id={number - 1} " in mine["command"][-1]
        assert "server.key" not in secret[f"ward-{number}"]
        assert f"ward-{number}.key'" in secret[f"ward-{number}"]
    here = [volume.split(":")[0] for volume in volumes if isinstance(volume, str)]
    assert here == ["./nginx.conf.template"] and (DEPLOY / here[0]).is_file()
    # Docker makes no folder, of root's, in place of a key that is missing.
    sources = [volume for volume in volumes if isinstance(volume, dict)]
    assert all(volume["source"].startswith("${SITE") for volume in sources)
    assert not any(volume["bind"]["create_host_path"] for volume in sources)


def test_the_images_do_not_run_as_root_and_devices_have_the_smaller_one():
    text = (DEPLOY / "Dockerfile").read_text("utf-8")
    stages = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", text, re.M | re.S))
    for target in ("device", "server"):
        (user,) = re.findall(r"^USER (\d+)", stages[target], re.M)
        assert int(user) > 0
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    targets = {name: mine["build"]["target"] for name, mine in services.items() if "build" in mine}
    wards = {f"ward-{number}": "device" for number in (1, 2, 3)}
    assert targets == {"superlink": "server", "operator": "server"} | wards


def test_docker_sees_what_the_images_are_made_of():
    """Its ignore file keeps all else out."""
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    seen = {line[1:] for line in ignored if line.startswith("!")}
    assert all((ROOT / path).exists() for path in seen)
    copied = re.findall(r"^COPY (.+) \S+$", (DEPLOY / "Dockerfile").read_text("utf-8"), re.M)
    files = {word for words in copied for word in words.split() if word[:2] != "--"}
    assert files - seen == {"."}
