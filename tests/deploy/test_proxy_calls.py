"""What of a device's requests reaches the SuperLink, and what does not."""

import hashlib
import http.client
import http.server
import random
import re
import socket
from contextlib import suppress

import pytest

from tests.deploy.helpers import CALL, MIB, TRICKS, ask


@pytest.mark.parametrize("size", [0, 10, 6 * MIB])
def test_a_call_of_a_device_passes_unchanged(post, seen, size):
    body = random.Random(size).randbytes(size)
    mine = {
        "Content-Type": "application/protobuf",
        "flwr-public-key": "AAAA+/=",
        "flwr-signature": "c2ln",
        "flwr-timestamp": "2026-01-01T00:00:00+00:00",
        "Accept": "application/protobuf",
        "User-Agent": "python-httpx/0.28",
    }
    path = "/v1/fleet/push-object"
    assert post(path, body, mine) == (200, b"pong")
    (call,) = seen
    assert call.path == path
    assert hashlib.sha256(call.body).digest() == hashlib.sha256(body).digest()
    assert {name: call.headers[name] for name in mine} == mine
    rest = {name.lower() for name in call.headers} - {name.lower() for name in mine}
    assert rest <= {
        "host", "content-length", "accept-encoding", "x-forwarded-for", "x-forwarded-proto",
    }  # fmt: skip


def test_a_question_for_messages_is_small(post, seen):
    assert post(CALL, bytes(4096))[0] == 200
    assert post(CALL, bytes(4097))[0] == 413
    assert len(seen) == 1


def test_a_device_does_not_say_who_it_is_or_where(post, seen):
    lies = {
        "Host": "superlink.example", "X-Forwarded-For": "192.0.2.1", "X-Forwarded-Proto": "http",
    }  # fmt: skip
    assert post(headers=lies)[0] == 200
    headers = seen[0].headers
    assert headers["Host"] == "localhost"
    assert headers.get_all("X-Forwarded-For") == ["127.0.0.1"]
    assert headers.get_all("X-Forwarded-Proto") == ["https"]


@pytest.mark.parametrize("target", TRICKS)
def test_a_device_gets_nowhere_else(connect, seen, target):
    with connect() as stream:
        assert ask(stream, target) in (400, 404)
    assert not seen


def test_whatever_paths_are_made_of_only_calls_of_devices_arrive(connect, seen):
    parts = [
        "v1", "fleet", "control", "pull-messages", "..", ".", "%2e%2e", "%2f", "", ";", "?", "#",
    ]  # fmt: skip
    draws = random.Random(0)
    stream = connect()
    for _ in range(1000):
        words = draws.choices(parts, [6, 6, 3, 5, 2, 1, 1, 1, 2, 1, 1, 1], k=draws.randint(2, 6))
        target = "/" + draws.choice("//////\\").join(words)
        allowed = bool(re.fullmatch("/v1/fleet/[a-z-]+", target))
        status = ask(stream, target)
        assert status == 200 if allowed else status in (400, 404), target
        if status != 404:  # nginx hangs up after what it cannot read
            stream.close()
            stream = connect()
    stream.close()
    assert {call.path for call in seen} <= {f"/v1/fleet/{word}" for word in parts if word.isascii()}
    assert seen
    assert all(re.fullmatch("/v1/fleet/[a-z-]+", call.path) for call in seen)


@pytest.mark.parametrize("header", [
    "X-Original-URL: /v1/control/list-runs",
    "X-Rewrite-URL: /v1/control/list-runs",
    "X-Forwarded-Prefix: /v1/control",
    "X-Forwarded-Host: a/v1/control/list-runs?",
    "Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABk",
])  # fmt: skip
def test_headers_do_not_change_where_a_request_goes(connect, seen, header):
    with connect() as stream:
        assert ask(stream, CALL, f"{header}\r\n") == 200
        assert ask(stream, "/v1/control/list-runs", f"{header}\r\n") == 404
        assert ask(stream, "/", f"{header}\r\n") == 404
    assert [call.path for call in seen] == [CALL]
    assert seen[0].headers["Upgrade"] is None


def test_a_whole_address_is_a_path_and_its_host_is_not_passed_on(connect, seen):
    with connect() as stream:
        assert ask(stream, f"https://192.0.2.1{CALL}") == 200
    assert [(call.path, call.headers["Host"]) for call in seen] == [(CALL, "localhost")]


@pytest.mark.parametrize("host", ["a/v1/control/list-runs?", "a\x00", "a b"])
def test_a_host_that_is_none_is_refused(connect, seen, host):
    with connect() as stream:
        stream.sendall(
            f"POST {CALL} HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n\r\n".encode()
        )
        assert stream.recv(100).startswith(b"HTTP/1.1 400")
    assert not seen


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT"])
def test_calls_are_posted(connect, seen, method):
    with connect() as stream:
        assert ask(stream, CALL, method=method) in (400, 404, 405)
    assert not seen


def test_a_second_request_cannot_hide_in_the_first(connect, seen):
    second = "POST /v1/control/list-runs HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"
    both = f"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{second}"
    with connect() as stream:
        assert ask(stream, CALL, both) == 400  # two lengths
    doubled = f"Content-Length: {len(second)}\r\n\r\n{second}"
    with connect() as stream:
        assert ask(stream, CALL, doubled) == 400
    with connect() as stream:
        stream.sendall(
            f"POST {CALL} HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n{second}".encode()
        )
        statuses = []
        for _ in range(2):
            answer = http.client.HTTPResponse(stream)
            answer.begin()
            answer.read()
            statuses.append(answer.status)
    assert sorted(statuses) == [200, 404] or statuses == [200]
    assert [call.path for call in seen] == [CALL]


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_over_the_limit_is_refused_before_the_superlink(connect, seen, chunked):
    size = 9 * MIB
    length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
    with connect() as stream:
        stream.sendall(f"POST {CALL} HTTP/1.1\r\nHost: a\r\n{length}\r\n\r\n".encode())
        if chunked:
            stream.sendall(f"{size:x}\r\n".encode() + bytes(MIB))
        assert stream.recv(100).startswith(b"HTTP/1.1 413")
    assert not seen


def test_a_body_that_never_comes_whole_stays_at_the_proxy(connect, post, seen):
    with connect() as stream:
        stream.sendall(
            f"POST {CALL} HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n12345".encode()
        )
        stream.shutdown(socket.SHUT_WR)
        with suppress(OSError):
            while stream.recv(100):
                pass  # the proxy is done with it when it hangs up
    assert post(body=b"whole") == (200, b"pong")
    assert [call.body for call in seen] == [b"whole"]
