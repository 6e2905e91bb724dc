"""The ClientApp: runs the logical clients of one message and puts names back on their arrays."""

import dataclasses
from collections.abc import Callable
from functools import lru_cache
from logging import DEBUG
from pathlib import Path

import msgspec
import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.logger import log

from fedapps import registry
from fedapps.aggregation import weighted_mean
from fedapps.client import BaseClient, State
from fedapps.config import Scalar, Settings, read
from fedapps.messages import (
    ClientUpdate,
    Failure,
    Request,
    RoundInfo,
    header_of,
    metrics_record,
    one_line,
    pack_reply,
    unpack_requests,
)
from fedapps.state import ClientStore
from fedapps.workspace import Workspace, workspace

Work = Callable[[Workspace, Request, ClientStore], ClientUpdate]
app = ClientApp()


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Tell the server which clients this SuperNode can run and what it computes on."""
    answer: dict[str, str | int | bool] = {
        "client": "any",
        "nodes": int(context.node_config.get("num-partitions", 1)),
        "cuda": torch.cuda.is_available(),
    }
    return Message(RecordDict({"hello": ConfigRecord(dict(answer))}), reply_to=message)


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the message names, one after the other."""
    return _serve(message, context, _fit)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the clients that the message names."""
    return _serve(message, context, _evaluate)


def _serve(message: Message, context: Context, work: Work) -> Message:
    """Do `work` for each client; one that raises becomes a failure, the others go on."""
    updates: list[ClientUpdate] = []
    failures: list[Failure] = []
    try:
        space = workspace(_settings(tuple(sorted(context.run_config.items()))))
        info, requests = unpack_requests(message, space.layout)
    except Exception as error:  # nothing here can run on this SuperNode; say why for each client
        clients = header_of(message).clients
        return pack_reply(message, [], [Failure(client, _cause(error)) for client in clients])
    for request in requests:
        try:
            update = _work_on(request, info, space, work)
            metrics_record(
                update, info.presum
            )  # figures that Flower refuses cost this client, not the message
            updates.append(update)
        except Exception as error:  # whatever it is, it costs this client only
            log(DEBUG, "client %s", request.client, exc_info=error)
            failures.append(Failure(request.client, _cause(error)))
    return pack_reply(message, presummed(updates) if info.presum else updates, failures)


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {one_line(str(error))}"


def _work_on(request: Request, info: RoundInfo, space: Workspace, work: Work) -> ClientUpdate:
    if info.fingerprint != space.fingerprint:
        raise RuntimeError(
            f"the initial model here ({space.fingerprint}) is not the server's "
            f"({info.fingerprint}): use the same versions of torch and numpy on all machines"
        )
    return work(space, request, ClientStore(Path(info.run_dir) / "clients" / str(request.client)))


def _fit(space: Workspace, request: Request, store: ClientStore) -> ClientUpdate:
    """Train from the state before this round; store what changed, unless training diverged."""
    before = store.load(request.plan.round)
    client = _client(space, request, before)
    arrays, num_examples, metrics = client.fit(*_call(client, request))
    named = dict(zip(request.plan.up(client.layout), arrays, strict=True))
    kept = {key: value.numpy() for key, value in client.state.items()}
    for key, array in (named | kept).items():
        if not np.isfinite(array).all():  # in a pre-summed mean it would spoil what others did
            raise FloatingPointError(f"training diverged: {key} is not finite")
    if before or client.state:  # changed in place or not: it is not known
        store.save(request.plan.round, client.state)
    further = {name: named.pop(name) for name in request.plan.sends}
    return ClientUpdate(request.client, named, num_examples, metrics, float(num_examples), further)


def _evaluate(space: Workspace, request: Request, store: ClientStore) -> ClientUpdate:
    """Evaluate with the state after this round."""
    client = _client(space, request, store.load(request.plan.round + 1))
    _, num_examples, metrics = client.evaluate(*_call(client, request))
    return ClientUpdate(request.client, {}, num_examples, metrics)


def _client(space: Workspace, request: Request, state: State) -> BaseClient:
    return registry.client_class(space.settings.strategy)(space, request.client, dict(state))


def _call(client: BaseClient, request: Request) -> tuple[list, dict[str, str]]:
    """Return what Flower's NumPyClient takes: a list of arrays and a config."""
    plan = msgspec.json.encode(request.plan).decode()
    return [request.arrays[key] for key in request.plan.down(client.layout)], {"plan": plan}


def presummed(updates: list[ClientUpdate]) -> list[ClientUpdate]:
    """Replace the updates of one SuperNode by their mean; the first one carries it for all."""
    if not updates:
        return []
    mean, total = weighted_mean(updates)
    silent = [dataclasses.replace(update, arrays={}, weight=0.0) for update in updates[1:]]
    return [dataclasses.replace(updates[0], arrays=mean, weight=total), *silent]


@lru_cache(maxsize=4)
def _settings(run_config: tuple[tuple[str, Scalar], ...]) -> Settings:
    return read(dict(run_config))
