"""Requests to train or to evaluate: one message to a SuperNode with the work of its clients.

The message has the ids of the clients to run, a plan for each, the arrays that all of them get
(record `arrays`) and the arrays that only one client gets (record `arrays-7` for client 7). With a
single client it is Flower's ordinary train message with `arrays` and `config`. In a secure sum a
client also gets what others have sealed for it (record `boxes-7`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedapps.core.schema import learned
from fedapps.models.layers import Arrays, Layout
from fedapps.secure.masks import length
from fedapps.training.plan import Plan
from fedapps.wire.arrays import (
    DTYPE,
    MASKED,
    NPY_HEADER_BYTES,
    checked_extras,
    dtype_of,
    pack_arrays,
    unpack_arrays,
)
from fedapps.wire.checks import FIGURES_BYTES, record_of


@dataclass(frozen=True)
class Request:
    """One client's work in one round: its plan, and the arrays that it downloads, by name.

    `samples` is the largest number of samples that the client may claim in its reply. If it claims
    more, but at most `grown`, it is to be asked anew. If all clients weigh the `same`, whatever
    their samples, its weight in a pre-summed mean is 1. None of the three is sent. With `boxes`,
    the client uploads a masked vector in place of arrays (`fedapps.secure`). `earlier` is that of
    the message (`RoundInfo`).
    """

    client: int
    plan: Plan
    arrays: Arrays
    samples: int = 2**40
    boxes: bytes = b""
    grown: int = 0
    same: bool = False
    earlier: int = 0

    @property
    def nbytes(self) -> int:
        """The payload of the download in bytes; arrays of any float type are sent as float32."""
        return DTYPE.itemsize * sum(array.size for array in self.arrays.values())

    def nbytes_up(self, layout: Layout) -> int:
        """Return the payload of the upload in bytes."""
        sizes = {name: math.prod(shape) for name, shape in self.shapes_up(layout).items()}
        return sum(dtype_of(name).itemsize * size for name, size in sizes.items())

    def shapes_up(self, layout: Layout) -> dict[str, tuple[int, ...]]:
        """Return the names and shapes of the arrays of the upload, in order."""
        known = {**layout.shapes, **self.plan.sends}
        shapes = {name: known[name] for name in self.plan.up(layout)}
        return {MASKED: (length(shapes.values()),)} if self.boxes else shapes

    def most_bytes(self, layout: Layout) -> int:
        """Return the largest size in bytes that this client's part of a reply may have."""
        headers = sum(NPY_HEADER_BYTES + len(name) for name in self.shapes_up(layout))
        return self.nbytes_up(layout) + headers + FIGURES_BYTES


class RoundInfo(msgspec.Struct, frozen=True, rename="kebab"):
    """What all requests of a message share.

    `run_id` identifies the run, even if its directory is renamed. The run was resumed after each of
    the rounds `resumed`. A resumed run may go back to the state after round `needed` (-1: it cannot
    be resumed). Initial models of another `fingerprint` can be alike in their `sketch`. Noise from
    the seed goes on after so many rounds of `earlier` runs of the federation.
    """

    run_dir: str
    fingerprint: str
    presum: bool = False
    run_id: str = ""
    resumed: list[int] = []
    needed: int = -1
    sketch: str = ""
    earlier: int = 0

    @property
    def attempt(self) -> int:
        """How often the run was resumed."""
        return len(self.resumed)


@learned
class RequestHeader(RoundInfo, frozen=True, kw_only=True, rename="kebab"):
    """Record `config` of a message: the clients to run and a plan (JSON) for each.

    `concurrent` says that they share a channel with clients of other messages, so that all of them
    must run at the same time.
    """

    clients: list[int]
    plans: list[str]
    concurrent: bool = False


@dataclass(frozen=True)
class NodeRequest:
    """A message that a SuperNode has received: its checked header, and the requests in it."""

    message: Message
    header: RequestHeader

    def requests(self, layout: Layout) -> list[Request]:
        """Read the requests, one per client; raises `BadMessage` if arrays do not fit."""
        content, header = self.message.content, self.header
        plans = [msgspec.json.decode(text, type=Plan) for text in header.plans]
        known = [{**layout.shapes, **checked_extras(plan.receives)} for plan in plans]
        common = unpack_arrays(content.array_records["arrays"], known[0])
        requests = []
        for client, plan, shapes in zip(header.clients, plans, known, strict=True):
            own = record_of(content, f"arrays-{client}", ArrayRecord)
            arrays = common | (unpack_arrays(own, shapes) if own else {})
            boxes = record_of(content, f"boxes-{client}", ConfigRecord)
            sealed = msgspec.convert(boxes["boxes"], bytes) if boxes else b""
            requests.append(Request(client, plan, arrays, boxes=sealed, earlier=header.earlier))
        return requests


def pack_requests(
    requests: Sequence[Request],
    info: RoundInfo,
    node: int,
    kind: str,
    group: str,
    packed: dict[int, Array] | None = None,
) -> Message:
    """Make the message to one SuperNode; arrays that all its clients get are in it only once.

    `packed` holds arrays that other messages of the round contain, too (`pack_arrays`).
    """
    common = _common([request.arrays for request in requests])
    content = RecordDict({"arrays": pack_arrays(common, packed)})
    for request in requests:
        own = {key: value for key, value in request.arrays.items() if key not in common}
        if own:
            content[f"arrays-{request.client}"] = pack_arrays(own)
        if request.boxes:
            content[f"boxes-{request.client}"] = ConfigRecord({"boxes": request.boxes})
    header = RequestHeader(
        **msgspec.structs.asdict(info),
        clients=[request.client for request in requests],
        plans=[msgspec.json.encode(request.plan).decode() for request in requests],
        concurrent=any(request.plan.channel for request in requests),
    )
    content["config"] = ConfigRecord(msgspec.to_builtins(header))
    return Message(content, node, kind, group_id=group)


def read_request(message: Message) -> NodeRequest:
    """Read and check the header of a message; raises `msgspec.ValidationError` or KeyError."""
    header = msgspec.convert(dict(message.content.config_records["config"]), RequestHeader)
    return NodeRequest(message, header)


def is_concurrent(message: Message) -> bool:
    """Tell whether clients of a message (of any kind) wait for clients of other messages."""
    return bool(message.content.config_records.get("config", ConfigRecord()).get("concurrent"))


def _common(downloads: Sequence[Arrays]) -> Arrays:
    """Return the arrays that are the same object in every download."""
    first = downloads[0]
    return {
        key: value
        for key, value in first.items()
        if all(other.get(key) is value for other in downloads[1:])
    }
