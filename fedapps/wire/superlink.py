"""A SuperLink that takes less time for each request, and offers long polling to devices.

**Less time.** Each request to Flower's web server passes eight or nine layers (who asks, what is
logged, ...). Each layer starts a task and hands the answer on as a stream, which takes more time
than all the rest. Here, layers and order are Flower's, but answers to devices and apps are
buffered: each layer hands them on as a whole. (Operators get streams, so theirs are left alone.)
Then three to five functions look up what the answer needs, such as the SuperLink's state, each in a
thread of its own. Those of `LOOKUPS` only read a field, so they are called where they are needed.

**Long polling.** A SuperNode asks again and again whether there is a message. One that says how
long it would wait for an answer (`Prefer: wait=3`, RFC 7240) is answered when there is a message,
or after this time (at most `LONGEST`). So it asks as rarely as Flower's own, and loses no time.
`fedapps supernode` says so (`device/waiting.py`); Flower's SuperNode is answered as ever.
"""

import asyncio
import os
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fedapps.core import flower
from fedapps.core.flower import ChangedError, Known, Overlay, leave_as_it_is

LONGEST = 3.0  # seconds that an answer (and the end of a SuperLink) waits; Flower asks as often
RECORDS = 0.03  # seconds after a message until its records have come from the app, too
BUFFERED = ("/v1/fleet/", "/v1/runtime/")  # paths at which no answer to protobuf is a stream
IS_BUFFERED = "fedapps.buffered"  # in the scope of such a request
PULL, PUSH = "/v1/fleet/pull-messages", "/v1/runtime/push-messages"
COMMAND = Known(
    "flwr.superlink.cli.flower_superlink",
    holds={"uvicorn": uvicorn},
    finds={r"\buvicorn\.(\w+)\(": {"run"}, r"\bapp=(\w+)": {"fastapi_app"}},
)
TYPES = Known("flwr.supercore.protobuf.translation", has=("PROTOBUF_REQUEST_TYPES",))
ROUTES = tuple(
    Known(module, finds={r"-> \w*(Iterator|Generator|Stream)": set()})
    for module in ("flwr.superlink.routers.fleet.router", "flwr.supercore.routers.runtime.router")
)

DEPENDENCIES = Known(
    "fastapi.dependencies.utils",
    finds={r"await run_in_threadpool\((.*)\)": {"call, **solved_result.values"}},
    has=("run_in_threadpool",),
)
LOOKUPS = (
    Known("flwr.superlink.dependencies.linkstate", parameters={"get_linkstate": ("request",)}),
    Known("flwr.supercore.protobuf.translation", parameters={"get_protobuf_request": ("request",)}),
    Known(
        "flwr.supercore.dependencies.runtime",
        parameters={"get_runtime_state": ("request",), "get_runtime_handlers": ("request",)},
    ),
    Known(
        "flwr.supercore.dependencies.version",
        parameters={"VersionDependency.__call__": ("self", "request")},
    ),
)


class Buffered(BaseHTTPMiddleware):
    """Mixed into a layer: it hands answers on as a whole, and otherwise does what it did."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if IS_BUFFERED not in scope:
            await super().__call__(scope, receive, send)
            return

        async def answer_within(_: Request) -> Response:
            return await answered(self.app, scope, receive)

        response = await self.dispatch_func(Request(scope, receive), answer_within)
        await response(scope, receive, send)


class LongPolling:
    """The outermost layer: it holds an answer to a SuperNode back until there is a message.

    `types` are Flower's classes of requests by method and path.
    """

    def __init__(self, app: ASGIApp, types: Any) -> None:
        self.app, self.types = app, types
        self.waiting: dict[int, list[asyncio.Future[bool]]] = {}  # by SuperNode

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if not path.startswith(BUFFERED) or (scope.get("method"), path) not in self.types:
            await self.app(scope, receive, send)
            return
        try:
            body = await Request(scope, receive).body()
        except ClientDisconnect:
            return

        async def answer() -> Response:
            async def again() -> Message:
                await asyncio.sleep(0)  # who waits here for the end of a connection stops no other
                return {"type": "http.request", "body": body, "more_body": False}

            own = {**scope, "state": {**scope.get("state", {})}, IS_BUFFERED: True}
            return await answered(self.app, own, again)

        if path == PULL and (seconds := seconds_to_wait(scope)):
            response = await self.hold(self.parsed(PULL, body), seconds, answer, receive)
        else:
            response = await answer()
        if path == PUSH and response.status_code == 200:
            for message in self.parsed(PUSH, body).messages_list:
                self.wake(message.metadata.dst_node_id)
        await response(scope, receive, send)

    async def hold(
        self, asked: Any, seconds: float, answer: Callable[[], Any], receive: Receive
    ) -> Response:
        """Answer when there is a message for a SuperNode, and without one after some seconds.

        A message is handed out once. So nothing is handed out to a SuperNode that has gone, or that
        has asked again: its first connection was cut, which only one end of it may know.
        """
        node = asked.node.node_id if asked else 0
        mine: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self.waiting.setdefault(node, []).append(mine)  # first, or a message could be overlooked
        gone = asyncio.ensure_future(receive())
        try:
            response: Response = await answer()
            if response.status_code != 200:
                return response
            response.headers["preference-applied"] = "wait"
            if response.body or (mine.done() and not mine.result()):
                return response
            settle([other for other in self.waiting[node] if other is not mine], False)
            first: set[asyncio.Future[Any]] = {mine, gone}
            await asyncio.wait(first, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if mine.done() and mine.result() and not gone.done():
                found = await answer()
                if found.status_code == 200:  # else it is as if there were no message yet
                    response = found
                    response.headers["preference-applied"] = "wait"
            return response
        finally:
            gone.cancel()
            self.waiting[node].remove(mine)
            if not self.waiting[node]:
                del self.waiting[node]

    def wake(self, node: int) -> None:
        """Answer a SuperNode that waits, as soon as the records of its message have come."""
        if node in self.waiting:
            loop = asyncio.get_running_loop()
            loop.call_later(RECORDS, settle, [*self.waiting[node]], True)

    def parsed(self, path: str, body: bytes) -> Any:
        """Return the request in a body; None if it is none, which is refused later."""
        try:
            return self.types["POST", path].FromString(body)
        except ValueError:  # DecodeError is one
            return None


def settle(futures: list["asyncio.Future[bool]"], result: bool) -> None:
    """Give a result to those that have none."""
    for future in futures:
        if not future.done():
            future.set_result(result)


def seconds_to_wait(scope: Scope) -> float:
    """Return for how long an answer may be held back; 0 if the request does not say so."""
    for name, value in scope["headers"]:
        if name == b"prefer" and (found := re.fullmatch(rb"wait=(\d{1,6})", value)):
            return min(float(found[1]), LONGEST)
    return 0.0


async def answered(app: ASGIApp, scope: Scope, receive: Receive) -> Response:
    """Return the whole answer of an app; raises what it raises."""
    sent: list[Message] = []

    async def keep(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, keep)
    starts = [message for message in sent if message["type"] == "http.response.start"]
    if not starts:
        raise RuntimeError(f"{scope['path']}: there is no answer")
    response = Response(b"".join(m.get("body", b"") for m in sent), starts[0]["status"])
    response.raw_headers = [*starts[0]["headers"]]
    return response


def run(app: Starlette, types: Any, **options: Any) -> None:
    """Stand for `uvicorn.run`: serve Flower's web application, with the layers above."""
    app.user_middleware = [buffered(layer) for layer in app.user_middleware]
    uvicorn.run(LongPolling(app, types), **options)


def buffered(layer: Middleware) -> Middleware:
    """Return a layer that hands answers on as a whole, if it is one that hands on streams."""
    made: Any = layer.cls
    if not isinstance(made, type) or made.__call__ is not BaseHTTPMiddleware.__call__:
        return layer
    changed: Any = type(made.__name__, (Buffered, made), {})
    return Middleware(changed, *layer.args, **layer.kwargs)


def answer_sooner() -> None:
    """Let this process, which is to become a SuperLink, answer as described above.

    If Flower's code is not as expected, it is left unchanged, with a log line.
    """
    try:
        command, types = COMMAND.load(), TYPES.load().PROTOBUF_REQUEST_TYPES
        for routes in ROUTES:
            routes.load()
        if not {("POST", PULL), ("POST", PUSH)} <= {*types}:
            raise ChangedError(f"{TYPES.module} does not know {PULL} and {PUSH}")
    except ChangedError as error:
        cost = "a round takes about twice as long with many devices"
        leave_as_it_is("how the SuperLink answers", str(error), cost)
        return
    vars(command)["uvicorn"] = Overlay(uvicorn, run=partial(run, types=types))


def look_up_at_once() -> None:
    """Let this process call `LOOKUPS` without a thread for each.

    If their code or FastAPI's is not as expected, it is left unchanged, with a log line.
    """
    try:
        fastapi = DEPENDENCIES.load()
        quick = {
            getattr(known.load(), name.partition(".")[0])
            for known in LOOKUPS
            for name in known.parameters
        }
    except ChangedError as error:
        cost = "a request takes about a quarter longer"
        leave_as_it_is("how the SuperLink looks up its state", str(error), cost)
        return
    in_thread = fastapi.run_in_threadpool

    async def called(call: Any, **values: Any) -> Any:
        if call in quick or type(call) in quick:
            return call(**values)
        return await in_thread(call, **values)

    vars(fastapi)["run_in_threadpool"] = called


def main() -> None:
    """Run a SuperLink until it is told to end."""
    os.environ.update(flower.environment())
    answer_sooner()
    look_up_at_once()
    flower.command("flower-superlink")()
