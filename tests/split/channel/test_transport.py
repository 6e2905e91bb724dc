"""The transport alone: streams, their limits, TLS."""

import socket
from contextlib import ExitStack, contextmanager
from threading import Event

import grpc
import msgspec
import pytest
import torch

from fedapps.split import channel as module
from fedapps.split import connection
from fedapps.split.channel import CLIENT, METHOD, REFUSED, SERVICE, SPARE, TOKEN, ChannelServer
from fedapps.split.client import Link
from fedapps.split.connection import ChannelError, Connection
from fedapps.split.frames import FRAME_HEADER_BYTES, Frame, encode
from fedapps.training.channel import Channel
from tests.support.clock import until
from tests.support.split_rounds import BAD, BROKEN, LONG, RUN, SOON
from tests.support.tls import make_tls

WITHOUT_TOKEN = {(grpc.StatusCode.UNAUTHENTICATED, REFUSED)}


class Echo:
    """A session that lets everybody in and sends back what comes."""

    def __init__(self):
        self.clients, self.streams, self.ends, self.largest = [], {}, {}, 0

    def token(self, client):
        return "token"

    def token_of_missed(self, client):
        return None

    def joined(self, client, stream):
        self.clients.append(client)
        self.streams[client] = stream
        return True

    def arrived(self, frame, tensors):
        self.largest = max(self.largest, *(tensor.nbytes for tensor in tensors.values()), 0)
        self.streams[frame.client].send(frame, tensors)
        return True

    def broken(self, client, reason):
        self.ends[client] = reason

    def refused(self, client, reason):
        self.ends[client] = reason


@contextmanager
def served(tls=None, limit=1000, address="127.0.0.1:0"):
    """A server with such a session, and the channel that leads to it."""
    listener = Echo()
    server = ChannelServer(address, tls, 3, limit)
    server.begin(listener)
    listener.server = server
    try:
        yield (
            listener,
            Channel(address=f"127.0.0.1:{server.port}", token="token", limit=10**6, wait=LONG),
        )
    finally:
        server.stop()


def echo(channel, link=None):
    """Send three numbers there and back."""
    link = link or Link(BAD, channel, Connection(channel, BAD))
    x = torch.arange(3.0)
    link.connection.send(Frame("data", link.client), {"x": x})
    _, tensors = link.connection.receive(link.client, "data", SOON)
    assert torch.equal(tensors["x"], x)
    return link


@pytest.fixture
def strangers():
    """Return call(address, connections, streams, frame=b"", **metadata) -> the streams' calls.

    Each connection is a TCP connection of its own; a stream sends `frame`, if any, and stays open.
    """
    over, connections = Event(), []

    def call(address, count, streams, frame=b"", metadata=()):
        def sent():
            if frame:
                yield frame
            over.wait(LONG)

        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        made = [grpc.insecure_channel(address, options) for _ in range(count)]
        connections.extend(made)
        methods = [one.stream_stream(f"/{SERVICE}/{METHOD}") for one in made]
        return [method(sent(), metadata=metadata) for method in methods for _ in range(streams)]

    yield call
    over.set()
    for one in connections:
        one.close()


def ends(calls):
    """Wait for the end of streams; return their statuses."""
    return {(call.code(), call.details()) for call in calls}


def test_idle_streams_without_a_token_keep_nobody_waiting(strangers):
    """200 of them, on a server with threads for 3 + 8: each would hold one if it had got one.

    gRPC itself refuses streams beyond MAX_STREAMS of a connection, so each connection opens fewer.
    """
    assert module.MAX_STREAMS > 25
    with served() as (listener, channel):
        calls = strangers(channel.address, 8, 25)
        member = echo(channel)
        assert ends(calls) == WITHOUT_TOKEN
        echo(channel, member)
        assert listener.clients == [BAD]
        member.connection.close()


@pytest.mark.parametrize(
    "metadata",
    [
        (), ((CLIENT, str(BAD)),), ((CLIENT, str(BAD)), (TOKEN, "")),
        ((CLIENT, str(BAD)), (TOKEN, "tokeN")), ((CLIENT, "-1"), (TOKEN, "token")),
        ((CLIENT, "9" * 9), (TOKEN, "token")), ((CLIENT, "9" * 5000), (TOKEN, "token")),
        ((CLIENT, "1.0"), (TOKEN, "token")), ((TOKEN, "token"),),
        ((TOKEN + "-bin", b"token"), (CLIENT + "-bin", b"1")),
    ],
)  # fmt: skip
def test_what_a_stream_without_a_token_sends_is_not_looked_at(strangers, monkeypatch, metadata):
    """Nor is it read: no frame is decoded, and there is no thread that reads."""
    decoded, threads = [], []
    monkeypatch.setattr(module, "decode", lambda data: decoded.append(data))
    monkeypatch.setattr(module, "Thread", lambda **about: threads.append(about))
    with served(limit=2**20) as (listener, channel):
        token = listener.token
        listener.token = lambda client: token(client) if client == BAD else None
        frame = encode(Frame("join", BAD, text="token"), {"x": torch.zeros(2**16)})
        assert ends(strangers(channel.address, 1, 3, frame, metadata)) == WITHOUT_TOKEN
        assert listener.clients == decoded == threads == []


def test_a_batch_that_is_too_large_costs_its_client_alone():
    """Sent, it would break the stream of all clients of the SuperNode."""
    with served() as (_, channel):
        link = Link(BAD, msgspec.structs.replace(channel, limit=100), Connection(channel, BAD))
        with pytest.raises(ChannelError, match=r"20 samples are .* use a smaller batch-size"):
            link.exchange(torch.zeros(20), torch.zeros(20, dtype=torch.int64))
        echo(channel, link)
        link.connection.close()


def test_a_stream_that_is_not_read_ends_with_its_session(strangers):
    """Its client would else hold a thread for the rest of the run, another one in each round."""
    metadata, big, calls = ((CLIENT, str(BAD)), (TOKEN, "token")), torch.zeros(2**21), []
    with served(limit=2**24) as (first, channel):
        server, listener = first.server, first
        for _ in range(3 + SPARE):  # as many as it has threads
            calls += strangers(channel.address, 1, 1, metadata=metadata)
            until(lambda now=listener: now.clients == [BAD])
            for _ in range(2):  # more than is taken without having been read
                listener.streams[BAD].send(Frame("begin", BAD), {"x": big})
            listener.streams[BAD].close()
            before, listener = listener, Echo()
            server.begin(listener)
            until(lambda then=before: BAD in then.ends)
        echo(channel).connection.close()


def test_connections_leave_the_run_files_to_open(monkeypatch):
    """Else whoever opens enough of them ends the run: it could not write its tables any more."""
    monkeypatch.setattr(module.resource, "getrlimit", lambda what: (8, 8))
    with served() as (_, channel), ExitStack() as stack:
        host, port = channel.address.split(":")
        made = [
            stack.enter_context(socket.create_connection((host, int(port)), LONG)) for _ in range(6)
        ]
        assert sorted(map(greeted, made)) == [False, False, True, True, True, True]


@pytest.mark.parametrize("files", [-1, 2**63 - 1])  # on Linux and on macOS
def test_no_limit_of_open_files_is_none_of_connections(files, monkeypatch):
    monkeypatch.setattr(module.resource, "getrlimit", lambda what: (files, files))
    with served() as (_, channel):
        echo(channel).connection.close()


def greeted(connection):
    """Tell whether the server has taken a connection: it then speaks first."""
    try:
        return bool(connection.recv(9))
    except ConnectionError:
        return False


def test_a_client_waits_for_a_server_that_cannot_be_reached_yet():
    """Its first attempt fails, as where the network has just come back."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        channel = Channel(address=address, token="token", limit=10**6, join=LONG, wait=LONG)
        connected = Connection(channel, BAD)
        other.accept()[0].close()
    with served(address=address):
        echo(channel, Link(BAD, channel, connected)).connection.close()


def test_a_client_that_has_waited_in_vain_says_so():
    with served() as (_, before):
        channel = msgspec.structs.replace(before, join=0.1)
    with pytest.raises(ChannelError, match=r"^the channel broke: failed to connect"):
        echo(channel)


def test_a_run_does_not_use_the_stream_of_the_one_before(monkeypatch):
    """A client that Ctrl-C has left holds it; both runs have the same `channel-address`."""
    with ExitStack() as left:
        with served() as (_, old):
            held = left.enter_context(connection.connection(old, BAD))
        monkeypatch.setattr(connection, "aborted", {old.token})
        with served(address=old.address) as (listener, same):
            listener.token = lambda client: "new"
            channel = msgspec.structs.replace(same, token="new", join=LONG)
            with connection.connection(channel, BAD) as connected:
                assert connected is not held
                link = echo(channel, Link(BAD, channel, connected))
                left.close()
                with connection.connection(channel, 2) as shared:
                    assert shared is connected
                echo(channel, link)
    assert old.address not in connection._connections


def test_a_frame_beyond_the_limit_breaks_its_stream_only():
    with served(limit=1000) as (listener, channel):
        small, large = (Link(client, channel, Connection(channel, client)) for client in (0, 1))
        echo(channel, small)
        echo(channel, large)
        large.connection.send(
            Frame("data", 1), {"x": torch.zeros((1000 + FRAME_HEADER_BYTES) // 4)}
        )
        with pytest.raises(ChannelError, match="Received message larger than max"):
            large.connection.receive(1, "data", SOON)
        until(lambda: 1 in listener.ends)
        assert BROKEN.match(listener.ends[1])
        echo(channel, small)
        assert listener.ends.keys() == {1}
        assert listener.largest == 12
        small.connection.close()


def test_tls_changes_no_number(serial_run, tiny_npz, untimed_rounds, tmp_path, monkeypatch):
    secure, made = [], ChannelServer.__post_init__
    monkeypatch.setattr(
        ChannelServer, "__post_init__", lambda server: (secure.append(server.tls), made(server))[1]
    )
    folder = make_tls(tmp_path / "tls")
    options = ("", f'channel-tls="{folder}"')
    rounds = [untimed_rounds(serial_run(tiny_npz, RUN, "num-rounds=2", o)) for o in options]
    assert secure == [None, folder]
    assert len(rounds[0]) == 2 and float(rounds[0][0]["train_loss"]) > 0
    assert rounds[0] == rounds[1]


def test_only_clients_that_trust_the_servers_ca_reach_it(tmp_path):
    """Plain text and another CA fail at once; the right certificate reaches the session."""
    tls, other = make_tls(tmp_path / "tls"), make_tls(tmp_path / "other")
    with served(tls=tls) as (listener, channel):
        for certificate in ("", (other / "ca.crt").read_text()):
            with pytest.raises(ChannelError, match="the channel broke"):  # or: no answer in SOON
                echo(msgspec.structs.replace(channel, certificate=certificate))
        assert listener.clients == []
        right = (tls / "ca.crt").read_text()
        echo(msgspec.structs.replace(channel, certificate=right)).connection.close()
        assert listener.clients == [BAD]
