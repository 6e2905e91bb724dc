"""What a client does for a secure sum, given its store; `summing.py` is the server's part."""

from dataclasses import replace

from flwr.app import ConfigRecord

from fedapps.engine.store import ClientStore
from fedapps.method.update import ClientUpdate
from fedapps.models.layers import Layout
from fedapps.secure.client import SumClient
from fedapps.wire.arrays import MASKED
from fedapps.wire.requests import Request
from fedapps.wire.steps import StepHeader


def step_answer(store: ClientStore, asked: StepHeader, client: int, given: bytes) -> ConfigRecord:
    """Do a step besides the upload; return the record of the answer. Raises ValueError."""
    own = SumClient(store.make(), client, asked.round)
    return ConfigRecord({"bytes": own.answer(asked.step, given)})


def masked(
    update: ClientUpdate, request: Request, layout: Layout, store: ClientStore
) -> ClientUpdate:
    """Return an update whose arrays nobody can read: only their sum with others. ValueError."""
    arrays = [update.arrays[name] for name in layout.shared(request.plan.upload)]
    own = SumClient(store.make(), request.client, request.plan.round)
    vector = own.upload(request.boxes, arrays, update.num_examples)
    return replace(update, arrays={MASKED: vector}, extras={})
