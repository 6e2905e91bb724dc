"""What a method asks clients beside training and evaluation: a question, floats as an answer.

The question is a name; what it means is up to who asks and who answers. It carries the ids of the
clients that it is about, the reply a record `answer-7` for each.
"""

import math
from collections.abc import Mapping, Sequence

import msgspec
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedapps.core.errors import one_line
from fedapps.method.update import Failure
from fedapps.wire.checks import FIGURES_BYTES, BadMessage, check_size


class Question(msgspec.Struct, frozen=True):
    """Record `config` of a question."""

    question: str
    clients: list[int]


def pack_question(clients: Sequence[int], node: int, question: str) -> Message:
    """Ask a SuperNode something about clients."""
    asked = Question(question, [*clients])
    return Message(
        RecordDict({"config": ConfigRecord(msgspec.to_builtins(asked))}), node, "query.ask"
    )


def read_question(message: Message) -> tuple[str, list[int]]:
    """Return the question, and the clients that it is about."""
    asked = msgspec.convert(dict(message.content.config_records["config"]), Question)
    return asked.question, asked.clients


def pack_answers(message: Message, answers: Mapping[int, list[float]]) -> Message:
    """Answer a question for each client."""
    records = {f"answer-{client}": MetricRecord({"values": v}) for client, v in answers.items()}
    return Message(RecordDict(dict(records)), reply_to=message)


def unpack_answers(
    asked: Sequence[int], reply: Message
) -> tuple[dict[int, list[float]], list[Failure]]:
    """Read the answers about the clients `asked`; one that is no list of numbers is a failure.

    The numbers are finite. How many there must be, and in what range, the caller checks.
    """
    if reply.has_error():
        cause = one_line(reply.error.reason or "")
        return {}, [Failure(client, cause) for client in asked]
    try:
        check_size(reply.content, FIGURES_BYTES * len(asked))
    except BadMessage as error:
        return {}, [Failure(client, str(error)) for client in asked]
    found: dict[int, list[float]] = {}
    failures = []
    for client in asked:  # what the reply says of others counts for nothing
        values = reply.content.metric_records.get(f"answer-{client}", MetricRecord()).get("values")
        if isinstance(values, list) and all(map(math.isfinite, values)):
            found[client] = [float(value) for value in values]
        else:
            failures.append(Failure(client, "its answer is not a list of finite numbers"))
    return found, failures
