"""The serial engine: the whole run in this process, for debugging and fast tests.

`python -m fedapps.serial --run-config 'strategy="fedbabu"'` takes what `flwr run .` takes; the
last line printed is the run directory.
"""

import argparse
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from inspect import getattr_static
from pathlib import Path
from uuid import uuid4

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

from fedapps.core import config, flower
from fedapps.core.errors import RunError
from fedapps.core.flower import Run, leave_as_it_is
from fedapps.core.schema import Scalar
from fedapps.engine.failed_clients import raising
from fedapps.wire.requests import is_concurrent


def identify_task() -> None:
    """Say who sends: Flower makes messages only in a process whose task is known."""
    try:
        identity = flower.TaskIdentity
        for name, value in {"run_id": 1, "node_id": 0, "task_id": 0}.items():
            getattr_static(identity, name)  # what is not there Flower would never look at
            setattr(identity, name, value)
    except (ImportError, AttributeError) as error:
        cost = "a serial run needs messages that can be made without it"
        leave_as_it_is("the identity of a task", str(error), cost)


def give_id(message: Message) -> None:
    """Give a message that is sent its id, as Flower's own Grids do; raises `RunError`."""
    fields = vars(message.metadata)
    if "_message_id" in fields:
        fields["_message_id"] = str(uuid4())
        return
    leave_as_it_is("a message's id", "its metadata have no _message_id", "nothing, if it has one")
    if not message.metadata.message_id:
        raise RunError(
            f"Flower {flower.version()} gives messages no id that the serial engine can set; "
            f"install one that is known to work: pip install 'flwr=={flower.TESTED}.*'"
        )


class SerialGrid(Grid):
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
        """Run the ClientApp on the next message that was asked for; return its reply."""
        wanted = set(message_ids)
        for index, message in enumerate(self.messages):
            if message.metadata.message_id in wanted:
                del self.messages[index]
                return [self.client_app(message, self.contexts[message.metadata.dst_node_id])]
        return []

    def get_node_ids(self) -> list[int]:
        """Return the ids of the SuperNodes."""
        return list(self.contexts)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> list[Message]:
        """Run the ClientApp on every message."""
        return [self.pull_messages([message_id])[0] for message_id in self.push_messages(messages)]

    def set_run(self, run: Run) -> None:
        """There is one run only."""

    @property
    def run(self) -> Run:
        """There is no Flower run behind a serial one."""
        raise AttributeError("a serial run has no Flower run")

    def create_message(self, *args: object, **kwargs: object) -> Message:
        """Flower has deprecated this; use `Message(...)`."""
        raise AttributeError("use flwr.app.Message")


class DeviceGrid(SerialGrid):
    """A serial grid whose SuperNodes are devices; those that share a channel work in threads.

    They work when the first of them is asked for; the replies of the others wait in `ready`.
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
        """Run the ClientApp on the next message, or on all that need each other."""
        wanted = set(message_ids)
        taken = [message for message in self.messages if is_concurrent(message)]
        if wanted.intersection(message.metadata.message_id for message in taken):
            self.messages = [message for message in self.messages if message not in taken]
            contexts = [self.contexts[message.metadata.dst_node_id] for message in taken]
            with ThreadPoolExecutor(len(taken), thread_name_prefix="device") as threads:
                self.ready += threads.map(self.client_app, taken, contexts)
        found = [reply for reply in self.ready if reply.metadata.reply_to_message_id in wanted]
        self.ready = [reply for reply in self.ready if reply not in found]
        return found or super().pull_messages(wanted)


def run_serial(
    run_config: dict[str, Scalar],
    num_supernodes: int = 1,
    node_configs: Sequence[Mapping[str, Scalar]] = (),
    keep_going: bool = True,
) -> Path:
    """Run a full run-config in this process; return the run directory. Raises `RunError`.

    With node-configs there is a SuperNode for each of them, a device. With `keep_going` a client
    that fails costs that client, as on other engines; else its error is raised (`ClientError`).
    """
    from fedapps import client_app, server_app

    if num_supernodes < 1:
        raise RunError(f"--num-supernodes {num_supernodes}: must be at least 1")
    num_supernodes = len(node_configs) or num_supernodes
    wanted = config.read(run_config).min_available
    if wanted > num_supernodes:  # the run would wait for ever
        text = f"must be at most --num-supernodes {num_supernodes}"
        raise RunError(f"min-available = {wanted}: {text}")
    if node_configs:
        grid: SerialGrid = DeviceGrid(client_app.app, run_config, node_configs)
    else:
        grid = SerialGrid(client_app.app, run_config, num_supernodes)
    context = Context(
        run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=run_config
    )
    with raising(not keep_going):
        return server_app.run(grid, context)


def absolute(run_config: dict[str, Scalar]) -> dict[str, Scalar]:
    """Resolve relative folders here, where the user typed them."""
    folders = {
        key: os.path.abspath(os.path.expanduser(str(run_config[key])))
        for key in ("runs-dir", "data-root")
    }
    return run_config | folders


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fedapps.serial", description=__doc__)
    parser.add_argument("--run-config", action="append", default=[], metavar="'KEY=VALUE ...'|FILE")
    parser.add_argument("--num-supernodes", type=int, default=1)
    example = """'client-id=0 data="/path/0.npz" state-dir="/path/0"'"""
    parser.add_argument("--node-config", action="append", default=[], metavar=example)
    parser.add_argument(
        "--keep-going",
        action="store_true",
        help="a failing client costs that client, as on other engines; else it ends the run",
    )
    options = parser.parse_args(arguments)
    try:
        nodes = [config.parse_option(text, "--node-config") for text in options.node_config]
        run_config = absolute(config.parse(options.run_config))
        folder = run_serial(run_config, options.num_supernodes, nodes, options.keep_going)
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
