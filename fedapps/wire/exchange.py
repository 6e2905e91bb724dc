"""An exchange with the SuperNodes: send requests, get updates back in client order."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from flwr.app import Array, Message, Metadata

from fedapps.core.errors import NO_REPLY, one_line
from fedapps.method.update import ClientUpdate, Failure
from fedapps.models.layers import Layout
from fedapps.training.plan import Plan
from fedapps.wire.checks import LARGEST, GrownError
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.replies import unpack_reply
from fedapps.wire.requests import Request, RoundInfo, pack_requests

Answer = TypeVar("Answer")


class Exchange:
    """One exchange: the requests that are sent together, and the updates that come back.

    `allotted` lists SuperNodes with the requests of each (`Fleet.allot`); `requests` holds all
    requests by client, without their arrays once `messages` has packed these. `nbytes` is the
    payload of all requests, and `payloads` that of each. `given_up` returns the clients that will
    not answer any more, and why. `largest` is the largest magnitude of a value that clients may
    send.
    """

    def __init__(
        self,
        allotted: Sequence[tuple[int, Sequence[Request]]] = (),
        given_up: Callable[[], Mapping[int, str]] = dict,
        largest: float = LARGEST,
    ) -> None:
        self.given_up = given_up
        self.largest = largest
        self.requests = {request.client: request for _, part in allotted for request in part}
        self.payloads = {client: request.nbytes for client, request in self.requests.items()}
        self.nbytes = sum(self.payloads.values())
        self.failures: list[Failure] = []
        self._allotted = allotted
        self._sent: list[tuple[Metadata, Sequence[Request]]] = []
        self._presum = False

    def messages(self, info: RoundInfo, kind: str, group: str) -> list[Message]:
        """Make a message for each part that is allotted."""
        self._presum = info.presum
        packed: dict[int, Array] = {}  # so that the model is packed once for all devices
        messages = [
            pack_requests(part, info, node, kind, group, packed) for node, part in self._allotted
        ]
        # Keep neither arrays nor messages: many methods send each client a model of its own.
        self.requests = {c: replace(request, arrays={}) for c, request in self.requests.items()}
        parts = [[self.requests[request.client] for request in part] for _, part in self._allotted]
        self._sent = [(m.metadata, part) for m, part in zip(messages, parts, strict=True)]
        self._allotted = ()
        return messages

    def traffic(self, layout: Layout, client: int) -> tuple[int, int]:
        """Return the payload of a client's download and of its upload in bytes."""
        return self.payloads[client], self.requests[client].nbytes_up(layout)

    def given_up_messages(self) -> set[str]:
        """Return the ids of messages whose clients have all been given up."""
        why = self.given_up()
        if not why:
            return set()
        return {
            about.message_id
            for about, part in self._sent
            if all(request.client in why for request in part)
        }

    def updates(
        self,
        replies: Iterable[Message],
        layout: Layout,
        check: Callable[[ClientUpdate, Plan], object],
    ) -> Iterator[ClientUpdate]:
        """Yield updates in client order, each as soon as possible; record failures.

        `check` reads and checks the metrics of an update, given the plan that was sent to its
        client; the result becomes the update's `checked`. A client has failed if `check` raises
        ValueError or KeyError, or if no reply comes in time.
        """
        sent = {about.message_id: part for about, part in self._sent}
        order = deque(sorted(self.requests))
        arrived: dict[int, ClientUpdate | None] = {}
        for reply in replies:
            part = sent.pop(reply.metadata.reply_to_message_id, None)
            if part is None:
                continue  # a late reply to an earlier round
            updates, failures = unpack_reply(part, reply, layout, self._presum, self.largest)
            self.failures += failures
            arrived |= dict.fromkeys((request.client for request in part), None)
            for update in updates:
                plan = self.requests[update.client].plan
                try:
                    arrived[update.client] = replace(update, checked=check(update, plan))
                except (ValueError, KeyError) as error:
                    self.failures.append(Failure(update.client, _cause(error)))
            while order and order[0] in arrived:
                if (ready := arrived.pop(order.popleft())) is not None:
                    yield ready
        unanswered = [request.client for part in sent.values() for request in part]
        why = self.given_up()
        self.failures += [Failure(c, why.get(c, NO_REPLY)) for c in unanswered]
        yield from (late for client in order if (late := arrived.get(client)) is not None)


def _cause(error: ValueError | KeyError) -> str:
    """Return why an update whose figures raised `error` is a failure, in one line."""
    if isinstance(error, GrownError):
        return one_line(str(error))
    missing = " is missing" if isinstance(error, KeyError) else ""
    return f"the reply's figures are broken: {one_line(str(error))}{missing}"


def answers_to(
    grid: StreamingGrid,
    messages: Sequence[Message],
    asked: Sequence[Sequence[int]],
    timeout: float,
    unpack: Callable[[Sequence[int], Message], tuple[dict[int, Answer], list[Failure]]],
) -> tuple[dict[int, Answer], list[Failure]]:
    """Send messages, each about the clients `asked` in it; return what `unpack` reads in replies.

    A client whose message is not answered within `timeout` seconds is a failure.
    """
    replies = grid.send_and_receive(messages, timeout=timeout)
    sent = {m.metadata.message_id: part for m, part in zip(messages, asked, strict=True)}
    answers: dict[int, Answer] = {}
    failures: list[Failure] = []
    for reply in replies:
        part = sent.pop(reply.metadata.reply_to_message_id, [])
        given, failed = unpack(part, reply)
        answers |= given
        failures += failed
    failures += [Failure(c, NO_REPLY) for part in sent.values() for c in part]
    return answers, failures
