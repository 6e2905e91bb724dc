"""Fixtures of a deployment: certificates, a proxy, connections to it, and devices."""

import http.client
import http.server
import socket

import pytest

from deploy.deployment import Deployment
from tests.deploy.devices import RECORD, Devices
from tests.deploy.helpers import CALL, PATIENCE, make, serve_proxy, serve_upstream, trusting


@pytest.fixture(scope="module")
def pki(tmp_path_factory):
    """A CA and a certificate for a name and two addresses."""
    folder = tmp_path_factory.mktemp("pki") / "made"
    make("certificates.sh", folder, "superlink.example", "192.0.2.7", "2001:db8::7")
    return folder


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """The same of a CA that nobody trusts."""
    folder = tmp_path_factory.mktemp("strangers")
    make("certificates.sh", folder, "superlink.example")
    return folder


@pytest.fixture(scope="module")
def upstream(pki):
    with serve_upstream(pki) as server:
        yield server


@pytest.fixture(scope="module")
def proxy(pki, upstream, tmp_path_factory):
    folder = tmp_path_factory.mktemp("proxy") / "nginx"
    with serve_proxy(folder, pki, f"127.0.0.1:{upstream.server_port}") as running:
        yield running


@pytest.fixture
def seen(upstream):
    """What has reached the upstream in this test."""
    upstream.seen.clear()
    return upstream.seen


@pytest.fixture
def connect(pki, proxy):
    """Return connect() -> a TLS socket to the proxy, as a device has one."""
    context = trusting(pki)

    def connect():
        plain = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)
        return context.wrap_socket(plain, server_hostname="superlink.example")

    return connect


@pytest.fixture
def post(pki, proxy):
    """Return post(path, body, headers, method=) -> (status, body) of one request."""

    def post(path=CALL, body=b"", headers=None, method="POST"):
        client = http.client.HTTPSConnection(
            "127.0.0.1", proxy.port, context=trusting(pki), timeout=PATIENCE
        )
        client.request(method, path, body, headers or {})
        answer = client.getresponse()
        result = answer.status, answer.read()
        client.close()
        return result

    return post


@pytest.fixture(scope="session")
def files(tmp_path_factory, make_npz):
    """The data of each device, by client id."""
    folder = tmp_path_factory.mktemp("own")
    sizes = {client: 48 + 16 * client for client in range(8)}
    return [make_npz(folder / f"{c}.npz", train=n, seed=c) for c, n in sizes.items()]


@pytest.fixture(scope="session")
def deployment(tmp_path_factory):
    """A SuperLink with its proxy; each test brings SuperNodes of its own."""
    with Deployment(tmp_path_factory.mktemp("deployment"), RECORD) as running:
        yield running


@pytest.fixture
def devices(deployment, files, request, tmp_path):
    """Make SuperNodes; they leave when the test is over."""
    tag = "".join(c if c.isalnum() else "-" for c in request.node.name)
    made = Devices(deployment, files, tag, tmp_path / "states")
    yield made
    made.stop()
