"""The channel of split learning: bidirectional gRPC streams besides Flower's messages.

Split learning exchanges tensors at every step, and a Flower message takes 0.1 s or more. So the
ServerApp serves this channel itself. A train message opens the round; it has the address and a
one-time token per client. One stream serves all clients of a SuperNode (`connection.py` is its
other end). Streams carry frames (`frames.py`).

A stranger without a token of the round costs the server next to nothing: the metadata of a stream
name a client and its token, and the server checks them before it gives the stream a thread or reads
from it. So there are never more streams than tokens. The other clients of a SuperNode join with a
frame.
"""

import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from secrets import compare_digest
from threading import Lock, Thread

import grpc
from torch import Tensor

from fedapps.core.errors import RunError, one_line
from fedapps.split.frames import FRAME_HEADER_BYTES, Frame, Stream, decode
from fedapps.split.session import Session

SERVICE, METHOD = "fedapps.Split", "Exchange"
CLIENT, TOKEN = "fedapps-client", "fedapps-token"  # keys of a stream's metadata
SPARE = 8  # threads besides those of the streams; they refuse streams without a token
REFUSED = "wrong or used token"
MAX_STREAMS = 32  # streams of one TCP connection at the same time; a SuperNode has one
NO_STREAM = 30.0  # seconds until a TCP connection without a stream or handshake is closed


@dataclass
class ChannelServer(grpc.GenericRpcHandler):
    """Serves the channel at `address` (host:port, port 0: any) for a run; one session at a time.

    `tls` is a folder with server.crt and server.key, and with ca.crt for the clients. A frame has
    at most `limit` bytes of tensors. At most `streams` clients have a stream of their own.
    """

    address: str
    tls: Path | None
    streams: int
    limit: int
    port: int = field(init=False)

    def __post_init__(self) -> None:
        self._session: Session | None = None
        self._contexts: set[grpc.ServicerContext] = set()  # of the session's streams
        self._lock = Lock()  # protects session and contexts
        self._threads = ThreadPoolExecutor(self.streams + SPARE, thread_name_prefix="channel")
        self._server = grpc.server(self._threads, options=_server_options(self.limit))
        self._server.add_generic_rpc_handlers((self,))
        try:
            self.port = (
                self._server.add_secure_port(self.address, _server_credentials(self.tls))
                if self.tls
                else self._server.add_insecure_port(self.address)
            )
        except (RuntimeError, ValueError, OSError) as error:
            tls = f' with channel-tls = "{self.tls}"' if self.tls else ""
            reason = one_line(str(error))
            text = f'channel-address = "{self.address}"{tls}: cannot serve: {reason}'
            raise RunError(text) from error
        self._server.start()

    def begin(self, session: Session) -> None:
        """Serve a new session, and cut off streams of the last one that clients still hold open."""
        with self._lock:
            left, self._contexts = self._contexts, set()
            self._session = session
        for context in left:
            context.cancel()

    def stop(self) -> None:
        """End all streams and free the port."""
        self._server.stop(grace=1.0).wait()
        self._threads.shutdown(wait=False)

    def service(self, call: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        """Return the handler of a new stream; called before the stream has a thread.

        It is None if there is no such method.
        """
        if call.method != f"/{SERVICE}/{METHOD}":
            return None
        metadata = dict(call.invocation_metadata)
        session, client = self._session, _number(metadata.get(CLIENT))
        if session is not None and _fits(session.token(client), metadata.get(TOKEN)):
            return grpc.stream_stream_rpc_method_handler(partial(self._serve, session, client))
        why = session and _why_missed(session, client, metadata.get(TOKEN))
        if session is not None and not why:
            session.refused(client, REFUSED)
        return grpc.stream_stream_rpc_method_handler(partial(_turn_away, why or REFUSED))

    def _serve(
        self,
        session: Session,
        client: int,
        requests: Iterator[bytes],
        context: grpc.ServicerContext,
    ) -> Iterator[bytes]:
        """Yield the data queued for the stream until it closes, while a thread reads from it."""
        stream = Stream()
        with self._lock:
            current = session is self._session
            if current:
                self._contexts.add(context)
        try:
            if not current or not session.joined(client, stream):
                session.refused(client, REFUSED)
                context.abort(grpc.StatusCode.UNAUTHENTICATED, REFUSED)
            stream.clients.add(client)
            Thread(target=_read, args=(session, stream, requests), daemon=True).start()
            yield from iter(stream.outbox.get, None)
        finally:
            with self._lock:
                self._contexts.discard(context)


def _turn_away(why: str, requests: Iterator[bytes], context: grpc.ServicerContext) -> None:
    """End a stream without reading from it."""
    context.abort(grpc.StatusCode.UNAUTHENTICATED, why)


def _read(session: Session, stream: Stream, requests: Iterator[bytes]) -> None:
    """Handle the frames of a stream until it ends."""
    reason = "its stream ended"
    try:
        all(_take(session, stream, *decode(data)) for data in requests)
    except Exception as error:  # gRPC raises a bare Exception when the other side is gone
        reason = f"its stream broke{': ' + one_line(str(error)) if str(error) else ''}"
    for client in stream.clients:
        session.broken(client, reason)
    stream.close()


def _take(session: Session, stream: Stream, frame: Frame, tensors: dict[str, Tensor]) -> bool:
    """Handle one frame; False ends the stream."""
    client = frame.client
    if frame.kind == "join" and client not in stream.clients:
        return _join(session, stream, frame)
    if client in stream.late and frame.kind == "failed":
        stream.late.remove(client)
        return True
    if client not in stream.clients:
        session.refused(client, "sent data without having joined")
        return False
    return session.arrived(frame, tensors)


def _join(session: Session, stream: Stream, frame: Frame) -> bool:
    """Let a client take part through the stream of another one; return False to end the stream.

    If a client comes too late, the stream goes on for the others. The client is told the reason
    once for its token, and may send one more frame, which says that it gives up. So nobody can keep
    a stream busy in this way.
    """
    client = frame.client
    if _fits(session.token(client), frame.text) and session.joined(client, stream):
        stream.clients.add(client)
        return True
    if reason := _why_missed(session, client, frame.text):
        stream.late.add(client)
        stream.send(Frame("drop", client, text=reason))
        return True
    session.refused(client, REFUSED)
    stream.send(Frame("drop", client, text=REFUSED))
    return False


def _why_missed(session: Session, client: int, token: str | bytes | None) -> str:
    """Tell who has a client's token why it is lost already; only once, then ""."""
    known = _fits(session.token_of_missed(client), token)
    return session.take_reason(client) if known else ""


def _fits(token: str | None, given: str | bytes | None) -> bool:
    """Tell whether the given token is the right one; False if there is none."""
    given = given.encode() if isinstance(given, str) else given
    return token is not None and given is not None and compare_digest(token.encode(), given)


def _number(text: str | bytes | None) -> int:
    """Return the client id in a stream's metadata, or -1 if it cannot be one."""
    sane = isinstance(text, str) and len(text) < 10 and text.isascii() and text.isdigit()
    return int(text) if text and sane else -1


def grpc_options(limit: int) -> list[tuple[str, int]]:
    """Return gRPC's settings for both ends, for frames of at most `limit` bytes of tensors."""
    return [
        ("grpc.max_receive_message_length", limit + FRAME_HEADER_BYTES),
        ("grpc.max_send_message_length", limit + FRAME_HEADER_BYTES),
        ("grpc.so_reuseport", 0),  # so that a port that another run serves is an error
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", 30_000),  # a client may wait long for its turn
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),  # which the server allows
    ]


def _server_options(limit: int) -> list[tuple[str, int]]:
    """Return gRPC's settings for the server, which limit what a client without a token can hold."""
    return [
        *grpc_options(limit),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.max_allowed_incoming_connections", _most_connections()),
        ("grpc.max_connection_idle_ms", round(1000 * NO_STREAM)),
        ("grpc.server_handshake_timeout_ms", round(1000 * NO_STREAM)),
    ]


def _most_connections() -> int:
    """Return the limit of TCP connections; half of the open files are left for the run."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(files // 2, 2**30) if files > 0 else 2**30  # no limit is -1, on macOS 2**63 - 1


def _server_credentials(folder: Path) -> grpc.ServerCredentials:
    pair = ((folder / "server.key").read_bytes(), (folder / "server.crt").read_bytes())
    return grpc.ssl_server_credentials([pair])
