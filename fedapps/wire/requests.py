"""Requests to train or to evaluate: one message to a SuperNode with the work of its clients.

It carries the ids of the clients that the SuperNode is to run, a plan for each, the arrays they
have in common (record `arrays`) and arrays of single clients (`arrays-7`). With one client it is
Flower's ordinary train message: `arrays` and `config`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from fedapps.models.layers import Arrays, Layout
from fedapps.training.plan import Plan
from fedapps.wire.arrays import DTYPE, NPY_HEADER_BYTES, checked_extras, pack_arrays, unpack_arrays
from fedapps.wire.checks import FIGURES_BYTES


@dataclass(frozen=True)
class Request:
    """One client's work in one round: its plan and the arrays it downloads, by name.

    `samples`, which stays on the server, is the most that the client can count in its reply.
    """

    client: int
    plan: Plan
    arrays: Arrays
    samples: int = 2**40

    @property
    def nbytes(self) -> int:
        """Payload of the download in bytes: arrays of any float type travel as float32."""
        return DTYPE.itemsize * sum(array.size for array in self.arrays.values())

    def nbytes_up(self, layout: Layout) -> int:
        """Payload of the upload in bytes."""
        shapes = {**layout.shapes, **self.plan.sends}
        sizes = (np.prod(shapes[name], dtype=np.int64) for name in self.plan.up(layout))
        return DTYPE.itemsize * int(sum(sizes))

    def most_bytes(self, layout: Layout) -> int:
        """Return how many bytes this client's part of a reply may have in all."""
        headers = sum(NPY_HEADER_BYTES + len(name) for name in self.plan.up(layout))
        return self.nbytes_up(layout) + headers + FIGURES_BYTES


class RoundInfo(msgspec.Struct, frozen=True, rename="kebab"):
    """What all requests of a message share.

    `run_id` is the run's own, whatever its directory is called. It was resumed `attempt` times, the
    last time after round `resumed`; it may go back to the state after round `needed` (-1: to none).
    """

    run_dir: str
    fingerprint: str
    presum: bool = False
    run_id: str = ""
    attempt: int = 0
    resumed: int = 0
    needed: int = -1


class RequestHeader(RoundInfo, frozen=True, kw_only=True, rename="kebab"):
    """Record `config` of a message: the clients to run and a plan (JSON) for each.

    `concurrent`: they share a channel with clients of other messages, and all run at once.
    """

    clients: list[int]
    plans: list[str]
    concurrent: bool = False


@dataclass(frozen=True)
class NodeRequest:
    """A message as the SuperNode read it: its header, checked, and how to read the requests."""

    message: Message
    header: RequestHeader

    def requests(self, layout: Layout) -> list[Request]:
        """Read the work of each client; raises `BadMessage` for arrays that do not fit."""
        content, header = self.message.content, self.header
        plans = [msgspec.json.decode(text, type=Plan) for text in header.plans]
        known = [{**layout.shapes, **checked_extras(plan.receives)} for plan in plans]
        common = unpack_arrays(content.array_records["arrays"], known[0])
        requests = []
        for client, plan, shapes in zip(header.clients, plans, known, strict=True):
            own = content.array_records.get(f"arrays-{client}", ArrayRecord())
            requests.append(Request(client, plan, common | unpack_arrays(own, shapes)))
        return requests


def pack_requests(
    requests: Sequence[Request],
    info: RoundInfo,
    node: int,
    kind: str,
    group: str,
    packed: dict[int, Array] | None = None,
) -> Message:
    """Make the message to one SuperNode; arrays that all its clients get travel once.

    `packed` are arrays that other messages of the round carry, too (`pack_arrays`).
    """
    common = _common([request.arrays for request in requests])
    content = RecordDict({"arrays": pack_arrays(common, packed)})
    for request in requests:
        own = {key: value for key, value in request.arrays.items() if key not in common}
        if own:
            content[f"arrays-{request.client}"] = pack_arrays(own)
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
    """Tell whether clients of a message of any kind wait for those of other messages."""
    return bool(message.content.config_records.get("config", ConfigRecord()).get("concurrent"))


def _common(downloads: Sequence[Arrays]) -> Arrays:
    """Return the arrays that are the very same object in every download."""
    first = downloads[0]
    return {
        key: value
        for key, value in first.items()
        if all(other.get(key) is value for other in downloads[1:])
    }
