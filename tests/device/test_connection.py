"""What the connection of a SuperNode survives, with Flower's own parts over real TLS."""

import threading
from types import SimpleNamespace

import httpx
import pytest
from flwr.proto.message_pb2 import PushObjectResponse
from flwr.proto.node_pb2 import Node
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError

from fedapps.core.flower import leave_as_it_is
from fedapps.device import connection
from tests.deploy.conftest import pki, strangers  # noqa: F401 (fixtures)
from tests.deploy.helpers import serve_upstream, trusting
from tests.support.clock import until
from tests.support.relay import Relay

FLOWER = connection.CONNECTION.load()


@pytest.fixture
def network(pki):  # noqa: F811
    """A relay before a server with a certificate; `ask` asks this until it answers."""
    with serve_upstream(pki) as upstream, Relay(upstream.server_port) as relay:

        def ask(make, patience=30.0, trusted=pki):
            invoker = make()
            invoker.wait_function = lambda _: None
            with httpx.Client(verify=trusting(trusted), timeout=patience) as client:
                url = f"https://127.0.0.1:{relay.port}/"
                headers, name = {"Host": "localhost"}, {"sni_hostname": "localhost"}
                return invoker.invoke(client.post, url, headers=headers, extensions=name).content

        yield SimpleNamespace(relay=relay, ask=ask, upstream=upstream)


flowers = FLOWER.make_simple_http_retry_invoker
ours = connection.patient(flowers, FLOWER)


def test_a_connection_that_is_closed_in_a_handshake(network):
    network.relay.resets = False
    for _ in range(2):
        network.relay.lose_answer(1)
        assert network.ask(ours) == b"pong"
    assert network.relay.cut == 2
    network.relay.lose_answer(1)
    with pytest.raises(httpx.ConnectError):  # otherwise `connection.py` is superfluous
        network.ask(flowers)


def test_a_handshake_that_nobody_answers(network):
    network.relay.die()

    def revive():
        until(lambda: network.relay.stalled > 2)
        network.relay.revive()

    thread = threading.Thread(target=revive)
    thread.start()
    assert network.ask(ours, patience=0.5) == b"pong"
    thread.join()
    network.relay.die()
    with pytest.raises(httpx.ConnectTimeout):
        network.ask(flowers, patience=0.5)


def test_a_certificate_of_a_stranger_is_not_tried_again(network, strangers):  # noqa: F811
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        network.ask(ours, trusted=strangers)


@pytest.mark.parametrize(("status", "again"), [(408, True), (503, True), (404, False)])
def test_which_answers_are_tried_again(status, again):
    answers = iter([status, 200])

    def answer(request):
        return httpx.Response(next(answers))

    invoker = ours()
    invoker.wait_function = lambda _: None
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:

        def ask():
            return client.get("http://x").raise_for_status().status_code

        if again:
            assert invoker.invoke(ask) == 200
        else:
            with pytest.raises(httpx.HTTPStatusError):
                invoker.invoke(ask)


@pytest.mark.parametrize(("said", "again"), [
    ("EOF occurred in violation of protocol (_ssl.c:992)", True),
    ("TLS/SSL connection has been closed (EOF) (_ssl.c:992)", True),
    ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed (_ssl.c:992)", False),
])  # fmt: skip
def test_what_is_said_of_a_handshake_tells_a_cut_from_a_wrong_certificate(said, again):
    errors = [httpx.ConnectError(said)]
    invoker = ours()
    invoker.wait_function = lambda _: None

    def ask():
        if errors:
            raise errors.pop()
        return b"pong"

    if again:
        assert invoker.invoke(ask) == b"pong"
    else:
        with pytest.raises(httpx.ConnectError):
            invoker.invoke(ask)


def test_bytes_that_are_there_already_do_not_fail_an_upload():
    asked = []

    def push(request):
        asked.append(request.object_content)
        return PushObjectResponse(stored=False)

    make = connection.twice(FLOWER.make_push_object_fn_protobuf, ObjectPushError)
    make(push, Node(node_id=1), 2, "session")("id", b"content")
    assert asked == [b"content"]

    def refuse(request):
        raise httpx.ReadError("gone")

    with pytest.raises(httpx.ReadError):
        make(refuse, Node(node_id=1), 2, "session")("id", b"content")


def test_heartbeats_go_on_after_an_error_of_the_server():
    answers = [500, 200]
    beaten = threading.Event()

    def beat():
        status = answers.pop(0)
        httpx.Response(status, request=httpx.Request("POST", "http://x")).raise_for_status()
        beaten.set()
        return True

    sender = connection.steady(FLOWER.HeartbeatSender, httpx.HTTPStatusError)(beat)
    sender.start()
    assert beaten.wait(120)
    sender.stop()
    answers[:] = [404]
    made = connection.steady(lambda beat: beat, httpx.HTTPStatusError)
    with pytest.raises(httpx.HTTPStatusError):
        made(beat)()


def test_another_flower_is_left_as_it_is(monkeypatch, capsys):
    leave_as_it_is.cache_clear()
    names = ("make_simple_http_retry_invoker", "make_push_object_fn_protobuf", "HeartbeatSender")
    for name in names:
        monkeypatch.setattr(FLOWER, name, getattr(FLOWER, name))
    before = [getattr(FLOWER, name) for name in names]
    connection.keep_trying()
    assert all(getattr(FLOWER, name) is not was for name, was in zip(names, before, strict=True))
    assert not capsys.readouterr().out
    monkeypatch.undo()
    monkeypatch.delattr(FLOWER, "HeartbeatSender")
    connection.keep_trying()
    assert FLOWER.make_push_object_fn_protobuf is before[1]
    assert "how requests are tried again is left as it is" in capsys.readouterr().out
