"""The Grid of the serial engine with workers: forks of this process run the clients."""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from flwr.app import Message
from flwr.clientapp import ClientApp

from fedapps.core.forks import AT_ONCE, Fork, Memory, Place, end
from fedapps.core.schema import Scalar
from fedapps.wire.replies import unreadable
from fedapps.wire.requests import is_concurrent
from fedapps.wire.serial_grid import SerialGrid, give_id

SHARED = ("train", "evaluate")  # types of messages that workers get; others cost too little
LONGEST_WAIT = 30.0  # seconds; then the rounds look whether `round-timeout` is over


@dataclass(frozen=True)
class Order:
    """A message, by its place in memory, which waits for a worker or for its reply."""

    message_id: str
    place: Place


@dataclass
class Worker:
    """A fork and the orders that it has not answered; it works on the first of them."""

    fork: Fork
    orders: deque[Order] = field(default_factory=deque)

    def give(self, order: Order) -> None:
        """Hand out an order."""
        self.orders.append(order)
        self.fork.ask(order.place)


class WorkerGrid(SerialGrid):
    """A serial grid whose messages are answered by `workers` forks of this process.

    Messages that are pushed together go to the workers one by one, in the given order, and each
    worker gets its next message before it has answered, so that it never waits. A message that is
    alone, or whose clients share a channel, stays in this process. Workers are forked when they are
    first needed: they then share the data set that has been loaded. A worker that dies costs the
    message that it worked on, and is replaced.
    """

    def __init__(
        self, client_app: ClientApp, run_config: dict[str, Scalar], num_nodes: int, workers: int
    ) -> None:
        super().__init__(client_app, run_config, num_nodes)
        self.count = workers
        self.workers: list[Worker] = []
        self.memory = Memory()
        self.waiting: deque[Order] = deque()
        self.replies: dict[str, Message] = {}
        self.handed_out: set[str] = set()  # ids of the messages of the last push

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Hand messages out to the workers, or keep them until they are pulled."""
        new = list(messages)
        if len(new) < 2 or not all(map(_is_shared, new)):
            return super().push_messages(new)
        for message in new:
            give_id(message)
        # Nobody waits for earlier messages any more; a worker that still reads one must not go on.
        late = [worker for worker in self.workers if worker.orders]
        end(worker.fork for worker in late)
        self.workers = [worker for worker in self.workers if worker not in late]
        self.replies.clear()
        ids = [message.metadata.message_id for message in new]
        self.handed_out = set(ids)
        self.waiting = deque(map(Order, ids, self.memory.write(new)))
        while len(self.workers) < self.count:
            self.workers.append(Worker(self._fork()))
        self._hand_out()
        return ids

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
        """Give each worker `AT_ONCE` messages, but the last only to workers that have none."""
        while self.waiting:
            worker = min(self.workers, key=lambda worker: len(worker.orders))
            if len(worker.orders) >= (AT_ONCE if len(self.waiting) >= self.count else 1):
                return
            worker.give(self.waiting.popleft())

    def _listen(self) -> None:
        """Take the replies that are there; wait for one if this grid has none."""
        busy = {worker.fork.channel: worker for worker in self.workers if worker.orders}
        for channel in wait([*busy], 0 if self.replies else LONGEST_WAIT) if busy else ():
            worker = busy[channel]
            try:
                reply, died = worker.fork.answer(), None
            except EOFError as error:
                died = f"its worker process died: {error}"
            id_ = worker.orders.popleft().message_id
            if died:
                reply = unreadable(id_, died)
                worker.fork = self._fork()
                for order in worker.orders:
                    worker.fork.ask(order.place)
            self.replies[id_] = reply
        self._hand_out()


def _is_shared(message: Message) -> bool:
    return message.metadata.message_type in SHARED and not is_concurrent(message)
