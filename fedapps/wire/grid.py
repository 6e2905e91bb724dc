"""The Grid of the rounds: it yields replies one by one, as soon as each arrives."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from flwr.app import Message

from fedapps.core import flower, stopping
from fedapps.core.errors import named
from fedapps.wire.compact import is_packed, pack, unpack
from fedapps.wire.contacts import Lookout
from fedapps.wire.probes import LOST, Probes
from fedapps.wire.pulls import UNREADABLE, Upload, known_grid, pull_arrived
from fedapps.wire.replies import unreadable

FIRST_WAIT, LONGEST_WAIT = 0.01, 1.0  # seconds between polls
BROKEN_WAIT = 10.0  # seconds to wait for the right reply after one that could not be read


class AnyGrid(Protocol):
    """What is used of a Grid of Flower; see there."""

    def get_node_ids(self) -> Iterable[int]: ...

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]: ...

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]: ...


def reaches_devices(grid: AnyGrid) -> bool:
    """Tell whether a Grid reaches its SuperNodes through a SuperLink, not in a simulation.

    The Grids of this project do not, and for them Flower's Grid, which takes half a second to load,
    is not loaded.
    """
    return not type(grid).__module__.startswith("fedapps.") and isinstance(grid, flower.HttpGrid)


class StreamingGrid:
    """Flower's Grid, except that `send_and_receive` yields each reply as soon as it arrives.

    Flower's Grid returns all replies at once and sleeps up to 3 s between its polls. Here, replies
    that have not arrived after `timeout` seconds are not waited for; the caller knows whom it
    asked. `given_up` returns the ids of messages that the caller knows will not be answered, and
    `lookout` keeps note of whom the server waits for. Of a reply that was lost on its way, `Probes`
    finds out; an error reply stands for it.

    A reply that cannot be read costs no other one. (Flower's Grid drops all that it has pulled, and
    the SuperLink hands out each reply only once.) So the replies of devices are pulled by
    `pull_arrived`, and with other Grids one by one. Small messages to devices and back are packed
    (`compact.py`).

    A pull also returns messages that SuperNodes sent to the server unasked. Which message a reply
    answers is written by its sender, so a reply that answers another message is dropped. A reply
    that cannot be read may be such a foreign one, so the right reply is waited for a little longer.
    Neither the Grid nor the SuperLink knows the size of a reply before it arrives (an object tree
    holds only ids); `replies.unpack_reply` checks it.
    """

    def __init__(
        self, grid: AnyGrid, given_up: Callable[[], set[str]] = set, lookout: Lookout | None = None
    ) -> None:
        self.grid, self.given_up, self.lookout = grid, given_up, lookout or Lookout()
        self._begin_pulls = getattr(grid, "begin_pulls", lambda deadline: None)
        self._devices = reaches_devices(grid)
        self._known = known_grid() if self._devices else None
        self._broken: dict[str, tuple[float, str]] = {}  # by message: since when, and the error
        self._uploads: dict[str, Upload] = {}  # replies of which a part has arrived

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Push the messages now; return an iterator over replies in the order of arrival."""
        messages = list(messages)
        ids = self.push_messages(messages) if messages else []
        nodes = {id_: m.metadata.dst_node_id for id_, m in zip(ids, messages, strict=True) if id_}
        self._uploads.clear()  # those of an earlier exchange that was given up
        self.lookout.asks({*nodes.values()})
        return self._replies(nodes, time.monotonic(), timeout)

    def _replies(
        self, nodes: Mapping[str, int], start: float, timeout: float | None
    ) -> Iterator[Message]:
        pending, probes = [*nodes], Probes(nodes)
        while pending:
            begun, answered = time.monotonic(), set()
            self._begin_pulls(math.inf if timeout is None else start + timeout)
            for reply in self.pull_messages([*pending, *probes.sent]):
                if not probes.takes(reply):
                    answered.add(reply.metadata.reply_to_message_id)
                    yield reply
            for id_ in {*probes.lost()} - answered - self._broken.keys():
                answered.add(id_)
                yield unreadable(id_, LOST)
            # Compare the time when the pull began: a slow pull must not make other replies late.
            if timeout is not None and begun - start > timeout:
                return
            now = time.monotonic()
            answered |= self.given_up().intersection(pending)
            pending = [id_ for id_ in pending if id_ not in answered]
            if self._devices and (due := probes.due(pending, now - start)):
                sent = zip(self.push_messages(due.values()), due, strict=True)
                probes.sent |= {probe: id_ for probe, id_ in sent if probe}
            self.lookout.waits(self.grid.get_node_ids)
            if pending and not answered:
                time.sleep(poll_wait(now - start, now - begun))

    def get_node_ids(self) -> Iterable[int]:
        """Return the ids of the SuperNodes that are connected."""
        return self.grid.get_node_ids()

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Push messages, the small ones to devices packed, and one by one.

        A device finds a message before its records are pushed. If those of all devices came after
        all messages, each device would ask the SuperLink for them again and again. Large messages
        share their arrays, so they are pushed together.
        """
        if not self._devices:
            return self.grid.push_messages(messages)
        packed = [*map(pack, messages)]
        parts = [[m] for m in packed] if all(map(is_packed, packed)) else [packed]
        return [id_ for part in parts for id_ in self.grid.push_messages(part)]

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield the replies that have arrived.

        If one cannot be read and the right one does not come within `BROKEN_WAIT` seconds, an error
        reply stands for it. Raises `Stopped` if the process is about to end.
        """
        stopping.check()
        for id_, reply in self._pulled([*message_ids]):
            own, error = (None, reply) if isinstance(reply, Exception) else (reply, None)
            try:
                own = own and unpack(own)
            except UNREADABLE as caught:
                error = caught
            if error:
                reason = f"its reply cannot be read: {named(error)}"
                self._broken.setdefault(id_, (time.monotonic(), reason))
                continue
            since, reason = self._broken.get(id_, (math.inf, ""))
            if own is None and time.monotonic() - since > BROKEN_WAIT:
                own = unreadable(id_, reason)
            if own is not None:
                self._broken.pop(id_, None)
                self.lookout.heard(own)
                yield own

    def _pulled(self, ids: list[str]) -> Iterator[tuple[str, Message | Exception | None]]:
        """Yield the reply to each message, or the error in reading it, or nothing."""
        if self._known:
            missing = dict.fromkeys(ids)
            for id_, reply in pull_arrived(self._known, self.grid, ids, self._uploads):
                if id_ in missing:  # not one of several
                    del missing[id_]
                    yield id_, reply
            yield from missing.items()
            return
        for id_ in ids:
            try:
                replies = [*self.grid.pull_messages([id_])]
            except UNREADABLE as error:
                yield id_, error
            else:
                own = (r for r in replies if r.metadata.reply_to_message_id == id_)
                yield id_, next(own, None)


def poll_wait(waited: float, took: float) -> float:
    """Return the seconds until the next poll: a hundredth of the time waited, within limits.

    It is longer after a poll that `took` long, so that polling takes at most a tenth of the time.
    """
    return min(max(FIRST_WAIT, waited / 100, 9 * took), LONGEST_WAIT)
