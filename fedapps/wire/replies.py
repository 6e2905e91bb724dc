"""Replies to requests: a SuperNode packs them, and the server checks them before it uses them.

A reply has the records `arrays-7` and `metrics-7` for client 7 (and so on for each client), and a
record `failures`. If only one client was asked, it is Flower's ordinary train reply with `arrays`
and `metrics`.
"""

import math
import re
from collections.abc import Iterable, Sequence

import msgspec
from flwr.app import ArrayRecord, ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict

from fedapps.core import log
from fedapps.core.errors import one_line
from fedapps.core.flower import SYSTEM_MESSAGE_TYPE, ErrorCode, make_message
from fedapps.method.update import ClientUpdate, Failure, Metrics
from fedapps.models.layers import Layout
from fedapps.wire.arrays import checked_extras, pack_arrays, unpack_arrays
from fedapps.wire.checks import LARGEST, BadMessage, GrownError, check_size, reason_of, record_of
from fedapps.wire.requests import NodeRequest, Request

# Ray's errors for a process that was ended from outside, usually for lack of memory.
DEAD_WORKER = re.compile(r"(ActorDied|ActorUnavailable|WorkerCrashed|OutOfMemory)Error")


class FailureList(msgspec.Struct, frozen=True):
    """Record `failures` of a reply: the clients that failed, and the cause of each."""

    clients: list[int]
    causes: list[str]


def pack_reply(
    asked: NodeRequest, updates: Iterable[ClientUpdate], failures: Iterable[Failure]
) -> Message:
    """Make a SuperNode's reply to the requests in a message."""
    alone = len(asked.header.clients) == 1
    content, failures = RecordDict(), list(failures)
    for update in updates:
        suffix = "" if alone else f"-{update.client}"
        content[f"metrics{suffix}"] = pack_metrics(update, asked.header.presum)
        content[f"arrays{suffix}"] = pack_arrays(update.arrays | update.extras)
    content["failures"] = pack_failures(failures)
    return Message(content, reply_to=asked.message)


def pack_failures(failures: Sequence[Failure]) -> ConfigRecord:
    """Return the record that says which clients failed, and why."""
    failed = FailureList([f.client for f in failures], [f.cause for f in failures])
    return ConfigRecord(msgspec.to_builtins(failed))


def pack_metrics(update: ClientUpdate, presum: bool) -> MetricRecord:
    """Return an update's figures as a record; raises TypeError if one is not a number."""
    numbers: Metrics = {"num-examples": update.num_examples}
    weight: Metrics = {"weight": float(update.weight)} if presum else {}
    return MetricRecord(numbers | weight | update.metrics)


def unreadable(message_id: str, reason: str) -> Message:
    """Make the error reply that stands for an unreadable reply to `message_id`."""
    metadata = Metadata(
        run_id=0,
        message_id="",
        src_node_id=0,
        dst_node_id=0,
        reply_to_message_id=message_id,
        group_id="",
        created_at=0.0,
        ttl=0.0,
        message_type=SYSTEM_MESSAGE_TYPE,
    )
    return make_message(metadata, error=Error(ErrorCode.MESSAGE_UNAVAILABLE, reason))


def unpack_reply(
    requests: Sequence[Request],
    reply: Message,
    layout: Layout,
    presum: bool = False,
    largest: float = LARGEST,
) -> tuple[list[ClientUpdate], list[Failure]]:
    """Read the reply to `requests` on the server; a client with a bad update becomes a failure.

    `largest` is the largest magnitude that a value in an array may have.
    """
    if reply.has_error() and (died := DEAD_WORKER.search(reply.error.reason or "")):
        cause = f"its worker process died ({died[0]})"
        return [], [Failure(request.client, cause, True) for request in requests]
    most_bytes = sum(request.most_bytes(layout) for request in requests)
    causes = causes_in(reply, [request.client for request in requests], most_bytes)
    alone = len(requests) == 1
    updates: list[ClientUpdate] = []
    failures = []
    weights = (1 if request.same else request.samples for request in requests)
    left = float(sum(weights))  # a mean stands for several clients
    for request in requests:
        try:
            if request.client in causes:
                raise BadMessage(causes[request.client])
            suffix = "" if alone else f"-{request.client}"
            most = left if presum else None
            update = _unpack_update(request, reply.content, suffix, layout, most, largest)
            updates.append(update)
            left -= update.weight
        except BadMessage as error:
            failures.append(Failure(request.client, one_line(str(error))))
        except Exception as error:  # an unforeseen error fails this client, not the run
            log.debug("client %s: a reply that cannot be read", request.client, exc_info=True)
            cause = f"its reply cannot be read ({type(error).__name__})"
            failures.append(Failure(request.client, cause))
    return updates, failures


def causes_in(reply: Message, asked: Sequence[int], most: int) -> dict[int, str]:
    """Return which of the `asked` clients failed, and why, in one line each.

    If a reply is an error, has more than `most` bytes, or a broken list of failures, it is all.
    """
    if reply.has_error():
        return dict.fromkeys(asked, reason_of(reply.error))
    try:
        check_size(reply.content, most)
        causes = _read_causes(reply.content, {*asked})
    except BadMessage as error:
        return dict.fromkeys(asked, one_line(str(error)))
    return {client: one_line(cause) for client, cause in causes.items()}


def _read_causes(content: RecordDict, asked: set[int]) -> dict[int, str]:
    """Read which clients failed, and why; raises `BadMessage` for others than the `asked`."""
    record = content.config_records.get("failures")
    if record is None:
        return {}
    try:
        failed = msgspec.convert(dict(record), FailureList)
        causes = dict(zip(failed.clients, failed.causes, strict=True))
    except ValueError as error:  # msgspec's errors are ValueErrors, too
        raise BadMessage(f"the reply's list of failures is broken: {error}") from error
    if not causes.keys() <= asked:
        raise BadMessage("the reply's list of failures is broken: unknown clients")
    return causes


def _unpack_update(
    request: Request,
    content: RecordDict,
    suffix: str,
    layout: Layout,
    most: float | None,
    largest: float,
) -> ClientUpdate:
    """Read one client's part of a reply; `most` is the largest weight of a pre-summed mean."""
    metrics = record_of(content, f"metrics{suffix}", MetricRecord)
    packed = record_of(content, f"arrays{suffix}", ArrayRecord)
    if metrics is None or packed is None:
        raise BadMessage("the reply has no result of this client")
    numbers = dict(metrics)
    num_examples = numbers.pop("num-examples", 0)
    if isinstance(num_examples, int) and request.samples < num_examples <= request.grown:
        raise GrownError(request.samples, num_examples)
    if not (isinstance(num_examples, int) and 1 <= num_examples <= request.samples):
        raise BadMessage(
            f"num-examples = {num_examples}: must be from 1 to {request.samples}, "
            "the samples that it had when it was last asked"
        )
    weight = float(num_examples) if most is None else numbers.pop("weight", None)
    if not (isinstance(weight, float) and 0 <= weight <= (math.inf if most is None else most)):
        raise BadMessage(f"weight = {weight}: must be from 0 to {most:g}")
    shapes = {**layout.shapes, **checked_extras(request.plan.sends), **request.shapes_up(layout)}
    arrays = unpack_arrays(packed, shapes, largest)
    expected = request.shapes_up(layout) if weight else ()
    if set(arrays) != set(expected):
        names = ", ".join(sorted(set(arrays).symmetric_difference(expected))[:3])
        raise BadMessage(f"arrays missing or not asked for: {names}")
    extras = {name: arrays.pop(name) for name in request.plan.sends if weight}
    return ClientUpdate(request.client, arrays, num_examples, numbers, weight, extras)
