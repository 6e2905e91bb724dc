"""Frames, the messages of split learning's channel: a JSON header and the bytes of tensors.

Nothing is pickled, and all sizes are checked before they are used.
"""

import math
import queue
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec
import numpy as np
import torch
from torch import Tensor

from fedapps.core.schema import learned

FRAME_HEADER_BYTES = 65_536  # limit of a frame's header, in bytes
MAX_SIDE = 2**31  # every side and size of a tensor must be below this
MAX_SIDES = 8  # volumes, and the weights of a Conv3d, have 5
DTYPES = {"<f4": torch.float32, "<f8": torch.float64, "<i8": torch.int64}
NAMES = {dtype: name for name, dtype in DTYPES.items()}

Kind = Literal["join", "begin", "data", "gradient", "done", "failed", "drop"]
Tensors = Mapping[str, Tensor]


class BadFrame(ValueError):
    """The received bytes are not a valid frame, or not one that was due."""


@learned
class Frame(msgspec.Struct, frozen=True, omit_defaults=True):
    """One message to or from one client.

    `step` is the client's (epoch, batch), counted from (0, 0). `loss` comes with a gradient. `text`
    is a token (join) or a reason (failed, drop). `tensors` lists (name, dtype, shape) of the
    tensors that follow the header. As JSON has no infinity, a loss that is not finite arrives as
    None.
    """

    kind: Kind
    client: int
    step: tuple[int, int] = (0, 0)
    loss: float | None = 0.0
    text: str = ""
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...] = ()


def encode(frame: Frame, tensors: Tensors | None = None) -> bytes:
    """Return the bytes of a frame; 4-d tensors are sent channels last, as they are in memory."""
    tensors = tensors or {}
    specs = tuple((name, NAMES[t.dtype], tuple(t.shape)) for name, t in tensors.items())
    header = msgspec.json.encode(msgspec.structs.replace(frame, tensors=specs))
    values = [_channels_last(t.detach().cpu()).numpy().data for t in tensors.values()]
    return b"".join([len(header).to_bytes(4, "little"), header, *values])


def decode(data: bytes) -> tuple[Frame, dict[str, Tensor]]:
    """Read a frame and its tensors; raises `BadFrame` if sizes or types are not valid."""
    size = int.from_bytes(data[:4], "little")
    if size > min(FRAME_HEADER_BYTES, len(data) - 4):
        raise BadFrame(f"a header of {size} bytes in a frame of {len(data)}")
    try:
        frame = msgspec.json.decode(memoryview(data)[4 : 4 + size], type=Frame)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadFrame(f"unreadable header: {error}") from error
    tensors, start = {}, 4 + size
    for name, dtype, shape in frame.tensors:
        sane = dtype in DTYPES and len(shape) <= MAX_SIDES and min(shape, default=0) >= 0
        if not sane or math.prod(max(side, 1) for side in shape) >= MAX_SIDE:
            raise BadFrame(f"{name} as {dtype}{shape}")
        count = math.prod(shape)
        end = start + count * np.dtype(dtype).itemsize
        if end > len(data):
            raise BadFrame(f"{name} {shape} announced, but {len(data) - start} bytes sent")
        values = torch.from_numpy(np.frombuffer(data, dtype, count, start).copy())
        tensors[name] = _channels_first(values, shape)
        start = end
    if start != len(data):
        raise BadFrame(f"{len(data) - start} bytes too many")
    return frame, tensors


def _channels_last(tensor: Tensor) -> Tensor:
    return (tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor).contiguous()


def _channels_first(values: Tensor, shape: Sequence[int]) -> Tensor:
    if len(shape) != 4:
        return values.view(tuple(shape))
    n, c, h, w = shape
    return values.view(n, h, w, c).permute(0, 3, 1, 2)


class Stream:
    """One open stream as the server sees it, and the clients that joined through it."""

    def __init__(self) -> None:
        self.outbox: queue.Queue[bytes | None] = queue.Queue()
        self.clients: set[int] = set()
        self.late: set[int] = set()  # were told that they came too late; may send one more frame

    def send(self, frame: Frame, tensors: Tensors | None = None) -> None:
        """Queue a frame."""
        self.outbox.put(encode(frame, tensors))

    def close(self) -> None:
        """End the stream when all that is queued has been sent."""
        self.outbox.put(None)
