"""Replies to requests: packed by a SuperNode, and judged on the server before they are used.

A reply carries `arrays-7` and `metrics-7` for each client, and `failures`. That of a client alone
is Flower's ordinary train reply: `arrays` and `metrics`.
"""

import math
import re
from collections.abc import Iterable, Sequence

import msgspec
from flwr.app import ConfigRecord, Error, Message, Metadata, MetricRecord, RecordDict

from fedapps.core import log
from fedapps.core.errors import one_line
from fedapps.core.flower import SYSTEM_MESSAGE_TYPE, ErrorCode, make_message
from fedapps.method.update import ClientUpdate, Failure, Metrics
from fedapps.models.layers import Layout
from fedapps.wire.arrays import checked_extras, pack_arrays, unpack_arrays
from fedapps.wire.checks import LARGEST, BadMessage, check_size
from fedapps.wire.requests import NodeRequest, Request

# What Ray says of a process that was ended from outside, mostly for want of memory.
DEAD_WORKER = re.compile(r"(ActorDied|ActorUnavailable|WorkerCrashed|OutOfMemory)Error")


class FailureList(msgspec.Struct, frozen=True):
    """Record `failures` of a reply: clients, and the cause of each."""

    clients: list[int]
    causes: list[str]


def pack_reply(
    asked: NodeRequest, updates: Iterable[ClientUpdate], failures: Iterable[Failure]
) -> Message:
    """Make a SuperNode's reply to what it was asked."""
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
    """Return an update's figures as a record; raises TypeError for one that is no number."""
    numbers: Metrics = {"num-examples": update.num_examples}
    weight: Metrics = {"weight": float(update.weight)} if presum else {}
    return MetricRecord(numbers | weight | update.metrics)


def unreadable(message_id: str, reason: str) -> Message:
    """Make the error that stands for a reply to `message_id` that nobody can read."""
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

    `largest` is the largest magnitude of a value in an array.
    """
    if reply.has_error():
        reason = reply.error.reason or ""
        died = DEAD_WORKER.search(reason)
        cause = f"its worker process died ({died[0]})" if died else one_line(reason)
        return [], [Failure(request.client, cause, died is not None) for request in requests]
    content, alone = reply.content, len(requests) == 1
    try:
        check_size(content, sum(request.most_bytes(layout) for request in requests))
        causes = read_causes(content, {request.client for request in requests})
    except BadMessage as error:
        return [], [Failure(request.client, one_line(str(error))) for request in requests]
    updates: list[ClientUpdate] = []
    failures = []
    left = float(sum(request.samples for request in requests))  # a mean weighs for others too
    for request in requests:
        try:
            if request.client in causes:
                raise BadMessage(one_line(causes[request.client]))
            suffix = "" if alone else f"-{request.client}"
            most = left if presum else None
            update = _unpack_update(request, content, suffix, layout, most, largest)
            updates.append(update)
            left -= update.weight
        except BadMessage as error:
            failures.append(Failure(request.client, one_line(str(error))))
        except Exception as error:  # what nobody thought of costs this client, not the run
            log.debug("client %s: a reply that cannot be read", request.client, exc_info=True)
            cause = f"its reply cannot be read ({type(error).__name__})"
            failures.append(Failure(request.client, cause))
    return updates, failures


def read_causes(content: RecordDict, asked: set[int]) -> dict[int, str]:
    """Read which clients the SuperNode says failed, and why; raises `BadMessage` if others did."""
    record = content.config_records.get("failures")
    if record is None:
        return {}
    try:
        failed = msgspec.convert(dict(record), FailureList)
        causes = dict(zip(failed.clients, failed.causes, strict=True))
    except ValueError as error:  # msgspec's too
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
    """Read one client's part of a reply; `most` is what a pre-summed mean may weigh."""
    metrics = content.metric_records.get(f"metrics{suffix}")
    record = content.array_records.get(f"arrays{suffix}")
    if metrics is None or record is None:
        raise BadMessage("the reply has no result of this client")
    numbers = dict(metrics)
    num_examples = numbers.pop("num-examples", 0)
    if not (isinstance(num_examples, int) and 1 <= num_examples <= request.samples):
        raise BadMessage(f"num-examples = {num_examples}: must be from 1 to {request.samples}")
    weight = float(num_examples) if most is None else numbers.pop("weight", None)
    if not (isinstance(weight, float) and 0 <= weight <= (math.inf if most is None else most)):
        raise BadMessage(f"weight = {weight}: must be a sample count, at most {most:g}")
    shapes = {**layout.shapes, **checked_extras(request.plan.sends)}
    arrays = unpack_arrays(record, shapes, largest)
    expected = request.plan.up(layout) if weight else ()
    if set(arrays) != set(expected):
        names = ", ".join(sorted(set(arrays).symmetric_difference(expected))[:3])
        raise BadMessage(f"arrays missing or not asked for: {names}")
    extras = {name: arrays.pop(name) for name in request.plan.sends if weight}
    return ClientUpdate(request.client, arrays, num_examples, numbers, weight, extras)
