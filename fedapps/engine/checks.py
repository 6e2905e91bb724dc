"""Check that a strategy, its plans and its aggregated model fit the settings and the model."""

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any

import msgspec

from fedapps.core import log, registry
from fedapps.core.errors import RunError, as_returned
from fedapps.core.words import number
from fedapps.engine import evaluations
from fedapps.engine.misspelt import last_setup, misspelt
from fedapps.engine.robust import check_robust, refuse_presum
from fedapps.method.client import ClientHooks
from fedapps.method.conversation import Conversation
from fedapps.method.figures import WITHOUT_HEAD
from fedapps.method.flower import BaseClient, BaseStrategy
from fedapps.method.mixing import Mixing
from fedapps.method.strategy import StrategyHooks
from fedapps.method.warmup import WarmUp
from fedapps.models.layers import UNCUT
from fedapps.models.own import file_of
from fedapps.models.training_pass import check_training
from fedapps.training.plan import Plan, Stage
from fedapps.training.privacy import check_plan
from fedapps.wire.arrays import checked_extras
from fedapps.wire.checks import BadMessage

# A method that replaces none of these draws its clients at random, sends all of them the same
# model, and takes the mean of their updates.
AVERAGING = ("aggregate", "begin_round", "download", "screen", "select")
SLICE, SHAPES = 'a tuple of layers, such as ("fc1",)', 'a dict of shapes, such as {"a/b": (10, 64)}'
RIGHT = dict.fromkeys(("download", "upload", "also_keep", "layers"), SLICE)
RIGHT |= {"receives": SHAPES, "sends": SHAPES, "clip": "a Clip, such as self.clip(), or None"}
MOST_CHECKED = 100  # clients whose plans are checked


def check_strategy(strategy: BaseStrategy) -> None:
    """Raise `RunError` for settings that have no effect on a strategy or cannot work with it.

    Warn of names in the method's two classes that look like misspelt hooks.
    """
    s, clip = strategy.settings, strategy.clip()
    client = registry.client_class(s.strategy)
    ours = (type(strategy), BaseStrategy, StrategyHooks, Conversation)
    for cls, base, *hooks in (ours, (client, BaseClient, ClientHooks)):
        for name, hook in misspelt(cls, base, *hooks):
            log.warning("%s.%s is not a hook, did you mean %s?", cls.__name__, name, hook)
    for needs, state in ((Mixing, "sent"), (WarmUp, "last_trained")):
        if isinstance(strategy, needs) and state not in strategy.state:
            last = last_setup(type(strategy), needs)
            call = f"{last}.setup does not call {needs.__name__}.setup(self), or super().setup()"
            raise RunError(f"{call}, which {needs.__name__} needs")
    if replaced(strategy, ["aggregate"]):
        refuse_presum(s, "this strategy")
    _check_own_model(strategy)
    _check_mean(strategy)
    if s.server_data and not strategy.sends_its_model:
        why = "clients of this strategy do not train the server's model as it is"
        raise RunError(f"server-data: {why}; use 0")
    if s.on_devices and (strategy.needs_union or s.server_data):
        what = "server-data" if s.server_data else s.strategy
        raise RunError(f'{what} needs the data of all clients: not with dataset = "device"')
    train = len(strategy.workspace.population.training)
    if s.on_devices and s.min_available > train:
        told = f"{number(train, 'client')} can train (unseen-clients); use at most that"
        raise RunError(f"min-available = {s.min_available}: {told}")
    if strategy.needs_norms and not strategy.layout.norms:
        if s.adapter_rank:
            raise RunError(f"{s.strategy} needs BatchNorms, which adapter-rank freezes; use 0")
        raise RunError(
            f"{s.strategy} needs a model with BatchNorm, but {s.model} has none; "
            "use one that has, such as lenet5 or resnet18"
        )
    if strategy.needs_classes and not strategy.workspace.task.has_classes:
        raise RunError(
            f'task = "{strategy.workspace.task.name}": {s.strategy} needs a class for each sample;'
            " use another method"
        )
    _check_cut(strategy)
    if fresh := strategy.workspace.resident.fresh:
        log.info("initial-model: these layers start from the seed: %s", ", ".join(fresh))
    if clip and clip.mode == "sample" and not strategy.clips_by_sample:
        raise RunError('clip-mode = "sample": this strategy cannot clip by sample; use "batch"')
    _check_scores(strategy)


def _check_own_model(strategy: BaseStrategy) -> None:
    """Refuse a model of one's own that cannot be trained; warn if a run goes on with it.

    Earlier versions took it.
    """
    s, space = strategy.settings, strategy.workspace
    if file_of(s.model):
        try:
            check_training(s.model, space.model, space.dataset.inputs)
        except RunError as error:
            if not s.resume:
                raise
            log.warning("%s", error)


def _check_mean(strategy: BaseStrategy) -> None:
    """Refuse keys that act on the mean of the updates where there is no such mean."""
    s = strategy.settings
    for key, value, off in (
        ("server-optimizer", s.server_optimizer, "none"),
        ("aggregation", s.aggregation, "mean"),
    ):
        if value != off and replaced(strategy, ["aggregate"]):
            raise RunError(
                f'{key} = "{value}": {s.strategy} does not just average the updates of a round;'
                f' use "{off}"'
            )
    if s.aggregation != "mean":
        check_robust(strategy)


def _check_cut(strategy: BaseStrategy) -> None:
    """Refuse what needs single layers if the model runs as a whole; tell what is left out."""
    s, task = strategy.settings, strategy.workspace.task
    if s.score_without_head and not task.has_classes:
        raise RunError(f'score-without-head = true: needs classes, but task = "{task.name}"')
    if strategy.layout.can_be_cut:
        return
    if strategy.needs_cut:
        raise RunError(f'model = "{s.model}": {s.strategy} runs single layers, but {UNCUT}')
    if s.score_without_head:
        raise RunError(f'score-without-head = true: needs the body of "{s.model}", but {UNCUT}')
    left_out = [f"no {WITHOUT_HEAD.name}"] if WITHOUT_HEAD in strategy.figures else []
    told = " and ".join(["no cache of frozen layers", *left_out])
    log.info("%s: %s, because %s", s.model, told, UNCUT)


def _check_scores(strategy: BaseStrategy) -> None:
    """Refuse to run a client's only sample in eval mode if a BatchNorm needs those of a batch.

    Two or more samples are no problem: `batches.chunks` makes no chunk of one sample. Devices are
    not checked, as they are not known yet.
    """
    s = strategy.settings
    of_batch = strategy.workspace.trainer.profile.of_batch
    lone = next((name for name in strategy.layout.names if name in of_batch), "")
    if not lone or s.on_devices:
        return
    for clients, subset, remedy in _run_in_eval_mode(strategy):
        for client in clients:
            if strategy.count(client, subset) == 1:
                raise RunError(
                    f'bn-stats = "batch": client {client} has a single {subset} sample, so a '
                    f"BatchNorm in {lone} gets only one value per channel; "
                    f'use "shared" or "local", or {remedy}'
                )


def _run_in_eval_mode(strategy: BaseStrategy) -> Iterator[tuple[Iterable[int], str, str]]:
    """Yield clients, a subset that they run in eval mode, and what gives them more of it."""
    s, population = strategy.settings, strategy.workspace.population
    scored = [*evaluations.scored(strategy, s.num_rounds), *population.held_out]
    more = {"train": "a larger min-samples"}
    yield scored, s.evaluate_on, f"a larger {s.evaluate_on}-fraction"
    for subset in strategy.in_eval_mode:
        everybody = chain(population.training, population.held_out)
        yield everybody, subset, more.get(subset, f"a larger {subset}-fraction")
    # templates are the body's outputs for the train samples
    own = WITHOUT_HEAD in strategy.figures  # whatever the key says
    if strategy.workspace.has_templates and (own or s.score_without_head):
        yield scored, "train", more["train"] if own else "score-without-head=false"


def check_plans(strategy: BaseStrategy) -> None:
    """Check the plans of the first and the last round, so that a bad one ends the run at once.

    At most `MOST_CHECKED` clients are checked. Raises `RunError`.
    """
    s, clients = strategy.settings, strategy.workspace.population.training[:MOST_CHECKED]
    checked: list[Plan] = []  # mostly one per round: all clients get the same plan
    for round_ in (1, s.num_rounds):
        plans = [strategy.plan(round_, client) for client in clients]
        for plan in plans:
            _check_fields("plan", plan)
            if plan not in checked:
                _check_plan(strategy, plan)
                checked.append(plan)
        if s.presum:
            _check_uploads(strategy, plans)
        for client in clients[:1]:
            plan = evaluations.plan_of(strategy, round_, client)
            _check_scored(strategy, "evaluation_plan (or finetuning)", plan)
    for client in strategy.workspace.population.held_out[:1]:
        plan = strategy.plan_of_newcomer(s.num_rounds, client)
        _check_scored(strategy, "newcomer_plan", plan)


def _check_fields(hook: str, plan: Plan) -> None:
    """Raise an error for what is no plan, or cannot be sent as one.

    That is a TypeError if it is none, or if its stages are a single one, or have a list among them.
    """
    stages = as_returned(hook, plan, isinstance(plan, Plan), "a Plan").stages
    if not (isinstance(stages, tuple | list) and all(isinstance(each, Stage) for each in stages)):
        raise TypeError(f"{hook} returned stages = {stages!r}: must be a tuple of Stages")
    try:
        sent = msgspec.json.decode(msgspec.json.encode(plan), type=Plan)
        for extras in (sent.receives, sent.sends):
            checked_extras(extras)
    except msgspec.ValidationError as error:
        raise RunError(f"{hook}: {_unfit(plan, str(error))}") from error
    except (TypeError, BadMessage) as error:
        raise RunError(f"{hook} returned a plan that cannot be sent: {error}") from error


def _unfit(plan: Plan, told: str) -> str:
    """Say which field of a plan is wrong, of which msgspec has told, and what it must be."""
    reason, _, where = told.partition(" - at `$.")
    field = re.sub(r"(\[[\d.]+\])*`$", "", where)  # without places in a tuple or a dict
    value: Any = plan
    for part in re.findall(r"\w+", field):
        value = value[int(part)] if part.isdigit() else getattr(value, part)
    kind = re.sub("Expected |`|, got.*", "", reason).replace(" | null", " or None")
    if isinstance(value, float) and not math.isfinite(value):
        kind = f"finite {kind}"
    right = RIGHT.get(field.rpartition(".")[2], f"a{'n' * (kind[0] == 'i')} {kind}")
    return f"{field} = {value!r}: must be {right}"


def _check_scored(strategy: BaseStrategy, hook: str, plan: Plan) -> None:
    """Check the plan of an evaluation, after which nothing comes back but scores."""
    _check_fields(hook, plan)
    _check_stages(strategy, hook, plan)
    if plan.up(strategy.layout):
        raise RunError(f"{hook} returned a plan that uploads: use upload=(), and no sends")


def _check_plan(strategy: BaseStrategy, plan: Plan) -> None:
    _check_stages(strategy, "plan", plan)
    check_plan(strategy.settings, strategy.layout, plan)
    _check_server_data(strategy, plan)
    if plan.sends:
        refuse_presum(strategy.settings, "this strategy")


def _check_stages(strategy: BaseStrategy, hook: str, plan: Plan) -> None:
    """Refuse layers that the model does not have, and stages that cannot be executed."""
    slices = {name: getattr(plan, name) for name in ("download", "upload", "also_keep")}
    slices |= {f"stages[{n}].layers": stage.layers for n, stage in enumerate(plan.stages)}
    for name, layers in slices.items():
        try:
            strategy.layout.slice(layers)
        except RunError as error:
            raise RunError(f"{hook}: {name}: {error}") from error
    for stage in plan.stages:
        try:
            strategy.workspace.trainer.check(stage)
        except ValueError as error:
            raise RunError(str(error)) from error


def _check_uploads(strategy: BaseStrategy, plans: Sequence[Plan]) -> None:
    """Refuse `presum` if clients of a round upload different layers.

    A SuperNode sums up its clients' updates and sends one weight for all layers. `plans` are those
    of clients 0, 1, ...
    """
    uploads = [set(strategy.layout.shared(plan.upload)) for plan in plans]
    other = next((client for client, keys in enumerate(uploads) if keys != uploads[0]), None)
    if other is not None:
        raise RunError(
            f"presum = true: in round {plans[0].round} clients 0 and {other} upload different "
            "layers, and a SuperNode has one weight for all; use false"
        )


def _check_server_data(strategy: BaseStrategy, plan: Plan) -> None:
    """Refuse `server-data` if clients keep layers that they train.

    The server has these layers only as they were initialized, so it would train the others to fit a
    model that no client has.
    """
    layout = strategy.layout
    trained = {key for stage in plan.stages for key in layout.keys_of(stage.layers)}
    own = [key for key in layout.personal(plan.upload) if key in trained & layout.parameters]
    if strategy.settings.server_data and own:
        layers = ", ".join(layout.layers_of(own))
        raise RunError(
            f"server-data: clients train their own {layers}, so the server would train the other "
            "layers for a model that no client has; use 0, or a method that shares all that it "
            "trains"
        )


def replaced(strategy: BaseStrategy, hooks: Iterable[str]) -> list[str]:
    """Return which of the hooks a method has replaced."""
    own = type(strategy)
    return [name for name in hooks if getattr(own, name) is not getattr(BaseStrategy, name)]
