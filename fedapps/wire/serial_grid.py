"""The Grid of the serial engine (`fedapps.serial`): its SuperNodes are calls in this process."""

from collections.abc import Iterable, Mapping, Sequence
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedapps.core import flower
from fedapps.core.schema import Scalar
from fedapps.core.threads import at_once
from fedapps.wire.requests import is_concurrent


def identify_task() -> None:
    """Set this process's task identity, without which Flower does not create messages."""
    for name, value in {"run_id": 1, "node_id": 0, "task_id": 0}.items():
        setattr(flower.TaskIdentity, name, value)


def give_id(message: Message) -> None:
    """Give a message its id, as Flower's own Grids do."""
    vars(message.metadata)["_message_id"] = str(uuid4())


class SerialGrid:
    """A Grid whose SuperNodes are calls of the ClientApp in this process."""

    def __init__(
        self, client_app: ClientApp, run_config: dict[str, Scalar], num_nodes: int
    ) -> None:
        identify_task()
        self.client_app = client_app
        self.contexts = {
            node: Context(
                run_id=1,
                node_id=node,
                node_config={"partition-id": node - 1, "num-partitions": num_nodes, "workers": 1},
                state=RecordDict(),
                run_config=run_config,
            )
            for node in range(1, num_nodes + 1)
        }
        self.messages: list[Message] = []

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Keep messages until they are pulled."""
        new = list(messages)
        for message in new:
            give_id(message)
        self.messages += new
        return [message.metadata.message_id for message in new]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the ClientApp on the first message with one of these ids; return its reply."""
        wanted = set(message_ids)
        for index, message in enumerate(self.messages):
            if message.metadata.message_id in wanted:
                del self.messages[index]
                return [self.client_app(message, self.contexts[message.metadata.dst_node_id])]
        return []

    def get_node_ids(self) -> list[int]:
        """Return the ids of the SuperNodes."""
        return list(self.contexts)

    def close(self) -> None:
        """End what this grid has started: nothing."""


class DeviceGrid(SerialGrid):
    """A serial grid whose SuperNodes are devices; those that share a channel run in threads.

    All of them run when the reply of the first is pulled; the other replies wait in `ready`.
    """

    def __init__(
        self,
        client_app: ClientApp,
        run_config: dict[str, Scalar],
        node_configs: Sequence[Mapping[str, Scalar]],
    ) -> None:
        super().__init__(client_app, run_config, len(node_configs))
        for context, node_config in zip(self.contexts.values(), node_configs, strict=True):
            context.node_config = dict(node_config)
        self.ready: list[Message] = []

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Run the ClientApp on the next message, or on all messages that need each other."""
        wanted = set(message_ids)
        taken = [message for message in self.messages if is_concurrent(message)]
        if wanted.intersection(message.metadata.message_id for message in taken):
            self.messages = [message for message in self.messages if message not in taken]
            contexts = [self.contexts[message.metadata.dst_node_id] for message in taken]
            self.ready += at_once("device", self.client_app, taken, contexts)
        found = [reply for reply in self.ready if reply.metadata.reply_to_message_id in wanted]
        self.ready = [reply for reply in self.ready if reply not in found]
        return found or super().pull_messages(wanted)
