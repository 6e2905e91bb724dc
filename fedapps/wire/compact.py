"""Small messages between server and devices travel as one record.

Flower sends each record of a message and each of its arrays as two objects of their own, and each
object is a request to the SuperLink, from the server and again from the device: 20 requests for a
model of 8 arrays, each of which takes longer than the values themselves. So the server packs the
records of a small message into one, and a device does the same with its reply to such a message.
Everything else in `wire/` sees messages as they were before. A device that cannot unpack a message
cannot come across one: its app is the server's.
"""

from collections.abc import Callable
from typing import Any

import msgspec
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

RECORD = KEY = "packed"
LARGEST = 2**18  # bytes of arrays; of larger ones the server keeps one copy for all devices


class _Packed(msgspec.Struct, frozen=True):
    """The records of a message by name; an array is (dtype, shape, stype, data)."""

    arrays: dict[str, dict[str, tuple[str, tuple[int, ...], str, bytes]]]
    metrics: dict[str, dict[str, Any]]
    configs: dict[str, dict[str, Any]]
    order: list[str]


def pack(message: Message) -> Message:
    """Replace the content of a message by one record if its arrays are small; return it."""
    if message.has_error() or not message.has_content():
        return message
    content = message.content
    found = {name: record for name, record in content.items() if isinstance(record, ArrayRecord)}
    sizes = (len(array.data) for record in found.values() for array in record.values())
    if sum(sizes) > LARGEST:
        return message
    metrics = {n: dict(record) for n, record in content.items() if isinstance(record, MetricRecord)}
    configs = {n: dict(record) for n, record in content.items() if isinstance(record, ConfigRecord)}
    arrays = {
        name: {k: (a.dtype, tuple(a.shape), a.stype, a.data) for k, a in record.items()}
        for name, record in found.items()
    }
    data = msgspec.msgpack.encode(_Packed(arrays, metrics, configs, [*content]))
    message.content = RecordDict({RECORD: ConfigRecord({KEY: data})})
    return message


def is_packed(message: Message) -> bool:
    """Tell whether a message has a content that `pack` has made."""
    return message.has_content() and [*message.content] == [RECORD]


def unpack(message: Message) -> Message:
    """Give a message the content that it had before `pack`; return it.

    Raises ValueError, KeyError or TypeError if it cannot be read.
    """
    if not is_packed(message):
        return message
    data = message.content.config_records[RECORD][KEY]
    packed = msgspec.msgpack.decode(data, type=_Packed)  # type: ignore[arg-type]
    records: dict[str, ArrayRecord | MetricRecord | ConfigRecord] = {
        name: ArrayRecord({key: Array(*told) for key, told in arrays.items()})
        for name, arrays in packed.arrays.items()
    }
    records |= {name: MetricRecord(values) for name, values in packed.metrics.items()}
    records |= {name: ConfigRecord(values) for name, values in packed.configs.items()}
    message.content = RecordDict({name: records[name] for name in packed.order})
    return message


def unpacking(
    message: Message, context: Context, answer: Callable[[Message, Context], Message]
) -> Message:
    """Answer a packed message with a packed reply: a mod of Flower, for the ClientApp."""
    if not is_packed(message):
        return answer(message, context)
    return pack(answer(unpack(message), context))
