"""Who may read what a deployment writes: under the usual umask of 022, nobody but its user."""

import os
import re
import stat
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.deployment import Deployment
from fedapps.device import supernode
from tests.deploy.helpers import DEPLOY, HERE

# What stands for a program: it writes where the real one does, the database with its journals.
STUB = """#!/bin/sh
for word; do
    [ "$last" != --database ] || for end in '' -wal -shm; do echo x >"$word$end"; done
    last=$word
done
[ -z "$FLWR_HOME" ] || { mkdir -p "$FLWR_HOME/apps" && echo x >"$FLWR_HOME/apps/app"; }
"""
PYTHON = """#!/bin/sh
[ "$1" = - ] || exec flower-supernode "$@"
for name in ward-1 ward-2 ward-3; do
    mkdir -p devices/$name/data && echo x >devices/$name/data/train.npz
done
"""
NOTHING = "#!/bin/sh\n"


@pytest.fixture
def usual_umask():
    before = os.umask(0o022)
    yield
    os.umask(before)


def readable(folder):
    """What others could read below a folder: all but certificates and public keys."""
    found = [folder, *folder.rglob("*")]
    return [
        path.relative_to(folder)
        for path in found
        if stat.S_IMODE(path.lstat().st_mode) & 0o077 and path.suffix not in (".crt", ".pub")
    ]


def test_the_page_makes_nothing_that_others_can_read(tmp_path, usual_umask):
    """All of its commands, with programs that only write their files."""
    stubs, home = tmp_path / "bin", tmp_path / "home"
    stubs.mkdir(), home.mkdir()
    texts = dict.fromkeys(("fedapps", "flower-supernode", "flwr", "curl", "nginx"), STUB)
    texts |= {"python": PYTHON, "kill": NOTHING, "sleep": NOTHING}
    for name, text in texts.items():
        (stubs / name).write_text(text)
        (stubs / name).chmod(0o755)
    page = (DEPLOY / "README.md").read_text("utf-8")
    part = page.partition("## Three devices on one machine")[2].partition("\n## ")[0]
    text = "\n".join(re.findall(r"^```sh\n(.*?)^```", part, re.M | re.S))
    done = subprocess.run(
        ["bash", "-euc", f"enable -n kill\n{text}\nwait"],
        cwd=DEPLOY.parent,
        capture_output=True,
        text=True,
        env=os.environ | HERE | {"HOME": str(home), "PATH": f"{stubs}:{HERE['PATH']}"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    site = home / "fedapps-site"
    written = {path.name for path in site.rglob("*") if path.is_file()}
    assert written >= {"state.db", "state.db-wal", "log", "server.key", "ward-1.key", "train.npz"}
    assert readable(site) == []


def test_the_services_can_read_the_packages_that_the_page_installs(tmp_path, usual_umask):
    """Even in a shell with the umask of the page's first section."""
    texts = {
        "useradd": NOTHING,
        "python3": '#!/bin/sh\nmkdir -p "$3/bin" && cp /bin/true "$3/bin/pip"\n',
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    page = (DEPLOY / "README.md").read_text("utf-8")
    (umask,) = re.findall(r"^umask 077 # .*$", page, re.M)
    (block,) = re.findall(r"^useradd .*?(?=^cp deploy)", page, re.M | re.S)
    packages = tmp_path / "opt"
    commands = f"{umask}\n{block}".replace("/opt/fedapps", str(packages))
    subprocess.run(
        ["sh", "-euc", commands], check=True, env=os.environ | {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    )
    modes = {stat.S_IMODE(path.stat().st_mode) for path in (packages, packages / "bin")}
    assert modes == {0o755}


def test_a_deployment_on_one_machine_is_private(tmp_path, monkeypatch, usual_umask):
    def start(running):
        running.start("superlink", ["sh", "-c", "echo x >state.db && mkdir more"]).wait()

    monkeypatch.setattr(Deployment, "start_superlink", start)
    monkeypatch.setattr(Deployment, "start_proxy", lambda *_: 0)
    folder = tmp_path / "trial"
    with Deployment(folder) as running:
        running.script("device-key.sh", folder / "keys", "device-0")
    assert (folder / "homes" / "superlink" / "state.db").is_file()
    assert readable(folder) == []
    assert os.umask(0o022) == 0o022, "what it was before"


def test_what_a_supernode_writes_is_private(tmp_path, monkeypatch, usual_umask):
    def run():
        (tmp_path / "new").mkdir()

    monkeypatch.setattr(supernode.flower, "command", lambda name: run)
    for name in ("shorten_backoff", "answer_sooner", "keep_trying"):
        monkeypatch.setattr(supernode, name, lambda: None)
    monkeypatch.setattr(supernode, "leave", lambda cause: None)
    supernode.main()
    assert readable(tmp_path / "new") == []


def test_units_and_containers_write_private_files(tmp_path, usual_umask):
    for unit in (DEPLOY / "systemd").glob("*.service"):
        text = unit.read_text("utf-8")
        assert "\nUMask=0077\n" in text and "\nStateDirectoryMode=0700\n" in text
    image = (DEPLOY / "Dockerfile").read_text("utf-8")
    entry = re.search(r"^ENTRYPOINT (\[.*\])$", image, re.M)
    assert entry
    command = [*yaml.safe_load(entry[1]), "touch", "state.db", "two words"]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.db", "two words"]
    assert readable(tmp_path) in ([], [Path()])  # the folder itself is pytest's
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))["services"]
    assert not [name for name, service in services.items() if "entrypoint" in service]
