"""The SuperNode's end of the channel of split learning: one stream, shared by its clients."""

import queue
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Lock, Thread

import grpc
from torch import Tensor

from fedapps.core.errors import DIVERGED, DivergedError, cause_of
from fedapps.split.channel import CLIENT, METHOD, SERVICE, TOKEN, grpc_options
from fedapps.split.frames import Frame, Kind, Tensors, decode, encode
from fedapps.split.session import aborted
from fedapps.training.channel import Channel

Received = tuple[Frame, dict[str, Tensor]]


class ChannelError(RuntimeError):
    """The channel ended, or the server dropped this client; the text says why."""


class Connection:
    """A SuperNode's stream to the server, shared by the clients that run here at the same time.

    `client` opens the stream with the token in its `channel`, which is then its `token`; other
    clients join with a frame. `connection` counts its `users`.
    """

    def __init__(self, channel: Channel, client: int) -> None:
        self.token, self.users = channel.token, 0
        self._first: int | None = client
        options = grpc_options(channel.limit)
        if channel.certificate:
            credentials = grpc.ssl_channel_credentials(channel.certificate.encode())
            self._channel = grpc.secure_channel(channel.address, credentials, options)
        else:
            self._channel = grpc.insecure_channel(channel.address, options)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._inboxes: dict[int, queue.SimpleQueue[Received | str]] = {client: queue.SimpleQueue()}
        self._ended = ""
        self._lock = Lock()
        Thread(target=self._read, args=(channel, client), daemon=True).start()

    def join(self, client: int, token: str) -> None:
        """Let a client take part, and prepare to receive frames for it."""
        with self._lock:
            if client == self._first:  # joined when it opened the stream; frames may be here
                self._first = None
                return
            self._inboxes[client] = queue.SimpleQueue()
            if self._ended:
                self._inboxes[client].put(self._ended)
        self.send(Frame("join", client, text=token))

    def send(self, frame: Frame, tensors: Tensors | None = None) -> None:
        """Queue a frame."""
        self._outbox.put(encode(frame, tensors))

    def receive(self, client: int, kind: Kind, wait: float) -> Received:
        """Return the next frame to a client; raises `ChannelError` if it is not of `kind`.

        Raises `DivergedError` if the server dropped the client because its training has diverged.
        """
        try:
            received = self._inboxes[client].get(timeout=wait)
        except queue.Empty:
            raise ChannelError(f"no answer from the server in {wait:g} s") from None
        if isinstance(received, str):
            raise ChannelError(received)
        if received[0].kind == "drop":
            if (why := received[0].text).startswith(DIVERGED):
                raise DivergedError(why, why)
            raise ChannelError(f"the server dropped this client: {why}")
        if received[0].kind != kind:
            raise ChannelError(f"the server sent {received[0].kind}, but {kind} was due")
        return received

    def close(self) -> None:
        """End the stream after all queued frames have been sent."""
        self._outbox.put(None)

    def _read(self, channel: Channel, client: int) -> None:
        """Open the stream and read it to its end, then tell all clients why it has ended."""
        reason = "the server ended the channel"
        probe = self._channel.unary_unary(f"/{SERVICE}/Probe")  # there is none: it only connects
        stream = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        metadata = ((CLIENT, str(client)), (TOKEN, channel.token))
        try:
            with suppress(grpc.RpcError):  # without a connection, the stream says why
                probe(b"", timeout=channel.join, wait_for_ready=True)
            for data in stream(iter(self._outbox.get, None), metadata=metadata):
                frame, tensors = decode(data)
                if frame.client in self._inboxes:
                    self._inboxes[frame.client].put((frame, tensors))
        except grpc.RpcError as error:  # the error of a call has a code and details
            refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            what = "the server refused the stream" if refused else "the channel broke"
            reason = f"{what}: {error.details()}"
        except Exception as error:  # clients that wait for a frame must be told
            reason = f"the channel broke: {error}"
        with self._lock:
            self._ended = reason
            for waiting in self._inboxes.values():
                waiting.put(reason)
        self._channel.close()


_connections: dict[str, Connection] = {}  # by address
_joined: dict[int, str] = {}  # by client: the token with which it has joined last
_lock = Lock()


@contextmanager
def connection(channel: Channel, client: int) -> Iterator[Connection]:
    """Provide this process's stream to a server; the first client opens it, the last closes it.

    Raises `ChannelError` if the server was in this process and its run has ended (Ctrl-C, say).
    """
    if channel.token in aborted:
        raise ChannelError("the run has ended")
    with _lock:
        _joined[client] = channel.token
        known = _connections.get(channel.address)
        if known is None or known.token in aborted:  # clients of an ended run may still hold it
            known = _connections[channel.address] = Connection(channel, client)
        known.users += 1
    try:
        yield known
    finally:
        with _lock:
            known.users -= 1
            if not known.users:
                known.close()
                if _connections.get(channel.address) is known:
                    del _connections[channel.address]


def withdraw(channel: Channel | None, client: int, error: Exception) -> None:
    """Tell the server of a client that fails before it joins, so that nobody waits for it.

    What comes later, it says itself; and without a channel, nobody waits. Raises `ChannelError` as
    `connection` does: so the thread of a client that a run has left ends without a word.
    """
    if channel and (channel.token in aborted or _joined.get(client) != channel.token):
        with connection(channel, client) as connected:
            connected.join(client, channel.token)
            connected.send(Frame("failed", client, text=cause_of(error)))
