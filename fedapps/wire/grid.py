"""The Grid that the rounds run on: replies one by one, as soon as each is there."""

import math
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flwr.app import Message
from flwr.serverapp import Grid
from google.protobuf.message import DecodeError

from fedapps.core import stopping
from fedapps.core.errors import one_line
from fedapps.core.flower import Run
from fedapps.wire.replies import unreadable

# What a reply that is no message of Flower's makes its parser raise; the SuperLink's own errors
# (httpx, RuntimeError, OSError) are others, and end the run.
UNREADABLE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    DecodeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)
FIRST_WAIT, LONGEST_WAIT = 0.01, 1.0  # seconds between polls
BROKEN_WAIT = 10.0  # seconds that the reply may still come of which something could not be read


class StreamingGrid(Grid):
    """Flower's Grid, except that `send_and_receive` yields each reply as soon as it is there.

    Flower's own hands over the whole list at once and sleeps up to 3 s between its polls. Replies
    that are not there after `timeout` seconds never come; the caller knows whom it asked. It may
    also know sooner that nobody will answer: `given_up` returns the ids of such messages.

    Replies are pulled one by one. Flower's Grid gives up the whole list when one of them cannot be
    read, and the SuperLink hands out each but once, so the others would be lost with it. With each
    comes what SuperNodes sent to the server unasked, and to which message a reply belongs stands in
    what its sender wrote: what does not belong is dropped, and what cannot be read may be foreign,
    so the reply is waited for a little longer. Sizes are known to neither Grid nor SuperLink before
    a reply is here (an object tree holds ids): see `replies.unpack_reply`.
    """

    def __init__(self, grid: Grid, given_up: Callable[[], set[str]] = set) -> None:
        self.grid = grid
        self.given_up = given_up
        self._broken: dict[str, tuple[float, str]] = {}  # by message: since when, and what it was

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterator[Message]:
        """Push now; return an iterator over the replies in the order of their arrival."""
        messages = list(messages)
        ids = self.grid.push_messages(messages) if messages else []
        return self._replies([id_ for id_ in ids if id_], time.monotonic(), timeout)

    def _replies(
        self, pending: list[str], start: float, timeout: float | None
    ) -> Iterator[Message]:
        while pending:
            begun, answered = time.monotonic(), set()
            for reply in self.pull_messages(pending):
                answered.add(reply.metadata.reply_to_message_id)
                yield reply
            # Judged by the begin: one reply that takes long to pull must not cost those before it.
            if timeout is not None and begun - start > timeout:
                return
            now = time.monotonic()
            answered |= self.given_up()
            pending = [id_ for id_ in pending if id_ not in answered]
            if pending and not answered:  # asking takes a tenth of the time at most
                time.sleep(poll_wait(now - start, 9 * (now - begun)))

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

    def pull_messages(self, message_ids: Iterable[str]) -> Iterator[Message]:
        """Yield the replies that are there; one that cannot be read is an error reply, in time.

        Raises `Stopped` if the process is about to end.
        """
        stopping.check()
        for id_ in [*message_ids]:
            try:
                replies = [*self.grid.pull_messages([id_])]
            except UNREADABLE as error:
                reason = f"its reply cannot be read: {type(error).__name__}: {one_line(f'{error}')}"
                self._broken.setdefault(id_, (time.monotonic(), reason))
                continue
            own = [r for r in replies if r.metadata.reply_to_message_id == id_][:1]
            since, reason = self._broken.get(id_, (math.inf, ""))
            if not own and time.monotonic() - since > BROKEN_WAIT:
                own = [unreadable(id_, reason)]
            if own:
                self._broken.pop(id_, None)
            yield from own


def poll_wait(waited: float, least: float = FIRST_WAIT) -> float:
    """Return the seconds until the next poll: a share of those that have been waited already."""
    return min(max(FIRST_WAIT, waited / 100, least), LONGEST_WAIT)
