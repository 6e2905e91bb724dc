"""What the connection of a SuperNode to its SuperLink survives beyond what Flower's survives.

Flower 1.41 tries a request again after errors of the network, but not after all of them:

- It takes any error that mentions TLS for a bad certificate. But a connection that is cut in the
  middle, or on which nothing comes any more, mentions it, too, and the SuperNode would end.
- If the answer to an upload is lost, the upload that is tried again is refused, because its bytes
  are there already. The reply to the server would be dropped.
- A proxy answers 408 if an upload takes too long.
- If a heartbeat meets an error of the server, no further one is sent, and the SuperLink takes the
  SuperNode for gone for as long as it runs.
"""

from collections.abc import Callable
from typing import Any

from fedapps.core import log
from fedapps.core.flower import ChangedError, Known, leave_as_it_is

# What Python says of a connection that was cut in a handshake; it depends on the moment.
CUT = ("eof occurred in violation of protocol", "connection has been closed (eof)")
TIMEOUT, ERROR = 408, 500  # HTTP statuses
CONNECTION = Known(
    "flwr.supernode.fleet_http_connection",
    finds={r"\bHeartbeatSender\((.*)\)": {"send_node_heartbeat"}},
    parameters={
        "make_simple_http_retry_invoker": (),
        "make_push_object_fn_protobuf": ("push_object_protobuf", "node", "run_id", "session_id"),
        "HeartbeatSender.__init__": ("self", "heartbeat_fn"),
    },
    has=("httpx.TimeoutException", "httpx.TransportError", "httpx.HTTPStatusError"),
)
PUSHES = Known("flwr.supercore.inflatable.inflatable_protobuf_utils", has=("ObjectPushError",))


def keep_trying() -> None:
    """Let this process, which is to become a SuperNode, survive more errors of its network.

    If Flower's code is not as expected, it is left unchanged, with a log line.
    """
    try:
        flower, pushes = CONNECTION.load(), PUSHES.load()
    except ChangedError as error:
        cost = "the SuperNode may end, or lose a round, when its connection is cut"
        leave_as_it_is("how requests are tried again", str(error), cost)
        return
    names = vars(flower)
    names["make_simple_http_retry_invoker"] = patient(flower.make_simple_http_retry_invoker, flower)
    names["make_push_object_fn_protobuf"] = twice(
        flower.make_push_object_fn_protobuf, pushes.ObjectPushError
    )
    names["HeartbeatSender"] = steady(flower.HeartbeatSender, flower.httpx.HTTPStatusError)


def patient(make: Callable[[], Any], flower: Any) -> Callable[[], Any]:
    """Return a maker of Flower's `RetryInvoker` that also tries again after the errors above."""
    http = flower.httpx

    def passes(error: Exception) -> bool:
        if isinstance(error, http.HTTPStatusError):
            return bool(error.response.status_code == TIMEOUT)
        told = str(error).lower() if isinstance(error, http.TransportError) else ""
        return any(cut in told for cut in CUT) or isinstance(error, http.TimeoutException)

    def made() -> Any:
        invoker = make()
        gives_up = invoker.should_giveup
        invoker.should_giveup = lambda error: not passes(error) and gives_up(error)
        return invoker

    return made


def twice(make: Callable[..., Callable[[str, bytes], None]], refused: type[Exception]) -> Any:
    """Return a maker of upload functions for which bytes that are refused are there already.

    If they are refused for another reason, the server does not find them, which costs the reply as
    it would have anyway.
    """

    def made(*args: Any) -> Callable[[str, bytes], None]:
        push = make(*args)

        def push_object(object_id: str, content: bytes) -> None:
            try:
                push(object_id, content)
            except refused as error:
                log.debug("%s", error)

        return push_object

    return made


def steady(sender: Callable[..., Any], failed: type[Exception]) -> Callable[..., Any]:
    """Return a maker of Flower's `HeartbeatSender` that goes on after an error of the server."""

    def made(beat: Callable[[], bool]) -> Any:
        def beat_or_again() -> bool:
            try:
                return beat()
            except failed as error:
                if error.response.status_code < ERROR:  # type: ignore[attr-defined]
                    raise
                return False

        return sender(beat_or_again)

    return made
