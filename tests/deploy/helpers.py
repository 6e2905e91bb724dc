"""What the tests of a deployment share: scripts, a proxy, and what stands for the SuperLink."""

import csv
import http.client
import http.server
import os
import socket
import ssl
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

from deploy.deployment import free_port
from tests.support import ROOT
from tests.support.clock import until

DEPLOY = ROOT / "deploy"
CALL = "/v1/fleet/pull-messages"
MIB = 2**20
PATIENCE = 300.0  # seconds for what takes one or two where nothing else runs
# What is installed with this Python is found though its environment need not be activated.
HERE = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def script(name, *arguments, **environment):
    """Run a script of the folder; returns its status, what it printed, and its complaint."""
    done = subprocess.run(
        [DEPLOY / name, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | HERE | environment,
    )
    return SimpleNamespace(status=done.returncode, text=done.stdout, error=done.stderr)


def make(name, *arguments):
    done = script(name, *arguments)
    assert done.status == 0, done.error
    assert not done.error
    return done.text


class Upstream(http.server.ThreadingHTTPServer):
    """Stands for the SuperLink: remembers what it is asked, and answers with a word."""

    daemon_threads = True

    def __init__(self, folder):
        super().__init__(("127.0.0.1", 0), Handler)
        self.seen = []
        self.context = folder and ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if folder:
            self.context.load_cert_chain(folder / "server.crt", folder / "server.key")

    def finish_request(self, request, client_address):
        """Shake hands in the connection's own thread, so that one that hangs stops no other."""
        if self.context:
            request.settimeout(PATIENCE)
            request = self.context.wrap_socket(request, server_side=True)
        super().finish_request(request, client_address)

    def handle_error(self, request, client_address):
        """Whoever refuses the certificate hangs up, which is expected."""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.seen.append(SimpleNamespace(path=self.path, headers=self.headers, body=body))
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"pong")

    do_GET = do_PUT = do_DELETE = do_HEAD = do_OPTIONS = do_POST

    def log_message(self, *arguments):
        """Nothing."""


@contextmanager
def serve_upstream(folder):
    server = Upstream(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def nginx(folder, certificates, listen, superlink, *options):
    return [DEPLOY / "proxy.sh", *options, folder, certificates, listen, superlink]


@contextmanager
def serve_proxy(folder, certificates, superlink):
    """Run nginx before `superlink`; gives its port."""
    port = free_port()
    command = nginx(folder, certificates, f"127.0.0.1:{port}", superlink)
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=os.environ | HERE)
    try:
        wait_for_port(port, process)
        yield SimpleNamespace(port=port, process=process, folder=folder)
    finally:
        process.terminate()
        process.wait(PATIENCE)


def wait_for_port(port, process):
    def is_served():
        assert process.poll() is None, f"nothing serves port {port}; status {process.poll()}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(is_served, f"nothing serves port {port}", PATIENCE)


def trusting(pki):
    context = ssl.create_default_context(cafile=pki / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # as Python 3.13 does by default
    return context


def ask(stream, target, extra="", method="POST"):
    """Send a request line just as it is over an open connection; returns the status, 0: hung up."""
    head = f"{method} {target} HTTP/1.1\r\nHost: superlink.example\r\nContent-Length: 0\r\n"
    stream.sendall(f"{head}{extra}\r\n".encode("latin-1"))
    answer = http.client.HTTPResponse(stream, method=method)
    try:
        answer.begin()
        answer.read()
    except (http.client.BadStatusLine, ConnectionError):
        return 0
    return answer.status


TRICKS = [
    *("/", "/health", "/docs", "/openapi.json", "/v1", "/v1/fleet", "/v1/fleet/", "/v1/fleet/-"),
    *(
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/runtime/acquire-task",
        "/v1/responses",
    ),
    *("//v1/control/list-runs", "/v1//control/list-runs", "//v1/fleet/pull-messages"),
    *("/v1/fleet//pull-messages", "/v1/fleet/pull-messages/", "/v1/fleet/./pull-messages"),
    *("/v1/fleet/register-node", "/v1/fleet/unregister-node", "/v1/fleet/%72egister-node"),
    "/v1/fleet/../control/list-runs",
    "/v1/fleet/..//control/list-runs",
    "/v1/fleet/../../v1/control/list-runs",
    "/v1/fleet/pull-messages/../../control/list-runs",
    "/v1/control/../fleet/pull-messages",
    "/v1/control/list-runs/../../fleet/pull-messages",
    "/v1/fleet/%2e%2e/control/list-runs",
    "/v1/fleet/.%2e/control/list-runs",
    "/v1/fleet/%252e%252e/control/list-runs",
    "/v1/fleet/..%2fcontrol%2flist-runs",
    "/v1/fleet%2f..%2fcontrol%2flist-runs",
    "/v1/fleet/%2e%2e%2fcontrol/list-runs",
    "/v1/control%2f..%2ffleet/pull-messages",
    "/v1/control/%2e%2e/fleet/pull-messages",
    "/v1/fleet/..;/control/list-runs",
    "/v1/fleet/pull-messages;/../../control/list-runs",
    "/v1/fleet\\..\\control\\list-runs",
    "/v1/fleet/..%5ccontrol/list-runs",
    "/v1/fleet/pull-messages?",
    "/v1/fleet/pull-messages?/../../control/list-runs",
    "/v1/fleet/pull-messages#/../../control/list-runs",
    "/v1/fleet/pull-messages%00",
    "/v1/fleet/pull-messages%0a",
    "/v1/fleet/pull-messages%20HTTP/1.1",
    "/v1/fleet/%70ull-messages",
    "/v1/%66leet/pull-messages",
    "/V1/FLEET/pull-messages",
    "/v1/fleet/pull\xa0messages",
    "https://127.0.0.1/v1/control/list-runs",
    "https://127.0.0.1/v1/fleet/../control/list-runs",
    "https://superlink.example",
    "http://127.0.0.1/v1/runtime/acquire-task",
    "*",
    "v1/control/list-runs",
    "superlink.example:443",
]


def flower(home):
    """The environment of a Flower process of the tests."""
    return HERE | {
        "FLWR_HOME": str(home),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "NO_PROXY": "127.0.0.1,localhost",
    }


def outcome(folder: Path) -> tuple[list, list, bytes]:
    """What must be alike: the tables, without seconds, and the model's bytes."""
    with (folder / "rounds.csv").open() as file:
        rounds = [{**row, "seconds": ""} for row in csv.DictReader(file)]
    clients = (folder / "clients.csv").read_text().splitlines()
    return rounds, clients, (folder / "model.safetensors").read_bytes()
