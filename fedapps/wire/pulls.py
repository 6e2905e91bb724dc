"""Pulls all replies that have arrived with one question to the SuperLink.

The SuperLink hands out a reply as soon as a device begins to send it. Flower's Grid then waits for
all of its parts, and for as long nothing else is pulled: no other reply, and no time runs out. A
device with a slow connection, or one that is gone in the middle, would hold up all others. So here
a reply whose parts are still on their way is kept until the next pull.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
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
    finds={r"\bcast\(Run, self\.(\w+)\)": {"_run"}, r"\bnode=self\.(\w+),": {"node"}},
    parameters={
        "HttpGrid.pull_messages": ("self", "message_ids"),
        "iterate_object_tree": ("tree",),
        "make_pull_object_fn_protobuf": ("pull_object_protobuf", "node", "run_id"),
        "pull_objects": (
            *("object_ids", "pull_object_fn", "max_concurrent_pulls", "max_time"),
            *("max_tries_per_object", "initial_backoff", "backoff_cap"),
        ),
    },
    has=(
        *("HttpGrid._runtime_client", "ConfirmMessageReceivedRequest", "PullAppMessagesRequest"),
        *("ObjectPullError", "inflate_object_from_contents"),
    ),
)


@dataclass
class Upload:
    """A reply that the SuperLink has handed out, with the parts of it that have been pulled."""

    about: Any
    tree: Any
    parts: dict[str, bytes] = field(default_factory=dict)


def known_grid() -> ModuleType | None:
    """Return Flower's module of the server's Grid, or None, with a log line, if it is not known."""
    try:
        return GRID.load()
    except ChangedError as error:
        cost = "the server asks for each reply by itself, which takes longer with many devices"
        leave_as_it_is("how replies are pulled", str(error), cost)
        return None


def pull_arrived(
    flower: ModuleType, grid: Any, ids: Sequence[str], uploads: dict[str, Upload]
) -> Iterator[tuple[str, Message | Exception]]:
    """Yield the replies that have arrived to messages with these ids, in the order of the ids.

    `flower` is the module of the Grid, and `uploads` keeps the replies that have not arrived as a
    whole. A reply that cannot be read is an exception instead, and costs no other reply. A reply
    says twice which message it answers; if it says two things, it is dropped.
    """
    client, who = grid._runtime_client, (grid.node, grid._run.run_id)
    place = {id_: number for number, id_ in enumerate(ids)}
    handed_out = {upload.about.reply_to_message_id for upload in uploads.values()}
    asked = [id_ for id_ in ids if id_ not in handed_out]  # of the others it knows nothing any more
    came = client.PullMessages(flower.PullAppMessagesRequest(message_ids=asked))
    for proto, tree in zip(came.messages_list, came.message_object_trees, strict=True):
        uploads[proto.metadata.message_id] = Upload(proto.metadata, tree)
    known = [u for u in uploads.values() if u.about.reply_to_message_id in place]
    for upload in sorted(known, key=lambda u: place[u.about.reply_to_message_id]):
        about = upload.about
        try:
            reply = _pull(flower, client, who, upload)
        except (*UNREADABLE, flower.ObjectPullError) as error:
            del uploads[about.message_id]
            yield about.reply_to_message_id, error
            continue
        if reply is None:
            continue
        del uploads[about.message_id]
        if reply.metadata.reply_to_message_id == about.reply_to_message_id:
            yield about.reply_to_message_id, reply


def _pull(flower: ModuleType, client: Any, who: tuple[Any, int], upload: Upload) -> Message | None:
    """Pull the parts of a reply, and tell the SuperLink so; None if some are on their way."""
    (node, run), about = who, upload.about
    on_their_way = []

    def pull_object(request: Any) -> Any:
        answer = client.PullObject(request)
        if answer.object_found and not answer.object_available:
            on_their_way.append(request.object_id)
        elif answer.object_found:
            upload.parts[request.object_id] = answer.object_content
        return answer

    pull = flower.make_pull_object_fn_protobuf(pull_object, node, run)
    ids = [part.object_id for part in flower.iterate_object_tree(upload.tree)]
    try:
        flower.pull_objects([i for i in ids if i not in upload.parts], pull, max_tries_per_object=1)
    except flower.ObjectPullError:
        if on_their_way:
            return None
        raise
    received = flower.ConfirmMessageReceivedRequest(
        node=node, run_id=run, message_object_id=about.message_id
    )
    client.ConfirmMessageReceived(received)
    reply: Message = flower.inflate_object_from_contents(about.message_id, upload.parts)
    reply.metadata.__dict__["_message_id"] = about.message_id
    return reply
