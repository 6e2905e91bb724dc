"""What holds for everything that comes over the wire: sizes, values, losses."""

import math

import numpy as np
from flwr.app import ArrayRecord, RecordDict

FIGURES_BYTES = 2**20  # most bytes of a client's reply beside its arrays: names, figures, causes
LARGEST = float(np.finfo(np.float32).max)  # as a limit of values: they are finite, no more


class BadMessage(ValueError):
    """What came over the wire is not what was asked for; the text says what."""


def check_size(content: RecordDict, most: int) -> None:
    """Raise `BadMessage` for a reply that is larger as a whole than what was asked for.

    Flower's Grid has pulled it by now and told nothing of its size before: to keep large
    messages off the server is up to what stands before the SuperLink.
    """
    size = sum(map(len, content)) + sum(map(_array_bytes, content.array_records.values()))
    others = [*content.metric_records.values(), *content.config_records.values()]
    size += sum(len(record.deflate()) for record in others)  # empty lists break count_bytes
    if size > most:
        raise BadMessage(f"a reply of {size} bytes: at most {most} were asked for")


def _array_bytes(record: ArrayRecord) -> int:
    """Count all that arrays bring: values, and what is told of them in words and numbers."""
    told = sum(len(a.dtype) + len(a.stype) + 8 * len(a.shape) for a in record.values())
    return record.count_bytes() + told


def invalid_values(values: np.ndarray, largest: float) -> str:
    """Say why values are no update: not finite, or above `largest`; empty if they are one."""
    low, high = float(values.min(initial=0.0)), float(values.max(initial=0.0))  # NaN gives NaN
    if -largest <= low and high <= largest:
        return ""
    worst = max(-low, high)
    if not math.isfinite(worst):
        return "not finite"
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
