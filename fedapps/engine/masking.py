"""What a client does for a secure sum, given its store; `summing.py` is the server's part."""

from dataclasses import replace
from functools import partial

from flwr.app import ConfigRecord

from fedapps.engine.store import ClientStore
from fedapps.method.update import ClientUpdate
from fedapps.secure.client import SumClient
from fedapps.secure.noise import on_grid, own_part
from fedapps.training.privacy import check_plan, clipped_difference
from fedapps.training.workspace import Workspace
from fedapps.wire.arrays import MASKED
from fedapps.wire.requests import Request
from fedapps.wire.steps import StepHeader


def step_answer(store: ClientStore, asked: StepHeader, client: int, given: bytes) -> ConfigRecord:
    """Do a step besides the upload; return the record of the answer. Raises ValueError."""
    own = SumClient(store.make(), client, asked.round)
    return ConfigRecord({"bytes": own.answer(asked.step, given)})


def masked(
    update: ClientUpdate, request: Request, space: Workspace, store: ClientStore
) -> ClientUpdate:
    """Return an update whose arrays nobody can read: only their sum with others. ValueError.

    With distributed privacy, these are clipped differences from what was downloaded, and the
    client's part of the noise. Raises `RunError` like `privatize`.
    """
    s, plan = space.settings, request.plan
    arrays = {name: update.arrays[name] for name in space.layout.shared(plan.upload)}
    weight, noise = 1 if s.dp.by_clients else update.num_examples, None
    if s.dp.shared_out:
        check_plan(s, space.layout, plan)
        arrays = on_grid(clipped_difference(arrays, request.arrays, s.dp.clip_norm)[0])
        noise = partial(own_part, s, request.earlier + plan.round, request.client)
    own = SumClient(store.make(), request.client, plan.round)
    vector = own.upload(request.boxes, arrays.values(), weight, noise)
    return replace(update, arrays={MASKED: vector}, extras={})
