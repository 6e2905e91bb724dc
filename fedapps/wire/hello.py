"""The greeting: the server asks a SuperNode who it is, and it answers with a `Hello`."""

from typing import Annotated, Literal

import msgspec
from flwr.app import ConfigRecord, Message, RecordDict
from msgspec import Meta

from fedapps.core.errors import one_line
from fedapps.wire.checks import FIGURES_BYTES, check_size

Count = Annotated[int, Meta(ge=0, lt=2**40)]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Record `hello`: what a SuperNode says of itself.

    `client` is "any" where it hosts clients of the run's data set, else the id of the one client
    whose data it has: so many samples of each part. `problem`, if any, is why it cannot take part.
    `nodes` and `workers` are those of a simulation: SuperNodes in all, and at the same time.

    Nobody can check these counts of a device; they are held to `max-samples`, and to no more in any
    reply. What others do must not depend on one of them alone.
    """

    client: int | Literal["any"] = "any"
    cuda: bool = False
    nodes: int = 1
    workers: int = 0
    train: Count = 0
    test: Count = 0
    validation: Count = 0
    problem: str = ""


def pack_greeting(node: int) -> Message:
    """Ask a SuperNode who it is."""
    return Message(RecordDict({"config": ConfigRecord()}), node, "query.hello")


def pack_hello(message: Message, hello: Hello) -> Message:
    """Answer a greeting."""
    return Message(
        RecordDict({"hello": ConfigRecord(msgspec.to_builtins(hello))}), reply_to=message
    )


def unpack_hello(reply: Message) -> Hello:
    """Read such an answer; one that is broken, or an error, becomes a problem."""
    if reply.has_error():
        return Hello(problem=one_line(reply.error.reason or ""))
    try:
        check_size(reply.content, FIGURES_BYTES)
        hello = msgspec.convert(dict(reply.content.config_records["hello"]), Hello)
    except (ValueError, KeyError) as error:
        return Hello(problem=f"its answer is broken: {one_line(str(error))}")
    return msgspec.structs.replace(hello, problem=one_line(hello.problem) if hello.problem else "")
