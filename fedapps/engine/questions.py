"""Ask every client a strategy's question before round 1."""

import math
from pathlib import Path

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import Failure
from fedapps.wire.exchange import answers_to
from fedapps.wire.fleet import Fleet
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.questions import pack_question, unpack_answers


def ask(strategy: BaseStrategy, fleet: Fleet, grid: StreamingGrid, run: Path) -> None:
    """Ask the strategy's question, if it has one; record the clients without a valid answer.

    Tracebacks of clients that cannot answer go to the run directory `run`. Raises `RunError` if no
    client gives a valid answer.
    """
    question = strategy.question()
    if question is None:
        return
    hosts, timeout = fleet.hosts(strategy.clients), strategy.settings.round_timeout
    messages = [pack_question(clients, node, question.name, str(run)) for node, clients in hosts]
    asked = [clients for _, clients in hosts]
    answers, failures = answers_to(grid, messages, asked, timeout, unpack_answers)
    length, most = question.length, question.largest
    ordered = sorted(answers.items())  # not as they arrived
    valid = {c: v for c, v in ordered if len(v) == length and 0 < min(v) <= max(v) <= most}
    cause = f"its answer is not {length} numbers above 0"
    cause += f" and at most {most:g}" if most < math.inf else ""
    failures += [Failure(client, cause) for client in answers if client not in valid]
    failures.sort(key=lambda failure: failure.client)
    for failure in failures:
        log.info("client %s: %s: %s", failure.client, question.name, failure.cause)
        strategy.event(0, failure.client, "unanswered", f"{question.name}: {failure.cause}")
    if not valid:
        raise RunError(f"{question.name}: no client answered; first cause: {failures[0].cause}")
    strategy.answered(valid)
