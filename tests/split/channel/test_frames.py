"""Frames of the channel: what comes back, and what is refused."""

import json
import math
import tracemalloc
from contextlib import suppress

import msgspec
import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from fedapps.split.frames import MAX_SIDES, BadFrame, Frame, decode, encode

ARRAYS = npst.arrays(
    st.sampled_from([np.dtype("<f4"), np.dtype("<f8"), np.dtype("<i8")]),
    npst.array_shapes(min_dims=0, max_dims=MAX_SIDES, min_side=0, max_side=3),
)
NAMED = st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=5), ARRAYS, max_size=3)
SIDES = st.one_of(st.integers(-1, 3), st.integers(2**30, 2**64))
HEADERS = st.fixed_dictionaries(
    {"kind": st.sampled_from(["join", "data", "other"]), "client": st.integers()},
    optional={
        "tensors": st.lists(
            st.tuples(
                st.text(max_size=2),
                st.sampled_from(["<f4", "<i8", "|O"]),
                st.lists(SIDES, max_size=MAX_SIDES + 1),
            ),
            max_size=3,
        ),
        "loss": st.floats(),
        "step": st.lists(st.integers(), max_size=3),
        "more": st.recursive(st.none(), st.lists, max_leaves=5),
    },
)


def framed(header, body=b""):
    """A frame with any header: bytes, or what is written as JSON."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(4, "little") + text + body


def announcing(*shape):
    """A frame that announces float32 values of a shape and sends none."""
    return framed({"kind": "data", "client": 1, "tensors": [["x", "<f4", shape]]})


@given(NAMED, st.text(st.characters(codec="utf-8")), st.tuples(st.integers(0), st.integers(0)))
@settings(max_examples=60)
@example({"scalar": np.array(3.0, np.float32)}, "", (0, 0))
def test_tensors_come_back_as_they_were(arrays, text, step):
    frame = Frame("data", 7, step=step, loss=0.25, text=text)
    found, tensors = decode(encode(frame, {k: torch.from_numpy(v) for k, v in arrays.items()}))
    assert msgspec.structs.replace(found, tensors=()) == frame
    assert tensors.keys() == arrays.keys()
    for key, value in arrays.items():
        assert tensors[key].numpy().dtype == value.dtype
        np.testing.assert_array_equal(tensors[key].numpy(), value, strict=True)


def test_images_travel_channels_last():
    x = torch.arange(24.0).view(1, 2, 3, 4)
    sent = encode(Frame("data", 0), {"x": x})
    assert sent.endswith(x.permute(0, 2, 3, 1).contiguous().numpy().tobytes())
    found = decode(sent)[1]["x"]
    assert torch.equal(found, x)
    assert found.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("loss", [math.inf, math.nan])
def test_a_loss_that_is_not_finite_travels_too(loss):
    """A diverged server still answers with a frame; an unreadable one ends the whole stream."""
    found, _ = decode(encode(Frame("gradient", 0, loss=loss)))
    assert found.loss is None


@given(NAMED, st.data())
@settings(max_examples=60)
def test_a_frame_cut_off_or_too_long_is_refused(arrays, data):
    tensors = {k: torch.from_numpy(v) for k, v in arrays.items()}
    whole = encode(Frame("data", 7, text="x"), tensors)
    with pytest.raises(BadFrame):
        decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(BadFrame):
        decode(whole + data.draw(st.binary(min_size=1, max_size=9)))


@given(st.one_of(st.binary(max_size=60), st.binary(max_size=60).map(framed)))
@settings(max_examples=200)
@example(b"")
@example(framed(b'{"kind":"data","client":1,"text":"\xff"}'))
@example(framed(b'{"kind":"data","client":1,"x":' + b"[" * 60_000))
def test_bytes_that_are_no_frame_are_refused(data):
    with pytest.raises(BadFrame):
        decode(data)


@given(HEADERS, st.binary(max_size=16))
@settings(max_examples=200)
@example({"kind": "data", "client": 1, "tensors": [["x", "<f4", [0, 2**63]]]}, b"")
def test_a_header_of_any_content_is_read_or_refused(header, body):
    """Whatever it announces, nothing but `BadFrame` is raised."""
    with suppress(BadFrame):
        frame, tensors = decode(framed(header, body))
        assert frame.client == header["client"]
        assert sum(tensor.nbytes for tensor in tensors.values()) <= len(body)


def test_a_shape_of_too_many_sides_is_refused():
    """The product of thousands of them would take the server long; a frame can announce as many."""
    decode(announcing(*[0] * MAX_SIDES))
    with pytest.raises(BadFrame):
        decode(announcing(*[0] * (MAX_SIDES + 1)))


@pytest.mark.parametrize("shape", [(10 * 2**28,), (2**20, 2**20, 2**20), (-1,), (2**62, 2**62)])
def test_a_huge_shape_is_refused_before_memory_is_taken(shape):
    data = announcing(*shape)
    tracemalloc.start()  # numpy reports to it what it allocates
    try:
        with pytest.raises(BadFrame):
            decode(data)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
