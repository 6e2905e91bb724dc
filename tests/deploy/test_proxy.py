"""The proxy itself: how it is started, whom it trusts, and how much it takes."""

import http.client
import http.server
import os
import pwd
import re
import signal
import socket
import ssl
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from deploy.deployment import free_port
from tests.deploy.helpers import (
    CALL,
    DEPLOY,
    HERE,
    PATIENCE,
    ask,
    make,
    nginx,
    script,
    serve_proxy,
    serve_upstream,
    trusting,
    wait_for_port,
)
from tests.support.clock import until


def test_the_template_is_a_valid_configuration(pki, tmp_path):
    command = nginx(tmp_path / "nginx", pki, "127.0.0.1:9", "127.0.0.1:9443", "-t")
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | HERE)
    assert done.returncode == 0, done.stderr
    assert "warn" not in done.stderr


@pytest.mark.parametrize(("arguments", "line"), [
    (["nginx"], "1 arguments; use: proxy.sh [-t] FOLDER CERTIFICATES LISTEN SUPERLINK"),
    (
        ["nginx", "no", "1", "a:1"],
        "no/server.crt cannot be read; make it with certificates.sh no NAME",
    ),
    (["nginx", "pki", "1;", "a:1"], 'LISTEN "1;": must be without spaces, quotes and the like'),
    (["nginx", "pki", "1", "a|b"], 'SUPERLINK "a|b": must be without spaces, quotes and the like'),
    (["pki/ca.crt", "pki", "1", "a:1"], "pki/ca.crt: cannot be made; name a folder that can"),
])  # fmt: skip
def test_a_wrong_argument_of_the_proxy_is_one_line(arguments, line, pki, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pki").symlink_to(pki)
    done = script("proxy.sh", *arguments)
    assert (done.status, done.error) == (1, f"proxy.sh: {line}\n")
    assert not (tmp_path / "nginx").exists()


def test_certificates_are_those_of_the_folder_that_was_named(pki, tmp_path, monkeypatch):
    for name in ("here", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pki").symlink_to(pki)
    monkeypatch.chdir(tmp_path / "here")
    done = script("proxy.sh", "-t", "nginx", "pki", "9", "a:1", CDPATH=str(tmp_path / "elsewhere"))
    text = (tmp_path / "here" / "nginx" / "fedapps.conf").read_text()
    assert f"ssl_certificate {tmp_path}/here/pki/server.crt;" in text, done.error


def _worker(folder):
    """User id and group id of a proxy's worker process; None as long as there is none."""
    try:  # nginx listens before it has a file of its id, and that before it has a worker
        pid = int((folder / "nginx.pid").read_text())
        child = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0]
        owner = Path(f"/proc/{child}").stat()
    except (FileNotFoundError, ValueError, IndexError):
        return None
    return owner.st_uid, owner.st_gid


@pytest.mark.skipif(os.geteuid() != 0, reason="2026-11-21: only root can choose whom nginx runs as")
@pytest.mark.parametrize("way", ["owner", "variable"])
def test_workers_of_a_proxy_that_root_starts_are_not_root(way, pki, tmp_path, monkeypatch):
    folder = tmp_path / "nginx"
    folder.mkdir()
    someone = pwd.getpwnam("daemon")
    if way == "owner":
        os.chown(folder, someone.pw_uid, someone.pw_gid)
    else:
        monkeypatch.setenv("PROXY_USER", "daemon")
    with serve_proxy(folder, pki, "127.0.0.1:9"):  # it is root until it has begun
        until(lambda: _worker(folder) == (someone.pw_uid, someone.pw_gid))


@pytest.mark.skipif(os.geteuid() != 0, reason="2026-11-21: only root can choose whom nginx runs as")
def test_workers_that_are_root_are_warned_of(pki, tmp_path):
    log, port = tmp_path / "log", free_port()
    command = nginx(tmp_path / "nginx", pki, f"127.0.0.1:{port}", "127.0.0.1:9")
    with log.open("w") as errors:
        process = subprocess.Popen(command, stderr=errors, env=os.environ | HERE)
    try:
        wait_for_port(port, process)
        until(lambda: _worker(tmp_path / "nginx"))
        assert _worker(tmp_path / "nginx") == (0, 0)
    finally:
        process.terminate()
        process.wait(PATIENCE)
    assert log.read_text().startswith("proxy.sh: warning: workers run as root; name a user who")


@pytest.mark.skipif(os.geteuid() != 0, reason="2026-11-21: only root can choose whom nginx runs as")
def test_a_user_who_is_none_is_one_line(pki, tmp_path):
    arguments = (tmp_path / "nginx", pki, "9", "a:1")
    done = script("proxy.sh", *arguments, PROXY_USER="no-one-here")
    line = f'PROXY_USER "no-one-here": no user here; name one who may enter {tmp_path}/nginx'
    assert (done.status, done.error) == (1, f"proxy.sh: {line}\n")


def test_the_template_says_all_its_variables():
    text = (DEPLOY / "nginx.conf.template").read_text("utf-8")
    used = set(re.findall(r"\$\{(\w+)\}", text))
    assert used == {"LISTEN", "CERTIFICATES", "SUPERLINK"}
    for name in used:
        assert re.search(rf"^#   {name} ", text, re.M)
    assert not set(re.findall(r"\$([A-Z]\w*)", text)), "others are nginx's own, in lower case"


def test_plain_http_is_refused(proxy, seen):
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE) as stream:
        assert ask(stream, CALL) == 400
    assert not seen


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_old_tls_is_refused(proxy, pki):
    for version, fits in ((ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)):
        context = trusting(pki)
        context.set_ciphers("DEFAULT:@SECLEVEL=0")  # else the client does not even ask
        context.minimum_version = context.maximum_version = version
        plain = socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)
        with plain:
            if fits:
                context.wrap_socket(plain, server_hostname="localhost").close()
                continue
            with pytest.raises(ssl.SSLError, match="alert protocol version"):
                context.wrap_socket(plain, server_hostname="localhost")


def test_a_device_with_another_ca_or_name_does_not_connect(proxy, strangers, pki):
    for folder, name in ((strangers, "superlink.example"), (pki, "other.example")):
        with (
            socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE) as plain,
            pytest.raises(ssl.SSLCertVerificationError),
        ):
            trusting(folder).wrap_socket(plain, server_hostname=name)


@pytest.mark.parametrize("kind", ["strange", "expired", "plain"])
def test_the_proxy_talks_only_to_the_superlink(pki, strangers, tmp_path, kind):
    theirs = {"strange": strangers, "plain": None}.get(kind, tmp_path / "pki")
    if kind == "expired":
        theirs.mkdir()
        for name in ("ca.key", "ca.crt"):
            (theirs / name).write_bytes((pki / name).read_bytes())
        make("certificates.sh", "--days", -1, theirs, "a")
    with serve_upstream(theirs) as server:
        superlink = f"127.0.0.1:{server.server_port}"
        with serve_proxy(tmp_path / "nginx", pki, superlink) as running:
            client = http.client.HTTPSConnection(
                "127.0.0.1", running.port, context=trusting(pki), timeout=PATIENCE
            )
            client.request("POST", CALL)
            assert client.getresponse().status == 502
            client.close()
        assert not server.seen


def test_a_busy_device_is_not_refused(connect, seen):
    """Four requests at a time is what a SuperNode has in flight, one after the other."""

    def push(_):
        with connect() as stream:
            return [ask(stream, "/v1/fleet/push-object") for _ in range(250)]

    with ThreadPoolExecutor(4) as threads:
        statuses = [status for part in threads.map(push, range(4)) for status in part]
    assert statuses == [200] * 1000
    assert len(seen) == 1000


def test_devices_that_wait_for_a_message_keep_no_other_from_its_work(connect, post):
    head = f"POST {CALL} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n".encode()
    streams = [connect() for _ in range(140)]
    for stream in streams:
        stream.sendall(head)
    assert post("/v1/fleet/push-object")[0] == 200
    for stream in streams:  # all of them are still there
        stream.sendall(b"0123456789")
        stream.settimeout(PATIENCE)
        assert stream.recv(100).startswith(b"HTTP/1.1 200")
        stream.close()


def test_one_address_cannot_take_all_connections(connect, post, seen):
    head = b"POST /v1/fleet/push-object HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n"
    streams = [connect() for _ in range(140)]
    for stream in streams:
        stream.sendall(head)
        stream.settimeout(0.005)
    answers, end = {}, time.monotonic() + PATIENCE
    while len(answers) < 12 and time.monotonic() < end:
        for number, stream in enumerate(streams):
            with suppress(TimeoutError):
                answers[number] = answers.get(number) or stream.recv(100)
    for stream in streams:
        stream.close()
    assert len(answers) == 12
    assert all(answer.startswith(b"HTTP/1.1 503") for answer in answers.values())
    assert not seen


def test_a_new_certificate_is_taken_without_a_restart(pki, upstream, tmp_path):
    folder = tmp_path / "pki"
    folder.mkdir()
    for path in pki.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    with serve_proxy(tmp_path / "nginx", folder, f"127.0.0.1:{upstream.server_port}") as running:

        def serves(text):
            with suppress(OSError):  # one process drops what is open when it reads its files anew
                return ssl.get_server_certificate(("127.0.0.1", running.port), timeout=5) == text

        assert serves((folder / "server.crt").read_text())
        make("certificates.sh", folder, "superlink.example")
        running.process.send_signal(signal.SIGHUP)
        until(lambda: serves((folder / "server.crt").read_text()), seconds=PATIENCE)
