"""How our SuperLink answers: as Flower's does, but a SuperNode that waits is told of a message."""

import asyncio
from types import SimpleNamespace

import pytest
from fastapi.dependencies import utils as dependencies
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest, SendNodeHeartbeatResponse
from flwr.proto.message_pb2 import Message, Metadata
from flwr.proto.node_pb2 import Node
from flwr.proto.runtime_pb2 import PushAppMessagesRequest
from flwr.supercore.dependencies.version import VersionDependency
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supercore.protobuf.translation import get_protobuf_request
from flwr.supercore.runtime.runtime_http_client import RuntimeHttpClient
from flwr.superlink.dependencies.linkstate import get_linkstate
from flwr.superlink.main import create_app
from flwr.superlink.servicer.fleet import fleet_handlers
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.responses import Response, StreamingResponse
from starlette.testclient import TestClient

from fedapps.device.waiting import Preference, client_with
from fedapps.wire import superlink
from fedapps.wire.superlink import PULL, PUSH, Buffered, LongPolling

TYPES = superlink.TYPES.load().PROTOBUF_REQUEST_TYPES
PROTOBUF = {"content-type": "application/protobuf"}
PATIENCE = 60.0


def flowers():
    """Return Flower's web application, and the same with our layers."""
    plain, app = create_app(), create_app()
    app.user_middleware = [superlink.buffered(layer) for layer in app.user_middleware]
    return plain, LongPolling(app, TYPES)


REQUESTS = {
    "health": ("GET", "/health", b"", {}),
    "nowhere": ("POST", "/v1/fleet/nothing", b"", PROTOBUF),
    "another method": ("GET", PULL, b"", {}),
    "no signature": ("POST", PULL, b"", PROTOBUF),
    "no token": ("POST", PUSH, b"", PROTOBUF),
    "no protobuf": ("POST", PULL, b"\xff\xff", PROTOBUF),
    "another type": ("POST", PULL, b"", {"content-type": "text/plain"}),
    "a stranger waits": ("POST", PULL, b"", PROTOBUF | {"prefer": "wait=3"}),
    "an operator": ("POST", "/v1/control/stop-run", b"", PROTOBUF),
    "a stream": ("POST", "/v1/control/stream-logs", b"", PROTOBUF),
}


def test_each_request_is_answered_as_flower_does():
    said = {name: [] for name in REQUESTS}
    for app in flowers():
        with TestClient(app, raise_server_exceptions=False) as client:
            for name, (method, path, body, headers) in REQUESTS.items():
                answer = client.request(method, path, content=body, headers=headers)
                said[name].append((answer.status_code, answer.headers, answer.content))
    assert {name for name, (flowers_, ours) in said.items() if flowers_ != ours} == set()


def test_a_supernode_with_a_key_is_answered_as_flower_does(monkeypatch):
    monkeypatch.setattr(superlink, "LONGEST", 0.05)
    private, public = generate_key_pairs()
    key = public_key_to_bytes(public)
    said, in_threads = [], set()
    quick = {get_linkstate, get_protobuf_request, VersionDependency}

    async def in_thread(call, **values):
        in_threads.update({call, type(call)})
        return await run_in_threadpool(call, **values)

    monkeypatch.setattr(dependencies, "run_in_threadpool", in_thread)
    for app in flowers():
        if isinstance(app, LongPolling):
            assert quick < in_threads
            in_threads.clear()
            superlink.look_up_at_once()
        preference = Preference()
        signing = [NodeAuthHttpInterceptor(private, public), preference]
        with TestClient(app, raise_server_exceptions=False) as client:
            node = FleetHttpClient("http://testserver", interceptors=signing)
            node._client = client
            number = node.RegisterNode(RegisterNodeFleetRequest(public_key=key)).node_id
            active = ActivateNodeRequest(public_key=key, heartbeat_interval=30)
            assert node.ActivateNode(active).node_id == number != 0
            mine = Node(node_id=number)
            beat = SendNodeHeartbeatRequest(node=mine, heartbeat_interval=30)
            about = [
                node.SendNodeHeartbeat(beat),
                node.PullMessages(PullMessagesRequest(node=mine)),
            ]
            assert preference.applied == isinstance(app, LongPolling)
            with pytest.raises(Exception, match="401 Unauthorized"):
                node.PullMessages(PullMessagesRequest(node=Node(node_id=number + 1)))
            with monkeypatch.context() as broken, pytest.raises(Exception, match="500 ") as error:
                broken.setattr(fleet_handlers, "send_node_heartbeat", {}.pop)
                node.SendNodeHeartbeat(beat)
            said.append([*about, error.value.response.json()])
    assert said[0] == said[1] and not quick & in_threads
    assert said[0][:2] == [SendNodeHeartbeatResponse(success=True), PullMessagesResponse()]


@pytest.mark.parametrize("raises", [True, False])
def test_a_layer_hands_on_what_is_within_it(raises):
    """All layers of Flower's are changed, one that is none of Starlette's stays as it is."""
    plain, changed = flowers()
    names = [layer.cls.__name__ for layer in plain.user_middleware]
    assert [layer.cls.__name__ for layer in changed.app.user_middleware] == names
    assert all(issubclass(layer.cls, Buffered) for layer in changed.app.user_middleware)
    other = Middleware(SimpleNamespace)
    assert superlink.buffered(other) is other

    async def within(scope, receive, send):
        if raises:
            raise KeyError("inside")
        parts = (part for part in (b"a", b"b"))
        await StreamingResponse(parts, 201, {"x": "1"})(scope, receive, send)

    async def answer():
        scope = {"path": "/", "type": "http", "asgi": {"spec_version": "2.4"}}
        return await superlink.answered(within, scope, None)

    if raises:
        with pytest.raises(KeyError, match="inside"):
            asyncio.run(answer())
    else:
        answer = asyncio.run(answer())
        assert (answer.body, answer.status_code, answer.headers["x"]) == (b"ab", 201, "1")


class Link:
    """A SuperLink within our outermost layer: it hands each message out once, to one SuperNode."""

    def __init__(self):
        self.messages, self.status, self.looking = set(), 200, asyncio.Event()
        self.goes_on = asyncio.Event()
        self.goes_on.set()
        self.polling = LongPolling(self, TYPES)

    async def __call__(self, scope, receive, send):
        body = (await receive())["body"]
        status, content = self.status, b""
        if scope["path"] == PULL:
            node = PullMessagesRequest.FromString(body).node.node_id
            found = [Message()] if node in self.messages and status == 200 else []
            self.messages -= {node} if found else set()
            content = PullMessagesResponse(messages_list=found).SerializeToString()
            self.looking.set()
            await self.goes_on.wait()
        elif scope["path"] == PUSH:
            about = PushAppMessagesRequest.FromString(body).messages_list
            self.messages |= {message.metadata.dst_node_id for message in about}
        await Response(content, status)(scope, receive, send)

    async def ask(self, path, request, wait="", gone=None):
        """Send a request; return status, number of messages and `preference-applied`."""
        sent, parts = [], iter([request.SerializeToString()])

        async def receive():
            for body in parts:
                return {"type": "http.request", "body": body, "more_body": False}
            await (gone or asyncio.Event()).wait()
            return {"type": "http.disconnect"}

        async def send(message):
            sent.append(message)

        headers = [(b"prefer", wait.encode())] if wait else []
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "state": {}}
        await self.polling(scope, receive, send)
        count = len(PullMessagesResponse.FromString(sent[1]["body"]).messages_list)
        applied = dict(sent[0]["headers"]).get(b"preference-applied", b"").decode()
        return sent[0]["status"], count, applied

    def pull(self, node, wait="wait=3", gone=None):
        """Begin to look for messages of a SuperNode."""
        self.looking.clear()
        request = PullMessagesRequest(node=Node(node_id=node))
        return asyncio.create_task(self.ask(PULL, request, wait, gone))

    async def holds(self, node, count=1):
        """Wait until so many requests of a SuperNode are held back."""
        await self.looking.wait()
        while len(self.polling.waiting.get(node, [])) != count:
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)

    async def push(self, *nodes):
        """Send a message to each of some SuperNodes."""
        about = [Message(metadata=Metadata(dst_node_id=node)) for node in nodes]
        await self.ask(PUSH, PushAppMessagesRequest(messages_list=about))


def play(scene, *given):
    """Play a scene with a SuperLink; it fails if it takes too long."""

    async def played():
        link = Link()
        await asyncio.wait_for(scene(link, *given), PATIENCE)
        assert link.polling.waiting == {}  # nothing is left behind

    asyncio.run(played())


@pytest.fixture
def endless(monkeypatch):
    """A SuperLink that holds answers back until a test has failed."""
    monkeypatch.setattr(superlink, "LONGEST", 10 * PATIENCE)
    return f"wait={int(10 * PATIENCE)}"


def scene(played):
    """Make a test of a scene with a SuperLink that holds answers back."""
    return lambda endless: play(played, endless)


@scene
async def test_a_supernode_that_waits_gets_its_message_at_once(link, endless):
    first, second = link.pull(1, endless), link.pull(2, endless)
    await link.holds(1)
    await link.holds(2)
    await link.push(1, 3)
    assert await first == (200, 1, "wait")
    assert not second.done()
    await link.push(2)
    assert await second == (200, 1, "wait")
    assert link.messages == {3}


def test_what_flower_sends_for_an_app_wakes_a_supernode(endless, monkeypatch):
    """Flower's own client says which path and type a message has that our SuperLink looks at."""
    sent = {}
    monkeypatch.setattr(RuntimeHttpClient, "_unary_unary", lambda self, **call: sent.update(call))
    message = Message(metadata=Metadata(dst_node_id=1))
    request = PushAppMessagesRequest(messages_list=[message])
    RuntimeHttpClient("http://nowhere").PushMessages(request)

    async def scene(link):
        asked = link.pull(1, endless)
        await link.holds(1)
        await link.ask(sent["path"], sent["request"])
        assert await asked == (200, 1, "wait")

    play(scene)


@scene
async def test_a_message_that_comes_while_the_superlink_looks_is_not_overlooked(link, endless):
    link.goes_on.clear()
    asked = link.pull(1, endless)
    await link.looking.wait()  # it has found nothing, and is about to say so
    await link.push(1)
    link.goes_on.set()
    assert await asked == (200, 1, "wait")


@scene
async def test_who_does_not_wait_or_has_a_message_is_answered_at_once(link, endless):
    assert await link.pull(1, "") == (200, 0, "")
    assert await link.pull(1, "respond-async") == (200, 0, "")
    await link.push(1)
    assert await link.pull(1, endless) == (200, 1, "wait")
    link.status = 401
    assert await link.pull(1, endless) == (401, 0, "")


def test_an_answer_is_held_back_for_as_long_as_was_asked(monkeypatch):
    monkeypatch.setattr(superlink, "LONGEST", 0.05)

    async def scene(link):
        assert await link.pull(1, "wait=3") == (200, 0, "wait")

    play(scene)


@pytest.mark.parametrize(("header", "seconds"), [
    (b"wait=1", 1.0), (b"wait=3", 3.0), (b"wait=999999", 3.0), (b"wait=0", 0.0), (b"wait=-1", 0.0),
    (b"wait=1e9", 0.0), (b"wait=9999999999", 0.0), (b"handling=strict", 0.0),
])  # fmt: skip
def test_how_long_an_answer_may_be_held_back(header, seconds):
    assert superlink.seconds_to_wait({"headers": [(b"host", b"x"), (b"prefer", header)]}) == seconds


@scene
async def test_a_message_is_not_handed_out_to_a_supernode_that_has_gone(link, endless):
    gone = asyncio.Event()
    asked = link.pull(1, endless, gone)
    await link.holds(1)
    gone.set()
    await asked
    await link.push(1)
    assert link.messages == {1}
    assert await link.pull(1, endless) == (200, 1, "wait")


@scene
async def test_a_message_is_handed_out_to_the_last_connection_of_a_supernode(link, endless):
    """The first was cut, which the SuperLink does not know."""
    first = link.pull(1, endless)
    await link.holds(1)
    second = link.pull(1, endless)
    assert await first == (200, 0, "wait")
    await link.push(1)
    assert await second == (200, 1, "wait")


@scene
async def test_a_stranger_who_names_a_supernode_does_not_disturb_it(link, endless):
    asked = link.pull(1, endless)
    await link.holds(1)
    link.status = 401
    assert await link.pull(1, endless) == (401, 0, "")
    link.status = 200
    assert not asked.done()
    await link.push(1)
    assert await asked == (200, 1, "wait")


@scene
async def test_what_is_no_longer_allowed_is_an_answer_without_a_message(link, endless):
    """A signature may have become too old meanwhile; to be refused would end the SuperNode."""
    asked = link.pull(1, endless)
    await link.holds(1)
    await link.push(1)
    link.status = 401
    assert await asked == (200, 0, "wait")


def test_who_waits_for_the_end_of_a_connection_stops_no_other():
    """Starlette's streams do, with the version of ASGI that uvicorn says it has."""

    async def stream(scope, receive, send):
        await StreamingResponse(part for part in (b"a", b"b"))(scope, receive, send)

    async def scene():
        link = Link()
        link.polling = LongPolling(stream, TYPES)
        answers = []

        async def receive():
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message):
            answers.append(message)

        scope = {"type": "http", "method": "POST", "path": PULL, "headers": [], "asgi": {}}
        await asyncio.wait_for(link.polling(scope, receive, send), PATIENCE)
        assert answers[1]["body"] == b"ab"

    asyncio.run(scene())


@pytest.mark.parametrize("ours", [True, False])
def test_a_device_learns_whether_the_superlink_waits(monkeypatch, ours):
    monkeypatch.setattr(superlink, "LONGEST", 0.05)
    preference = Preference()
    preference.applied = not ours

    async def link(scope, receive, send):
        if scope["type"] == "lifespan":
            await Starlette()(scope, receive, send)
        else:
            await Response()(scope, receive, send)

    made = client_with(FleetHttpClient.from_server_address, preference)
    node = made.from_server_address("testserver", True, None, interceptors=[])
    with TestClient(LongPolling(link, TYPES) if ours else link) as client:
        node._client = client
        assert not node.PullMessages(PullMessagesRequest()).messages_list
    assert preference.applied == ours
