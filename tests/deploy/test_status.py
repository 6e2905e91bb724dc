"""What an operator of a real deployment sees, and Prometheus with them."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from deploy.deployment import NAME, free_port
from fedapps import cli
from fedapps.core.certificates import end_of
from fedapps.report import status
from fedapps.wire import contacts
from tests.deploy.test_supernodes import (  # noqa: F401 (fixtures)
    RUN,
    deployment,
    devices,
    files,
    wait_for,
)
from tests.report.test_exporter import of, scraped

pytestmark = pytest.mark.deployment
GONE = 1


def there(folder):
    """The clients that a run's devices.json says are there."""
    known = contacts.read(folder)
    return {one.client for one in known.devices if one.there} if known else set()


def shown(capsys, *words):
    capsys.readouterr()
    assert cli.main(["status", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_an_operator_sees_which_device_is_gone(devices, deployment, tmp_path, capsys):  # noqa: F811
    port, folder = free_port(), tmp_path / "watched"
    run = [RUN, f'strategy="fedper" num-rounds=500 min-available=2 metrics-port={port}']
    run.append(f'runs-dir="{tmp_path}" run-name="watched"')
    superlink = (NAME, "--home", deployment.home, "--json")
    devices.start(0, 1, 2)
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(deployment.run, *run, echo=lambda line: None)
        try:
            wait_for(lambda: there(folder) == {0, 1, 2}, "not all devices are there")
            assert "it reloads itself" in (folder / "report.html").read_text("utf-8")
            wait_for(lambda: status.read(folder).round >= 1, "no round")
            found = scraped(port)
            assert found[of("run_running")] == found[of("device_there", client=str(GONE))] == 1
            deployment.stop(devices.name(GONE))
            wait_for(lambda: there(folder) == {0, 2}, "nobody has noticed")
            assert scraped(port)[of("device_there", client=str(GONE))] == 0
            lines, (line,) = shown(capsys, folder), shown(capsys, *superlink)
        finally:
            (listed,) = map(json.loads, shown(capsys, *superlink))
            deployment.flwr("stop", listed["runs"][0]["run-id"], NAME)
        assert not done.result().completed
    assert lines[1].startswith("running, round ")
    assert lines[3].startswith("devices: 2 of 3 take part")
    assert re.fullmatch(rf"not there: client {GONE}, last contact \d+ (s|min) ago", lines[4])
    states = sorted(node["status"] for node in json.loads(line)["supernodes"])
    assert states == ["offline", "online", "online"]
    wait_for(lambda: status.read(folder).state == "interrupted", "it still runs")
    known, pki = contacts.read(folder), deployment.certificates
    assert known.server.certificate == min(end_of(pki / "server.crt"), end_of(pki / "ca.crt"))
    for one in known.devices:
        assert one.health.certificate == end_of(pki / "ca.crt") and one.health.disk > 0
        assert abs(one.ahead) <= one.within and one.warnings == {}
