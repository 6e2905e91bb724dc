"""A deployment on one machine: its keys, its signals, its runs."""

import signal
import sys

import pytest
from flwr.common.config import parse_config_args

from deploy import deployment
from deploy.deployment import Deployment
from fedapps.cli import supernode
from fedapps.core.errors import RunError
from fedapps.device.supernode import main as device_main


@pytest.fixture
def quiet(monkeypatch):
    """A deployment whose processes are not started."""
    for name in ("start_superlink", "start_proxy"):
        monkeypatch.setattr(Deployment, name, lambda *_: 0)


def test_the_same_folder_serves_again_with_the_same_keys(quiet, tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(Deployment, "flwr", lambda self, *words: told.append(words))
    kept = []
    for _ in range(2):
        with Deployment(tmp_path) as running:
            running.register("device-0")
        kept.append((tmp_path / "keys" / "device-0.key").read_bytes())
    assert kept[0] == kept[1]
    key = str(tmp_path / "keys" / "device-0.pub")
    once = ("supernode", "register", key, "local")
    assert told == [once, once], "a SuperLink knows none of an earlier one"


@pytest.fixture
def hangup():
    """Return set(handler), for SIGHUP until the test ends: the tests, too, may run with nohup."""
    before = signal.getsignal(signal.SIGHUP)
    yield lambda handler: signal.signal(signal.SIGHUP, handler)
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_deployment_gives_a_signal_back(number, quiet, hangup, tmp_path, monkeypatch):
    hangup(signal.SIG_DFL)
    before = signal.getsignal(number)
    with Deployment(tmp_path):
        assert signal.getsignal(number) is not before
    assert signal.getsignal(number) is before

    def fail(_):
        raise RunError("no SuperLink")

    monkeypatch.setattr(Deployment, "start_superlink", fail)
    with pytest.raises(RunError), Deployment(tmp_path):
        pass
    assert signal.getsignal(number) is before


def test_nohup_keeps_a_deployment_running(quiet, hangup, tmp_path):
    hangup(signal.SIG_IGN)
    with Deployment(tmp_path):
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN


def test_its_runs_ask_no_proxy_for_the_superlink(tmp_path, monkeypatch):
    seen = {}
    monkeypatch.setattr(deployment, "launch", lambda *_, **options: seen.update(options))
    Deployment(tmp_path).run("a=1")
    assert seen["flwr"].env["NO_PROXY"] == "127.0.0.1"
    assert seen["flwr"].env["FLWR_TELEMETRY_ENABLED"] == "0"


BARE = 'client-id=0 data=/data/a.npz state-dir="/var/lib/x y" workers=2'
READ = {"client-id": 0, "data": "/data/a.npz", "state-dir": "/var/lib/x y", "workers": 2}


def test_a_node_config_without_quotes_reaches_flower_as_it_is_read_here(tmp_path, monkeypatch):
    monkeypatch.setattr(Deployment, "start", lambda self, name, command: command)
    command = Deployment(tmp_path).supernode("device-0", BARE)
    assert parse_config_args([command[command.index("--node-config") + 1]]) == READ


@pytest.mark.parametrize("module", [False, True])
@pytest.mark.parametrize("words", [["--node-config", BARE], [f"--node-config={BARE}"]])
def test_fedapps_supernode_and_its_module_take_it_too(words, module, monkeypatch):
    monkeypatch.setattr("fedapps.device.supernode.check", lambda words: sys.exit("checked"))
    words = ["--insecure", *words, "--superlink", "127.0.0.1:1"]
    monkeypatch.setattr(sys, "argv", ["flower-supernode", *words] if module else ["fedapps"])
    with pytest.raises(SystemExit, match="checked"):
        device_main() if module else supernode.hand_on(words)
    told = " ".join(sys.argv)
    assert sys.argv[:2] == ["flower-supernode", "--insecure"] and told.endswith("127.0.0.1:1")
    config = told.partition("--node-config")[2].partition(" --superlink")[0]
    assert parse_config_args([config[1:]]) == READ


def test_the_reason_of_a_failed_start_is_not_flowers_link(tmp_path):
    made = Deployment(tmp_path)
    (tmp_path / "logs").mkdir()
    made._begins["device-0"] = 0
    made.log("device-0").write_text(
        "ERROR: the format is wrong\nFor more information, visit: <https://example.org>\n"
    )
    assert made._last_line("device-0") == "ERROR: the format is wrong"
