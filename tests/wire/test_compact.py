"""Small messages travel as one record, and nothing in them changes."""

import msgspec
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.superlink.grid.http_grid import HttpGrid
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps.wire import compact
from fedapps.wire.grid import StreamingGrid

names = st.text(max_size=5)
numbers = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
metrics = numbers | st.lists(st.integers(0, 9), min_size=1) | st.lists(st.floats(0, 1), min_size=1)
values = metrics | st.text() | st.binary() | st.booleans() | st.lists(st.text(), min_size=1)
shapes = st.lists(st.integers(0, 3), max_size=3)
arrays = shapes.map(lambda shape: Array(np.full(shape, 0.5, np.float32)))
records = (
    st.dictionaries(names, arrays).map(ArrayRecord)
    | st.dictionaries(names, metrics).map(MetricRecord)
    | st.dictionaries(names, values).map(ConfigRecord)
)


def message_of(content):
    return Message(RecordDict(content), 1, "train")


@settings(max_examples=30)
@given(st.dictionaries(names, records, max_size=4))
def test_a_packed_message_has_one_record_and_comes_out_as_it_was(content):
    message = compact.pack(message_of(content))
    assert compact.is_packed(message)
    kinds = [type(it).__name__ for it in get_all_nested_objects(message).values()]
    assert sorted(kinds) == ["ConfigRecord", "Message", "RecordDict"]
    again = compact.unpack(message).content
    assert again == RecordDict(content) and [*again] == [*content]
    for name, record in content.items():
        assert type(again[name]) is type(record) and [*again[name]] == [*record]
        for key, value in record.items():
            assert type(again[name][key]) is type(value)


def test_what_is_large_or_an_error_stays_as_it_is():
    large = Array(np.zeros(compact.LARGEST // 4, np.float32))
    for message in (
        message_of({"a": ArrayRecord({"w": large})}),
        Message(Error(1, "x"), reply_to=message_of({})),
    ):
        before = vars(message).copy()
        assert compact.pack(message) is message and vars(message) == before
        assert compact.unpack(message) is message and vars(message) == before
        assert not compact.is_packed(message)


@pytest.mark.parametrize("data", [
    b"", b"\xc1", msgspec.msgpack.encode([1]), 7, "text",
    msgspec.msgpack.encode({"arrays": {}, "metrics": {}, "configs": {}, "order": ["gone"]}),
    msgspec.msgpack.encode({"arrays": {"a": {"w": 1}}, "metrics": {}, "configs": {}, "order": []}),
    msgspec.msgpack.encode(
        {"arrays": {}, "metrics": {"m": {"k": "text"}}, "configs": {}, "order": ["m"]}
    ),
])  # fmt: skip
def test_what_cannot_be_unpacked_is_an_error_that_the_grid_expects(data):
    message = message_of({compact.RECORD: ConfigRecord({compact.KEY: data})})
    with pytest.raises((ValueError, KeyError, TypeError)):
        compact.unpack(message)


def test_only_a_packed_message_gets_a_packed_reply():
    def answer(message, context):
        assert message.content["m"] == MetricRecord({"x": 1})
        return Message(RecordDict({"n": MetricRecord({"y": 2})}), reply_to=message)

    plain = message_of({"m": MetricRecord({"x": 1})})
    assert not compact.is_packed(compact.unpacking(plain, None, answer))
    reply = compact.unpacking(compact.pack(plain), None, answer)
    assert compact.is_packed(reply)
    assert compact.unpack(reply).content == RecordDict({"n": MetricRecord({"y": 2})})


@pytest.mark.parametrize(
    ("sizes", "calls"), [([1, 2, 3], [[1], [2], [3]]), ([1, 10**6], [[1, 10**6]])]
)
def test_small_messages_are_pushed_one_by_one_and_large_ones_together(sizes, calls):
    """A device that finds a message finds its records soon after, and large arrays are shared."""

    class Devices(HttpGrid):
        def __init__(self):
            self.pushed = []

        def push_messages(self, messages):
            self.pushed.append([message.metadata.dst_node_id for message in messages])
            return [f"message {node}" for node in self.pushed[-1]]

    flower = Devices()
    messages = [
        Message(
            RecordDict({"a": ArrayRecord({"w": Array(np.zeros(size, np.float32))})}), size, "train"
        )
        for size in sizes
    ]
    assert [*StreamingGrid(flower).push_messages(messages)] == [f"message {n}" for n in sizes]
    assert flower.pushed == calls
