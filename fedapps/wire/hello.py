"""The greeting: the server asks a SuperNode who it is, and the SuperNode answers with a `Hello`.

If a run on devices starts from given weights, the greeting brings them: record `initial-model`,
with the bytes of the file, and their manifest and signature in the record `config`.
"""

import sys
from typing import Annotated, Literal

import msgspec
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from msgspec import Meta

from fedapps.core.errors import RunError, one_line
from fedapps.core.signing import SignedModel
from fedapps.wire.checks import FIGURES_BYTES, check_size, reason_of, record_of
from fedapps.wire.health import Health

SampleCount = Annotated[int, Meta(ge=0, lt=2**40)]
INITIAL, BYTES = "initial-model", "bytes"  # a record, and the kind of its one array


class Vouchers(msgspec.Struct, frozen=True):
    """Record `config` of a greeting: what vouches for the initial model; empty if nothing does."""

    manifest: Annotated[bytes, Meta(max_length=FIGURES_BYTES)] = b""
    signature: Annotated[bytes, Meta(max_length=64)] = b""


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


def pack_greeting(node: int, model: SignedModel | None = None) -> Message:
    """Make the message that asks a SuperNode who it is, and brings it the initial model."""
    content = RecordDict({"config": ConfigRecord()})
    if model is not None:
        vouchers = Vouchers(model.manifest, model.signature)
        content["config"] = ConfigRecord(msgspec.structs.asdict(vouchers))
        file = Array("uint8", (len(model.content),), BYTES, model.content)
        content[INITIAL] = ArrayRecord({"file": file})
    return Message(content, node, "query.hello")


def read_greeting(message: Message) -> SignedModel | None:
    """Return the initial model that a greeting brings, if any; raises `RunError` if it is broken.

    Nothing vouches for it yet.
    """
    record = record_of(message.content, INITIAL, ArrayRecord)
    if record is None:
        return None
    try:
        found = msgspec.convert(dict(message.content.config_records["config"]), Vouchers)
        file = record["file"]
    except (ValueError, KeyError) as error:
        raise RunError(f"the greeting is broken: {one_line(str(error))}") from error
    if file.stype != BYTES:
        raise RunError(f"the greeting is broken: its model comes as {one_line(file.stype)}")
    return SignedModel(file.data, found.manifest, found.signature)


def pack_hello(message: Message, hello: Hello) -> Message:
    """Make the answer to a greeting."""
    figures = msgspec.to_builtins(hello)
    records = {"hello": figures, "health": figures.pop("health")}
    content = RecordDict({name: ConfigRecord(values) for name, values in records.items() if values})
    return Message(content, reply_to=message)


def unpack_hello(reply: Message) -> Hello:
    """Read the answer to a greeting; a broken answer or an error becomes a `problem`."""
    if reply.has_error():
        return Hello(problem=reason_of(reply.error))
    try:
        check_size(reply.content, FIGURES_BYTES)
        records = reply.content.config_records
        health = {"health": dict(records["health"]) if "health" in records else None}
        hello = msgspec.convert(dict(records["hello"]) | health, Hello)
    except (ValueError, KeyError) as error:
        return Hello(problem=f"its answer is broken: {one_line(str(error))}")
    return msgspec.structs.replace(hello, problem=one_line(hello.problem) if hello.problem else "")


def ray_workers() -> int:
    """Return how many SuperNodes can work at the same time in a simulation; 0 outside of one."""
    ray = sys.modules.get("ray")  # a simulation has loaded it; otherwise it is not needed
    if ray is None or not ray.is_initialized():
        return 0
    mine = ray.get_runtime_context().get_assigned_resources()
    there = ray.cluster_resources()
    counts = [int(there.get(name, 0.0) / share) for name, share in mine.items() if share]
    return min(counts, default=0)
