"""Pulls all replies that have arrived with one question to the SuperLink."""

from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any

from flwr.app import Message
from google.protobuf.message import DecodeError

from fedapps.core.flower import ChangedError, Known, leave_as_it_is

# Errors that Flower's parser raises for a reply that is not a valid message. The SuperLink's own
# errors are different ones (httpx, RuntimeError, OSError), and end the run.
UNREADABLE = (
    ArithmeticError, AssertionError, AttributeError, DecodeError, LookupError, MemoryError,
    RecursionError, TypeError, ValueError,
)  # fmt: skip
GRID = Known(
    "flwr.superlink.grid.http_grid",
    {},
    {r"\bcast\(Run, self\.(\w+)\)": {"_run"}, r"\bnode=self\.(\w+),": {"node"}},
    {
        "HttpGrid.pull_messages": ("self", "message_ids"),
        "iterate_object_tree": ("tree",),
        "make_pull_object_fn_protobuf": ("pull_object_protobuf", "node", "run_id"),
    },
    (
        *("HttpGrid._runtime_client", "ConfirmMessageReceivedRequest", "PullAppMessagesRequest"),
        *("ObjectPullError", "inflate_object_from_contents", "pull_objects"),
    ),
)


def known_grid() -> ModuleType | None:
    """Return Flower's module of the server's Grid, or None, with a log line, if it is not known."""
    try:
        return GRID.load()
    except ChangedError as error:
        cost = "the server asks for each reply by itself, which takes longer with many devices"
        leave_as_it_is("how replies are pulled", str(error), cost)
        return None


def pull_arrived(
    flower: ModuleType, grid: Any, ids: Sequence[str]
) -> Iterator[tuple[str, Message | Exception]]:
    """Yield the replies that have arrived to messages with these ids, in the order of the ids.

    `flower` is the module of the Grid. A reply that cannot be read is an exception instead, and
    costs no other reply. A reply says twice which message it answers; if it says two things, it is
    dropped.
    """
    client, who = grid._runtime_client, (grid.node, grid._run.run_id)
    place = {id_: number for number, id_ in enumerate(ids)}
    came = client.PullMessages(flower.PullAppMessagesRequest(message_ids=ids))
    pairs = [*zip(came.messages_list, came.message_object_trees, strict=True)]
    pairs = [pair for pair in pairs if pair[0].metadata.reply_to_message_id in place]
    for proto, tree in sorted(pairs, key=lambda p: place[p[0].metadata.reply_to_message_id]):
        about = proto.metadata
        try:
            reply = _pull(flower, client, who, about, tree)
        except (*UNREADABLE, flower.ObjectPullError) as error:
            yield about.reply_to_message_id, error
            continue
        if reply.metadata.reply_to_message_id == about.reply_to_message_id:
            yield about.reply_to_message_id, reply


def _pull(flower: ModuleType, client: Any, who: tuple[Any, int], about: Any, tree: Any) -> Message:
    """Pull the parts of a reply, and tell the SuperLink so."""
    node, run = who
    pull = flower.make_pull_object_fn_protobuf(client.PullObject, node, run)
    ids = [part.object_id for part in flower.iterate_object_tree(tree)]
    contents = flower.pull_objects(ids, pull)
    received = flower.ConfirmMessageReceivedRequest(
        node=node, run_id=run, message_object_id=about.message_id
    )
    client.ConfirmMessageReceived(received)
    reply: Message = flower.inflate_object_from_contents(about.message_id, contents)
    reply.metadata.__dict__["_message_id"] = about.message_id
    return reply
