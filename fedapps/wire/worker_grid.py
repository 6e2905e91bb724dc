"""The Grid of the serial engine with workers: forks of this process run the clients."""

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing.connection import wait

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedapps.core.errors import RunError
from fedapps.core.forks import Fork, Memory, Place, end
from fedapps.core.schema import Scalar
from fedapps.wire.replies import unreadable
from fedapps.wire.requests import is_concurrent
from fedapps.wire.serial_grid import SerialGrid, give_id

SHARED = ("train", "evaluate", "query.step")  # messages that workers get; others cost too little
LONGEST_WAIT = 30.0  # seconds for all messages; then the rounds look whether the run is to stop


@dataclass
class Worker:
    """A fork, and the id of the message that it works on ("": none)."""

    fork: Fork
    message_id: str = ""


class WorkerGrid(SerialGrid):
    """A serial grid whose messages are answered by `workers` forks of this process.

    Messages that are pushed together are handed out in the given order. A message that is alone, or
    whose clients share a channel, stays in this process. Workers are forked when they are first
    needed: they then share the data set that has been loaded. With `keep_going`, a worker that dies
    costs the clients of the message that it worked on, and is replaced; otherwise `RunError` is
    raised.
    """

    def __init__(
        self,
        client_app: ClientApp,
        run_config: dict[str, Scalar],
        num_nodes: int,
        workers: int,
        keep_going: bool,
    ) -> None:
        super().__init__(client_app, run_config, num_nodes)
        self.count, self.keep_going = workers, keep_going
        self.workers: list[Worker] = []
        self.memory = Memory()
        self.waiting: deque[tuple[str, Place]] = deque()  # messages by id
        self.replies: dict[str, Message] = {}
        self.handed_out: set[str] = set()  # ids of the messages of the last push
        self.until = math.inf  # monotonic: when pulls stop to wait

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Hand messages out to the workers, or keep them until they are pulled."""
        new = list(messages)
        if len(new) < 2 or not all(map(_is_shared, new)):
            return super().push_messages(new)
        for message in new:
            give_id(message)
        # Nobody waits for earlier messages any more; a worker that is still at one begins anew.
        late = [worker for worker in self.workers if worker.message_id]
        end(worker.fork for worker in late)
        self.workers = [worker for worker in self.workers if worker not in late]
        self.replies.clear()
        ids = [message.metadata.message_id for message in new]
        self.handed_out = set(ids)
        self.waiting = deque(zip(ids, self.memory.write(new), strict=True))
        while len(self.workers) < min(self.count, len(new)):
            self.workers.append(Worker(self._fork()))
        self._hand_out()
        return ids

    def begin_pulls(self, deadline: float) -> None:
        """Let pulls, one for each message, wait until this monotonic time, but not for long."""
        self.until = min(deadline, time.monotonic() + LONGEST_WAIT)

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return replies of workers, after waiting for one if there are none yet."""
        wanted = set(message_ids)
        if not wanted & self.handed_out:
            return super().pull_messages(wanted)
        self._listen()
        return [self.replies.pop(id_) for id_ in wanted & self.replies.keys()]

    def close(self) -> None:
        """End the workers."""
        end(worker.fork for worker in self.workers)
        self.workers.clear()

    def _fork(self) -> Fork:
        def answer(message: Message) -> Message:
            return self.client_app(message, self.contexts[message.metadata.dst_node_id])

        return Fork(self.memory, answer, [worker.fork for worker in self.workers])

    def _hand_out(self) -> None:
        for worker in self.workers:
            if self.waiting and not worker.message_id:
                worker.message_id, place = self.waiting.popleft()
                worker.fork.ask(place)

    def _listen(self) -> None:
        """Take the replies that are there; wait for one if this grid has none."""
        busy = [worker for worker in self.workers if worker.message_id]
        left = 0.0 if self.replies else min(LONGEST_WAIT, self.until - time.monotonic())
        there = wait([w.fork.channel for w in busy], max(0.0, left))
        for worker in busy:
            if worker.fork.channel not in there:
                continue
            id_, worker.message_id = worker.message_id, ""
            died = ""
            try:
                self.replies[id_] = worker.fork.answer()
            except EOFError as error:
                died = f"its worker process died: {error}"
            if died and not self.keep_going:
                raise RunError(died)
            if died:  # not in `except`, which the fork would be in, too
                self.replies[id_] = unreadable(id_, died)
                worker.fork = self._fork()
        self._hand_out()


def _is_shared(message: Message) -> bool:
    return message.metadata.message_type in SHARED and not is_concurrent(message)
