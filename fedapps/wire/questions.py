"""Questions that a method asks clients besides training and evaluation; an answer is floats.

A question is a name; its meaning is defined by the method's strategy and client. The message also
lists the ids of the clients that are asked. The reply has a record for each client, for example
`answer-7`, and a record `failures` if there are any.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

import msgspec
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedapps.method.update import Failure
from fedapps.wire.checks import FIGURES_BYTES, Kind, record_of
from fedapps.wire.replies import causes_in, pack_failures

T = TypeVar("T")


class QuestionHeader(msgspec.Struct, frozen=True, rename="kebab"):
    """Record `config` of a question; tracebacks go to the run directory, if it exists there."""

    question: str
    clients: list[int]
    run_dir: str


def pack_question(clients: Sequence[int], node: int, question: str, run_dir: str) -> Message:
    """Make the message that asks a SuperNode a question about clients."""
    asked = QuestionHeader(question, [*clients], run_dir)
    content = RecordDict({"config": ConfigRecord(msgspec.to_builtins(asked))})
    return Message(content, node, "query.ask")


def read_question(message: Message) -> QuestionHeader:
    """Return the question and the clients that it is about."""
    return msgspec.convert(dict(message.content.config_records["config"]), QuestionHeader)


def pack_answer(values: list[float]) -> MetricRecord:
    """Return a client's answer as a record; raises TypeError if it is not a list of numbers."""
    return MetricRecord({"values": values})


def pack_answers(
    message: Message,
    answers: Mapping[int, MetricRecord | ConfigRecord],
    failures: Iterable[Failure] = (),
) -> Message:
    """Make the reply to a question: an answer or a failure for each client."""
    content = RecordDict({f"answer-{client}": record for client, record in answers.items()})
    if failures := [*failures]:
        content["failures"] = pack_failures(failures)
    return Message(content, reply_to=message)


def unpack_answers(
    asked: Sequence[int], reply: Message
) -> tuple[dict[int, list[float]], list[Failure]]:
    """Read the answers of the clients `asked`; a client without a list of numbers is a failure.

    The numbers are finite; the caller checks how many there are and in what range.
    """

    def numbers(record: MetricRecord) -> list[float]:
        values = record["values"]
        if not (isinstance(values, list) and all(map(math.isfinite, values))):
            raise ValueError
        return [float(value) for value in values]

    return unpack_each(asked, reply, MetricRecord, numbers, "a list of finite numbers")


def unpack_each(
    asked: Sequence[int], reply: Message, kind: type[Kind], read: Callable[[Kind], T], what: str
) -> tuple[dict[int, T], list[Failure]]:
    """Read the records `answer-7` of the clients `asked`; those without `what` are failures.

    `read` returns what a record says, or raises KeyError or ValueError.
    """
    causes = causes_in(reply, asked, FIGURES_BYTES * len(asked))
    found: dict[int, T] = {}
    failures = []
    for client in asked:  # anything that the reply says about other clients is ignored
        if client in causes:
            failures.append(Failure(client, causes[client]))
            continue
        answer = record_of(reply.content, f"answer-{client}", kind)
        try:
            found[client] = read(kind() if answer is None else answer)
        except (KeyError, ValueError):
            failures.append(Failure(client, f"its answer is not {what}"))
    return found, failures
