"""The ClientApp: runs the logical clients of a message and replies with their updates."""

import fedapps.core.quiet  # noqa: F401, before imports that take long

# isort: split

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

import torch
from flwr.app import ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from fedapps.core import log, registry
from fedapps.core.changes import owner
from fedapps.core.config import read
from fedapps.core.data_settings import DEVICE
from fedapps.core.errors import DIVERGED, WITHHELD, DivergedError, RunError, cause_of
from fedapps.core.paths import expanded
from fedapps.core.schema import Scalar
from fedapps.core.settings import Settings
from fedapps.core.threads import at_once
from fedapps.device import readiness, spending
from fedapps.device.device import Device, device_workspace
from fedapps.engine.failed_clients import diverged, record, unusable
from fedapps.engine.masking import masked, step_answer
from fedapps.engine.store import EARLIER_RUN, NONE, ClientStore, state_folder
from fedapps.engine.versions import LOADED, OTHER_DATA, SAVED
from fedapps.method import local, together
from fedapps.method.aggregation import presummed
from fedapps.method.client_tools import State
from fedapps.method.flower import BaseClient
from fedapps.method.jobs import Work, alone
from fedapps.method.update import ClientUpdate, Failure, Metrics
from fedapps.split.connection import withdraw
from fedapps.training.privacy import check_plan
from fedapps.training.workspace import Workspace, workspace
from fedapps.wire.compact import unpacking
from fedapps.wire.hello import Hello, pack_hello, ray_workers, read_greeting
from fedapps.wire.questions import pack_answer, pack_answers, read_question
from fedapps.wire.replies import pack_metrics, pack_reply
from fedapps.wire.requests import Request, RoundInfo, read_request
from fedapps.wire.steps import read_step

Hook = Callable[[Workspace, Request, ClientStore], Work[ClientUpdate]]
Result = ClientUpdate | Failure
T = TypeVar("T")
app = ClientApp(mods=[unpacking])


@app.query("hello")
def hello(message: Message, context: Context) -> Message:
    """Tell the server which clients this SuperNode can run, and whether it has a GPU."""
    try:
        device = Device.of(context.node_config)
        settings, model = _read(context), read_greeting(message)
        answer = device.hello(settings, model) if device else _anyone(context)
    except RunError as error:
        answer = Hello(problem=str(error))
    if answer.problem:
        log.info("left out: %s", answer.problem)
    return pack_hello(message, answer)


def _anyone(context: Context) -> Hello:
    """Return the greeting of a SuperNode without data of its own."""
    if context.run_config.get("dataset") == DEVICE:
        raise RunError(f'it has no data, but the run has dataset = "{DEVICE}"')
    return Hello(
        nodes=int(context.node_config.get("num-partitions", 1)),
        cuda=torch.cuda.is_available(),
        workers=int(context.node_config.get("workers", 0)) or ray_workers(),
    )


@app.query("probe")
def probe(message: Message, context: Context) -> Message:
    """Say nothing but that all messages before this one have been worked on."""
    return Message(RecordDict(), reply_to=message)


@app.query("ask")
def ask(message: Message, context: Context) -> Message:
    """Answer the server's question for every client that the message names.

    A client that raises an error becomes a failure; the others still answer. Raises `RunError` if
    clients add noise, because answers have none, and the client does not trust the server; and on a
    device with a budget, in which answers would not count.
    """
    asked = read_question(message)
    device, dp = Device.of(context.node_config), _read(context).dp
    spending.check_noise(dp, device.budget if device else None)
    if device and device.budget is not None:
        budget = f"dp-budget = {device.budget:g}"
        raise RunError(f"{budget}: {asked.question}: answers get no noise; use another method")
    if dp.by_clients:
        raise RunError(f'dp.mode = "{dp.mode}": {asked.question}: answers get no noise; use "none"')

    def answer(space: Workspace, device: Device | None, client: int) -> MetricRecord:
        space.reset({})
        make = registry.client_class(space.settings.strategy)
        return pack_answer(make(space, client, {}).answer(asked.question))

    answered = _each(asked.clients, answer, asked.question, context, asked.run_dir)
    return pack_answers(message, *answered)


@app.query("step")
def step(message: Message, context: Context) -> Message:
    """Do a step of a secure sum for every client that the message names."""
    asked, given = read_step(message)

    def answer(space: Workspace, device: Device | None, client: int) -> ConfigRecord:
        return step_answer(_store(space, device, asked, client), asked, client, given[client])

    what = f"round {asked.round}, secure sum, {asked.step}"
    return pack_answers(message, *_each(asked.clients, answer, what, context, asked.run_dir))


def _each(
    clients: Sequence[int],
    work: Callable[[Workspace, Device | None, int], T],
    what: str,
    context: Context,
    run_dir: str,
) -> tuple[dict[int, T], list[Failure]]:
    """Return the answer of each client, and the failures: an error fails only its client."""
    answers: dict[int, T] = {}
    failures: list[Failure] = []
    try:
        place = _place(context)
    except Exception as error:  # data that no longer fit: the server must not see their values
        cause = _recorded(error, what, context, run_dir)
        return {}, [Failure(client, cause) for client in clients]
    for client in clients:
        try:
            answers[client] = work(*place, client)
        except Exception as error:
            cause = _recorded(error, f"client {client}, {what}", context, run_dir)
            failures.append(Failure(client, cause))
    return answers, failures


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the clients that the message names."""
    return _serve(message, context, _fit)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Evaluate the clients that the message names."""
    return _serve(message, context, _evaluate)


def _serve(message: Message, context: Context, hook: Hook) -> Message:
    """Do the work of each client; one that raises an error becomes a failure, the others go on."""
    asked = read_request(message)
    info, kind = asked.header, message.metadata.message_type
    everyone = f"{kind}: clients {info.clients}"
    try:
        space, device = _place(context)
        requests = asked.requests(space.layout)
    except Exception as error:  # this SuperNode can run no client; say why for each
        cause = _recorded(error, everyone, context, info.run_dir)
        return pack_reply(asked, [], [Failure(client, cause) for client in info.clients])
    withheld = device is not None and not device.scores and hook is _evaluate

    def work_on(request: Request, own: Workspace) -> Work[Result]:
        try:
            torch.set_num_threads(own.settings.threads)  # PyTorch keeps this setting per thread
            if hook is _fit:  # whatever the server says
                check_plan(space.settings, space.layout, request.plan)
            space.resident.check(info.fingerprint, info.sketch)
            readiness.check(device.ready if device else "")
            store = _store(space, device, info, request.client)
            if device and hook is _fit:
                spending.count(space.settings.dp, device.state_dir, device.budget, device.delta)
            update = yield from hook(own, request, store)
            if withheld:  # it has its personalized model now
                return Failure(request.client, WITHHELD)
            pack_metrics(update, info.presum)  # if Flower refuses it, only this client fails
            # In each reply, as replies can be lost; the server tells it once.
            other: Metrics = {OTHER_DATA: store.other_data} if store.other_data else {}
            return dataclasses.replace(update, metrics=update.metrics | other)
        except Exception as error:  # any error fails only this client
            withdraw(request.plan.channel, request.client, error)
            if isinstance(error, readiness.DeclinedError):
                log.info("client %s: %s", request.client, error)
                return Failure(request.client, str(error))
            where = f"round {request.plan.round}, client {request.client}, {kind}"
            cause = _recorded(error, where, context, info.run_dir)
            return Failure(request.client, WITHHELD if withheld else cause)

    results = [*_results(requests, info.concurrent, space, work_on)]
    updates = [result for result in results if isinstance(result, ClientUpdate)]
    failures = [result for result in results if isinstance(result, Failure)]
    try:
        sent = presummed(updates) if info.presum else updates
    except RunError as error:  # the server checks only some plans; these upload other layers
        cause = _recorded(error, everyone, context, info.run_dir)
        sent = []
        failures += [Failure(update.client, cause) for update in updates]
    return pack_reply(asked, sent, failures)


def _store(space: Workspace, device: Device | None, info: RoundInfo, client: int) -> ClientStore:
    """Return the store of a client: that of the device, or one in the run directory."""
    if device:
        return device.store(space, info)
    folder = state_folder(Path(info.run_dir), client, space.settings.num_clients)
    return ClientStore(folder, info.needed, owner(space.settings, client))


def _results(
    requests: list[Request],
    concurrent: bool,
    space: Workspace,
    work_on: Callable[[Request, Workspace], Work[Result]],
) -> Iterable[Result]:
    """Do the work of each request, or in threads of their own if they share a channel."""
    if not concurrent:
        return together.results(space, (work_on(request, space) for request in requests))
    spaces = [space.restricted(request.plan.stages[0].layers) for request in requests]
    return at_once("client", lambda *of: alone(work_on(*of)), requests, spaces)


def _recorded(error: Exception, where: str, context: Context, run_dir: str) -> str:
    """Record the traceback of an error; return the line that the server gets.

    A device writes it to its own state-dir, because it does not trust a path from the server.
    Raises what `record` raises in a run that stops at the first failure.
    """
    own = context.node_config.get("state-dir")
    record(expanded(str(own or run_dir), "state-dir"), where, error, aloud=bool(own))
    return cause_of(error)


def _fit(space: Workspace, request: Request, store: ClientStore) -> Work[ClientUpdate]:
    """Train from the state before this round; save the new state, unless training diverged."""
    version, before = store.load_version(request.plan.round)
    client = _client(space, request, version, before)
    client.earlier = request.earlier
    update = yield from together.round_of(client, "train_round", request.plan, request.arrays)
    kept = {key: value.numpy() for key, value in client.state.items()}
    why, told = diverged(space, update.arrays, kept, update.metrics)
    if why:
        advice = store.advice(request.plan.round)
        raise DivergedError(f"{DIVERGED}: {why}{advice}", f"{DIVERGED}: {told}{advice}")
    if why := unusable(space, update.extras, type(client).__name__):
        raise RunError(why)  # a failure of code: a lower lr would not help
    if before or client.state:  # even if it looks unchanged: it can change in place
        store.save(request.plan.round, client.state)
    update = state_told(update, version, saved=bool(before or client.state))
    return masked(update, request, space, store) if space.settings.secure_sum else update


def _evaluate(space: Workspace, request: Request, store: ClientStore) -> Work[ClientUpdate]:
    """Evaluate with the state after this round; a newcomer has none."""
    new = request.plan.newcomer
    version, state = (NONE, {}) if new else store.load_version(request.plan.round + 1)
    client = _client(space, request, version, state)
    update = yield from together.round_of(client, "evaluate_round", request.plan, request.arrays)
    if not request.plan.unpersonalized:
        store.save_personalized(client)
    return state_told(update, version, saved=False)


def state_told(update: ClientUpdate, version: int, saved: bool) -> ClientUpdate:
    """Tell the server which version of its state a client had, and whether it wrote one."""
    told: Metrics = {LOADED: version, SAVED: int(saved)}
    return dataclasses.replace(update, metrics=update.metrics | told)


def _client(space: Workspace, request: Request, version: int, state: State) -> BaseClient:
    make = registry.client_class(space.settings.strategy)
    client = make(space, request.client, dict(state))
    if version == EARLIER_RUN:
        local.begin(client)
        client = make(space, request.client, client.state)  # its `setup` sees what is left
    return client


def _place(context: Context) -> tuple[Workspace, Device | None]:
    """Return this SuperNode's workspace (with the device's or the run's data), and its device."""
    device, settings = Device.of(context.node_config), _read(context)
    spending.check_noise(settings.dp, device.budget if device else None)
    return (device_workspace(settings, device) if device else workspace(settings)), device


def _read(context: Context) -> Settings:
    return _settings(tuple(sorted(context.run_config.items())))


@lru_cache(maxsize=4)
def _settings(run_config: tuple[tuple[str, Scalar], ...]) -> Settings:
    return read(dict(run_config))
