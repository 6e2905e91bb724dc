"""The greeting: the server asks a SuperNode who it is, and the SuperNode answers with a `Hello`."""

from typing import Annotated, Literal

import msgspec
from flwr.app import ConfigRecord, Message, RecordDict
from msgspec import Meta

from fedapps.core.errors import one_line
from fedapps.wire.checks import FIGURES_BYTES, check_size
from fedapps.wire.health import Health

SampleCount = Annotated[int, Meta(ge=0, lt=2**40)]


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """Records `hello` and, from a device, `health`: what a SuperNode says about itself.

    `client` is "any" if the SuperNode can run every client of the run's data set. Otherwise it is
    the id of the one client whose data the SuperNode has, and `train`, `test` and `validation` are
    that client's numbers of samples. `problem`, if not empty, says why it cannot take part. `nodes`
    and `workers` describe a simulation: the number of SuperNodes, and how many work at once.

    Nobody can check a device's sample counts. They may not exceed `max-samples`, and no later reply
    may claim more samples. So what other clients do must not depend on one device's count alone.
    """

    client: int | Literal["any"] = "any"
    cuda: bool = False
    nodes: int = 1
    workers: int = 0
    train: SampleCount = 0
    test: SampleCount = 0
    validation: SampleCount = 0
    problem: str = ""
    health: Health | None = None


def pack_greeting(node: int) -> Message:
    """Make the message that asks a SuperNode who it is."""
    return Message(RecordDict({"config": ConfigRecord()}), node, "query.hello")


def pack_hello(message: Message, hello: Hello) -> Message:
    """Make the answer to a greeting."""
    figures = msgspec.to_builtins(hello)
    records = {"hello": figures, "health": figures.pop("health")}
    content = RecordDict()
    for name, values in records.items():
        if values:
            content[name] = ConfigRecord(values)
    return Message(content, reply_to=message)


def unpack_hello(reply: Message) -> Hello:
    """Read the answer to a greeting; a broken answer or an error becomes a `problem`."""
    if reply.has_error():
        return Hello(problem=one_line(reply.error.reason or ""))
    try:
        check_size(reply.content, FIGURES_BYTES)
        records = reply.content.config_records
        health = {"health": dict(records["health"]) if "health" in records else None}
        hello = msgspec.convert(dict(records["hello"]) | health, Hello)
    except (ValueError, KeyError) as error:
        return Hello(problem=f"its answer is broken: {one_line(str(error))}")
    return msgspec.structs.replace(hello, problem=one_line(hello.problem) if hello.problem else "")
