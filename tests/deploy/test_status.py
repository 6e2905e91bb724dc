"""What an operator of a real deployment sees, and Prometheus with them."""

import json
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

from deploy.deployment import NAME, free_port
from fedapps.core.certificates import end_of
from fedapps.report import status
from fedapps.wire import contacts
from tests.deploy.devices import RUN, TWO, wait_for
from tests.report.test_exporter import of, scraped
from tests.support.made_runs import shown
from tests.support.relay import Relay

pytestmark = pytest.mark.deployment
GONE = 1


def there(folder):
    """The clients that a run's devices.json says are there."""
    known = contacts.read(folder)
    return {one.client for one in known.devices if one.there} if known else set()


def test_an_operator_sees_which_device_is_gone(devices, deployment, tmp_path, capsys):
    port, folder = free_port(), tmp_path / "watched"
    run = [RUN, TWO, f'strategy="fedper" num-rounds=500 min-available=1 metrics-port={port}']
    run.append(f'runs-dir="{tmp_path}" run-name="watched"')
    superlink = (NAME, "--home", deployment.home, "--json")
    with Relay(deployment.proxy_port, delay=0.5) as relay, ThreadPoolExecutor(1) as thread:
        devices.start(0, GONE, port=relay.port)  # slow rounds take less of the processor
        done = thread.submit(deployment.run, *run, echo=lambda line: None)
        try:
            wait_for(lambda: there(folder) == {0, GONE}, "not all devices are there")
            assert "it reloads itself" in (folder / "report.html").read_text("utf-8")
            wait_for(lambda: status.read(folder).round >= 1, "no round")
            found = scraped(port)
            assert found[of("run_running")] == found[of("device_there", client=str(GONE))] == 1
            deployment.stop(devices.name(GONE))
            wait_for(lambda: there(folder) == {0}, "nobody has noticed")
            assert scraped(port)[of("device_there", client=str(GONE))] == 0
            lines, (line,) = shown(capsys, folder), shown(capsys, *superlink)
        finally:
            deployment.stop_run()
        assert not done.result().completed
        devices.stop()
    assert lines[1].startswith("running, round ")
    assert lines[3].startswith("devices: 1 of 2 take part")
    assert re.fullmatch(rf"not there: client {GONE}, last contact \d+ (s|min) ago", lines[4])
    states = {node["node-id"]: node["status"] for node in json.loads(line)["supernodes"]}
    assert [states[devices.node_id(client)] for client in (0, GONE)] == ["online", "offline"]
    wait_for(lambda: status.read(folder).state == "interrupted", "it still runs")
    known, pki = contacts.read(folder), deployment.certificates
    assert known.server.certificate == min(end_of(pki / "server.crt"), end_of(pki / "ca.crt"))
    for one in known.devices:
        assert one.health.certificate == end_of(pki / "ca.crt") and one.health.disk > 0
        assert abs(one.ahead) <= one.within and one.warnings == {}
