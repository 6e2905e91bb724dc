"""Checks of everything that arrives in messages: sizes, values and losses."""

import math
from typing import TypeVar

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Error, MetricRecord, RecordDict

from fedapps.core.errors import GROWN, one_line
from fedapps.core.flower import ErrorCode

FIGURES_BYTES = 2**20  # limit of a client's reply without its arrays: names, figures, causes
NO_SIGN = "no sign of life from its SuperNode: killed, suspended, or without a connection"
NOT_FINITE = "not finite"
Kind = TypeVar("Kind", ArrayRecord, ConfigRecord, MetricRecord)
LARGEST = float(np.finfo(np.float32).max)  # as a limit of values, it only means "finite"


class BadMessage(ValueError):
    """A message does not hold what was asked for; the text says what is wrong."""


class GrownError(BadMessage):
    """A device has more samples than it said when it was last asked, which is no failure."""

    def __init__(self, known: int, now: int) -> None:
        super().__init__(f"{GROWN} from {known} to {now} samples since it was last asked")


def reason_of(error: Error) -> str:
    """Return the line that says why Flower, or a SuperNode, answers with an error."""
    if error.code == ErrorCode.NODE_UNAVAILABLE:
        return NO_SIGN
    return one_line(error.reason or "")


def check_size(content: RecordDict, most: int) -> None:
    """Raise `BadMessage` if a reply has more than `most` bytes in all.

    The reply is already in memory, because Flower's Grid does not tell sizes before it pulls a
    message. Keeping large messages off the server is the task of the proxy in front of the
    SuperLink.
    """
    size = sum(map(len, content)) + sum(map(_array_bytes, content.array_records.values()))
    others = [*content.metric_records.values(), *content.config_records.values()]
    try:
        size += sum(len(record.deflate()) for record in others)  # empty lists break count_bytes
    except (TypeError, ValueError) as error:  # our packed records can hold more than Flower's
        raise BadMessage("figures that no message can hold") from error
    if size > most:
        raise BadMessage(f"a reply of {size} bytes: at most {most} were asked for")


def record_of(content: RecordDict, name: str, kind: type[Kind]) -> Kind | None:
    """Return a record of a message, or None if there is none of this kind.

    Flower's `array_records` and `metric_records` copy the table of all records at each use, which
    is slow in a message with many clients.
    """
    found = content.get(name)
    return found if isinstance(found, kind) else None


def _array_bytes(record: ArrayRecord) -> int:
    """Count the bytes of the arrays: their values, names, dtypes and shapes."""
    told = sum(len(a.dtype) + len(a.stype) + 8 * len(a.shape) for a in record.values())
    return record.count_bytes() + told


def invalid_values(values: np.ndarray, largest: float) -> str:
    """Say why values cannot be used: not finite or above `largest`; empty if they can."""
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))  # NaN gives NaN
    if -largest <= low and high <= largest:
        return ""
    worst = max(-low, high)
    if not math.isfinite(worst):
        return NOT_FINITE
    return f"as large as {worst:.6g}: at most {largest:g} (max-value)"


def invalid_loss(loss: float, samples: int, largest: float, least: float = -math.inf) -> str:
    """Say why the sum of losses over `samples` cannot be used; empty if it can."""
    low = max(least, -largest)
    if low * samples <= loss <= largest * samples:
        return ""
    what = f"a loss of {loss:g} over {samples} samples"
    if loss < low * samples and low == least:
        return f"{what}: at least {least:g} each"
    return f"{what}: at most {largest:g} each (max-value)"
