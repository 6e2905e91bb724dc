"""Makes a SuperNode that has this folder on its PYTHONPATH send what the variable POISON names.

Python imports a module of this name when it starts, so the device runs the app that it was sent,
and its replies are spoilt on their way out: what a device can do whose owner is not honest.
"""

import io
import os

import numpy as np
from flwr.app import Array, Context, Message
from flwr.clientapp import ClientApp

SPOIL = {
    "nan": lambda values: np.full_like(values, np.nan),
    "huge": lambda values: np.full_like(values, 1e30),
    "shape": lambda values: np.concatenate([values.ravel(), values.ravel()]),
}


def announce(values: np.ndarray) -> Array:
    """As many bytes as are due, behind a header that speaks of 10 GB: only the header lies."""
    file = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (50_000, 50_000)}
    np.lib.format.write_array_header_1_0(file, header)
    return Array("float32", values.shape, "numpy.ndarray", file.getvalue() + values.tobytes())


def spoilt(app: ClientApp, message: Message, context: Context) -> Message:
    """Answer as the app does, with the first array of its update replaced."""
    from fedapps.wire import compact  # of the app that it was sent

    reply, kind = compact.unpack(answer(app, message, context)), os.environ["POISON"]
    for record in filter(None, reply.content.array_records.values()):
        name = next(iter(record))
        values = record[name].numpy()
        record[name] = announce(values) if kind == "10 GB" else Array(SPOIL[kind](values))
    return reply


answer, ClientApp.__call__ = ClientApp.__call__, spoilt
