"""The real SuperLink behind the proxy, up to the page that an operator follows."""

import http.client
import http.server
import os
import re
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest

from deploy.deployment import SUPERLINK, free_port
from fedapps.device.refused import NOT_LET_IN
from tests.deploy.helpers import (
    CALL,
    DEPLOY,
    PATIENCE,
    TRICKS,
    ask,
    flower,
    make,
    serve_proxy,
    trusting,
    wait_for_port,
)


@pytest.fixture(scope="module")
def superlink(pki, tmp_path_factory):
    """A SuperLink behind the proxy: its own port, and the one of devices."""
    home, port = tmp_path_factory.mktemp("superlink"), free_port()
    options = ["--host", "127.0.0.1", "--port", str(port), "--enable-supernode-auth"]
    options += ["--ssl-ca-certfile", pki / "ca.crt", "--ssl-certfile", pki / "server.crt"]
    options += ["--ssl-keyfile", pki / "server.key", "--disable-runtime-dependency-installation"]
    with (home / "log").open("w") as log:
        process = subprocess.Popen(
            [*SUPERLINK, *options], stdout=log, stderr=log, env=os.environ | flower(home)
        )
    try:
        wait_for_port(port, process)
        with serve_proxy(home / "nginx", pki, f"127.0.0.1:{port}") as running:
            yield SimpleNamespace(operator=port, device=running.port)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def list_nodes(pki, port, path="/v1/control/list-nodes", **headers):
    """Make a call of the Control API; returns the status."""
    client = http.client.HTTPSConnection("127.0.0.1", port, context=trusting(pki), timeout=PATIENCE)
    client.request("POST", path, b"", {"Content-Type": "application/protobuf"} | headers)
    status = client.getresponse().status
    client.close()
    return status


@pytest.mark.slow
def test_the_operator_reaches_the_control_api_and_a_device_does_not(superlink, pki):
    assert list_nodes(pki, superlink.operator) == 200
    assert list_nodes(pki, superlink.device) == 404
    assert list_nodes(pki, superlink.device, CALL) == 401  # a call that nobody signed
    lie = {"X-Original-URL": "/v1/control/list-nodes", "X-Forwarded-Prefix": "/v1/control"}
    assert list_nodes(pki, superlink.device, CALL, **lie) == 401
    context = trusting(pki)
    for target in TRICKS:
        target = target.replace("list-runs", "list-nodes")
        plain = socket.create_connection(("127.0.0.1", superlink.device), timeout=PATIENCE)
        with context.wrap_socket(plain, server_hostname="localhost") as stream:
            extra = "Content-Type: application/protobuf\r\n"
            assert ask(stream, target, extra) in (400, 404), target


@pytest.mark.deployment
@pytest.mark.parametrize(
    ("key", "line"),
    [(True, "Failed to activate SuperNode"), (False, "404 Not Found")],
)
def test_a_supernode_without_a_registered_key_is_refused(superlink, pki, tmp_path, key, line):
    make("device-key.sh", tmp_path, "stranger")
    options = ["--superlink", f"localhost:{superlink.device}", "--port", str(free_port())]
    options += ["--root-certificates", pki / "ca.crt"]
    if key:
        options += ["--auth-supernode-private-key", tmp_path / "stranger.key"]
    with (tmp_path / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedapps.device.supernode", *options],
            stdout=log,
            stderr=log,
            env=os.environ | flower(tmp_path),
        )
    try:
        assert process.wait(PATIENCE) == 1  # no pipe: its SuperExec ends only later
    finally:
        process.kill()
    told = (tmp_path / "log").read_text("utf-8")
    assert line in told and (NOT_LET_IN in told) == key


@pytest.mark.deployment
def test_the_page_can_be_followed_as_it_stands(tmp_path):
    """Three devices on one machine, to the prediction of a personalized model."""
    page = (DEPLOY / "README.md").read_text("utf-8")
    part = page.partition("## Three devices on one machine")[2].partition("\n## ")[0]
    text = "\n".join(re.findall(r"^```sh\n(.*?)^```", part, re.M | re.S))
    mine = {"8000": str(free_port()), "9443": str(free_port())}
    text = re.sub("8000|9443", lambda found: mine[found[0]], text)
    text = text.replace("$((9093 + number))", "${ports[number]}").replace("$HOME/", f"{tmp_path}/")
    ports = " ".join(str(free_port()) for _ in range(4))
    end = "trap 'kill $(cat \"$SITE\"/*.pid) 2>/dev/null || true' EXIT"
    done = subprocess.run(
        ["bash", "-euc", f"ports=({ports})\n{end}\n{text}"], cwd=DEPLOY.parent,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=3 * PATIENCE,
        env=os.environ | flower(tmp_path),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("registered successfully") == 3
    assert "\n404\n" in done.stdout
    assert "3, 3 in the last round" in done.stdout
    assert re.search(r"^198 \d [01]\.\d+$", done.stdout, re.M), done.stdout
    for number in (1, 2, 3):
        log = (tmp_path / f"fedapps-site/devices/ward-{number}/log").read_text("utf-8")
        assert "terminated gracefully" in log
