"""The SuperNodes of a run: who is there, who runs which client, and how replies come in."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedapps.errors import RunError
from fedapps.layers import Layout
from fedapps.messages import (
    ClientUpdate,
    Failure,
    Request,
    RoundInfo,
    pack_requests,
    unpack_reply,
)

FIRST_WAIT, LONGEST_WAIT = 0.01, 1.0  # seconds between polls


class StreamingGrid(Grid):
    """Flower's Grid, except that `send_and_receive` yields each reply as soon as it is there.

    Flower's own hands over the whole list at once and sleeps up to 3 s between its polls. Replies
    that are not there after `timeout` seconds never come; the caller knows whom it asked. It may
    also know sooner that nobody will answer: `hopeless` gives the ids of such messages.
    """

    def __init__(self, grid: Grid, hopeless: Callable[[], set[str]] = set) -> None:
        self.grid = grid
        self.hopeless = hopeless

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Push now; return an iterator over the replies in the order of their arrival."""
        messages = list(messages)
        pending = set(self.grid.push_messages(messages)) if messages else set()
        pending.discard(None)
        return self._replies(pending, time.monotonic(), timeout)

    def _replies(self, pending: set[str], start: float, timeout: float | None) -> Iterator[Message]:
        while pending:
            replies = list(self.grid.pull_messages(pending))
            pending -= {reply.metadata.reply_to_message_id for reply in replies}
            yield from replies
            waited = time.monotonic() - start
            if timeout is not None and waited > timeout:
                return
            pending -= self.hopeless()
            if pending and not replies:
                time.sleep(min(max(FIRST_WAIT, waited / 100), LONGEST_WAIT))

    def set_run(self, run: Run) -> None:
        """Delegate to Flower's Grid, as all below."""
        self.grid.set_run(run)

    @property
    def run(self) -> Run:
        return self.grid.run

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        return self.grid.create_message(*args, **kwargs)

    def get_node_ids(self) -> Iterable[int]:
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return self.grid.push_messages(messages)

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return self.grid.pull_messages(message_ids)


@dataclass(frozen=True)
class Fleet:
    """The SuperNodes of a run: ids (sorted), whether all see a GPU, how many work at once.

    `workers` is 0 where each has a process of its own.
    """

    nodes: list[int]
    cuda: bool
    workers: int


def greet(grid: StreamingGrid, at_least: int, timeout: float) -> Fleet:
    """Wait for `at_least` SuperNodes and ask each who it is.

    In a simulation a node also tells how many there will be, since they register one by one.
    """
    start, told, workers = time.monotonic(), 0.0, 0
    cuda: dict[int, bool] = {}
    while True:
        nodes = sorted(grid.get_node_ids())
        new = [node for node in nodes if node not in cuda]
        for reply in _ask(grid, new, timeout):
            answer = reply.content.config_records["hello"]
            cuda[reply.metadata.src_node_id] = bool(answer["cuda"])
            at_least = max(at_least, int(str(answer["nodes"])))
            workers = max(workers, int(str(answer["workers"])))
        here = [node for node in nodes if node in cuda]  # one that answered may have left
        if len(here) >= at_least:
            return Fleet(here, all(cuda[node] for node in here), workers)
        waited = time.monotonic() - start
        if waited > timeout:
            raise RunError(
                f"{len(here)} of {at_least} SuperNodes after {timeout:g} s (min-available)"
            )
        if waited - told > 5:
            told = waited
            print(f"waiting for SuperNodes: {len(here)} of {at_least}", flush=True)
        time.sleep(0.02)


def _ask(grid: StreamingGrid, nodes: Sequence[int], timeout: float) -> Iterator[Message]:
    asked = [Message(RecordDict({"config": ConfigRecord()}), node, "query.hello") for node in nodes]
    for reply in grid.send_and_receive(asked, timeout=timeout):
        if reply.has_error():
            raise RunError(f"a SuperNode could not start: {reply.error.reason}")
        yield reply


def spread(
    requests: Sequence[Request], loads: Sequence[float], nodes: Sequence[int]
) -> list[list[Request]]:
    """Share requests out over the nodes, longest first to the node with the least to do.

    `loads` are expected costs in any unit. Each node's part is in client order; a
    node without work gets an empty part.
    """
    parts: list[list[Request]] = [[] for _ in nodes]
    totals = [0.0] * len(nodes)
    for index in sorted(range(len(requests)), key=lambda i: -loads[i]):
        least = totals.index(min(totals))
        parts[least].append(requests[index])
        totals[least] += loads[index]
    return [sorted(part, key=lambda request: request.client) for part in parts]


class Exchange:
    """One wave of requests: messages out, updates back in client order.

    `given_up` tells which clients will not answer any more, and why.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        parts: Sequence[Sequence[Request]],
        given_up: Callable[[], Mapping[int, str]] = dict,
    ) -> None:
        self.given_up = given_up
        self.requests = list(requests)
        self.failures: list[Failure] = []
        self._parts = list(parts)
        self._sent: list[tuple[Message, Sequence[Request]]] = []
        self._presum = False

    def messages(
        self, nodes: Sequence[int], info: RoundInfo, kind: str, group: str
    ) -> list[Message]:
        """Make one message per SuperNode that has work."""
        self._presum = info.presum
        self._sent = [
            (pack_requests(part, info, node, kind, group), part)
            for part, node in zip(self._parts, nodes, strict=True)
            if part
        ]
        return [message for message, _ in self._sent]

    def hopeless(self) -> set[str]:
        """Return the ids of messages whose clients are all given up."""
        why = self.given_up()
        if not why:
            return set()
        return {
            message.metadata.message_id
            for message, part in self._sent
            if all(request.client in why for request in part)
        }

    def updates(
        self, replies: Iterable[Message], layout: Layout, check: Callable[[ClientUpdate], object]
    ) -> Iterator[ClientUpdate]:
        """Yield updates in client order as soon as the order allows; note failures, in that order.

        An update that `check` raises a ValueError or KeyError for is a failure, and so is a
        request that nobody answered in time.
        """
        sent = {message.metadata.message_id: part for message, part in self._sent}
        order = sorted(request.client for request in self.requests)
        arrived: dict[int, ClientUpdate | None] = {}
        for reply in replies:
            part = sent.pop(reply.metadata.reply_to_message_id, None)
            if part is None:
                continue  # a late reply to an earlier round
            updates, failures = unpack_reply(part, reply, layout, self._presum)
            self.failures += failures
            arrived |= dict.fromkeys((request.client for request in part), None)
            for update in updates:
                try:
                    check(update)
                    arrived[update.client] = update
                except (ValueError, KeyError) as error:
                    cause = f"the reply's figures are broken: {error}"
                    self.failures.append(Failure(update.client, cause))
            while order and order[0] in arrived:
                if (ready := arrived.pop(order.pop(0))) is not None:
                    yield ready
        unanswered = [request.client for part in sent.values() for request in part]
        why = self.given_up()
        self.failures += [Failure(c, why.get(c, "no reply in time")) for c in unanswered]
        self.failures.sort(key=lambda failure: failure.client)
        yield from (late for client in order if (late := arrived.get(client)) is not None)
