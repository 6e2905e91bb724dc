"""What a method asks clients beside training and evaluation: a question, floats as an answer.

The question is a name; what it means is up to who asks and who answers. It carries the ids of the
clients that it is about, the reply a record `answer-7` for each, and `failures` if there are any.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict

from fedapps.core.errors import one_line
from fedapps.method.update import Failure
from fedapps.wire.checks import FIGURES_BYTES, BadMessage, check_size
from fedapps.wire.replies import pack_failures, read_causes


class QuestionHeader(msgspec.Struct, frozen=True, rename="kebab"):
    """Record `config` of a question; tracebacks go to the run directory, if it is there."""

    question: str
    clients: list[int]
    run_dir: str


def pack_question(clients: Sequence[int], node: int, question: str, run_dir: str) -> Message:
    """Ask a SuperNode something about clients."""
    asked = QuestionHeader(question, [*clients], run_dir)
    return Message(
        RecordDict({"config": ConfigRecord(msgspec.to_builtins(asked))}), node, "query.ask"
    )


def read_question(message: Message) -> QuestionHeader:
    """Return what is asked, and about which clients."""
    return msgspec.convert(dict(message.content.config_records["config"]), QuestionHeader)


def pack_answer(values: list[float]) -> MetricRecord:
    """Return one client's answer as a record; raises TypeError for what is no list of numbers."""
    return MetricRecord({"values": values})


def pack_answers(
    message: Message, answers: Mapping[int, MetricRecord], failures: Iterable[Failure] = ()
) -> Message:
    """Answer a question for each client, or say why there is no answer for it."""
    content = RecordDict({f"answer-{client}": record for client, record in answers.items()})
    if failures := [*failures]:
        content["failures"] = pack_failures(failures)
    return Message(content, reply_to=message)


def unpack_answers(
    asked: Sequence[int], reply: Message
) -> tuple[dict[int, list[float]], list[Failure]]:
    """Read the answers about the clients `asked`; a client without a list of numbers is a failure.

    The numbers are finite. How many there must be, and in what range, the caller checks.
    """
    if reply.has_error():
        cause = one_line(reply.error.reason or "")
        return {}, [Failure(client, cause) for client in asked]
    try:
        check_size(reply.content, FIGURES_BYTES * len(asked))
        causes = read_causes(reply.content, {*asked})
    except BadMessage as error:
        return {}, [Failure(client, one_line(str(error))) for client in asked]
    found: dict[int, list[float]] = {}
    failures = []
    for client in asked:  # what the reply says of others counts for nothing
        values = reply.content.metric_records.get(f"answer-{client}", MetricRecord()).get("values")
        if client in causes:
            failures.append(Failure(client, one_line(causes[client])))
        elif isinstance(values, list) and all(map(math.isfinite, values)):
            found[client] = [float(value) for value in values]
        else:
            failures.append(Failure(client, "its answer is not a list of finite numbers"))
    return found, failures
