"""Steps of a secure sum besides the upload: bytes for each client, and bytes back (query.step).

What the bytes are, `fedapps.secure` defines. The message has a record `given-7` for client 7, and
the reply a record `answer-7`, as the reply to a question has.
"""

from collections.abc import Mapping, Sequence

import msgspec
from flwr.app import ConfigRecord, Message, RecordDict

from fedapps.method.update import Failure
from fedapps.wire.questions import unpack_each
from fedapps.wire.requests import RoundInfo


class StepHeader(RoundInfo, frozen=True, kw_only=True, rename="kebab"):
    """Record `config` of a message: the step of a round, and the clients that do it."""

    step: str
    round: int
    clients: list[int]


def pack_step(
    info: RoundInfo, node: int, round_: int, step: str, given: Mapping[int, bytes]
) -> Message:
    """Make the message that asks a SuperNode for a step of clients, with what each is given."""
    about = msgspec.structs.asdict(info)
    header = StepHeader(**about, step=step, round=round_, clients=[*given])
    content = RecordDict({f"given-{c}": ConfigRecord({"bytes": b}) for c, b in given.items()})
    content["config"] = ConfigRecord(msgspec.to_builtins(header))
    return Message(content, node, "query.step", group_id=str(round_))


def read_step(message: Message) -> tuple[StepHeader, dict[int, bytes]]:
    """Return the header of a message, and what each client is given."""
    content = message.content.config_records
    header = msgspec.convert(dict(content["config"]), StepHeader)
    given = {c: msgspec.convert(content[f"given-{c}"]["bytes"], bytes) for c in header.clients}
    return header, given


def unpack_step(asked: Sequence[int], reply: Message) -> tuple[dict[int, bytes], list[Failure]]:
    """Read the bytes that the clients `asked` have answered; a client without is a failure."""

    def read(record: ConfigRecord) -> bytes:
        return msgspec.convert(record["bytes"], bytes, strict=True)

    return unpack_each(asked, reply, ConfigRecord, read, "the bytes of a step")
