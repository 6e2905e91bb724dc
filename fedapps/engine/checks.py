"""What a strategy and the settings must agree on, and what its aggregation may give."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedapps.core.config import DEVICE
from fedapps.core.draws import sample_evaluated
from fedapps.core.errors import RunError
from fedapps.method.strategy import BaseStrategy
from fedapps.models.layers import Arrays, Layout
from fedapps.models.norms import batch_norms
from fedapps.training.plan import Plan
from fedapps.training.privacy import check_plan

MOST_CHECKED = 100  # clients


def check_strategy(strategy: BaseStrategy) -> None:
    """Refuse settings that have no effect on a strategy, or cannot; raises `RunError`."""
    s, clip = strategy.settings, strategy.clip()
    if s.presum and type(strategy).aggregate is not BaseStrategy.aggregate:
        raise RunError("presum = true: this strategy needs every client's update; use false")
    if s.server_data and not strategy.sends_its_model:
        raise RunError("server-data: no effect on this strategy; use 0")
    if s.dataset == DEVICE and (strategy.needs_union or s.server_data):
        what = "server-data" if s.server_data else s.strategy
        raise RunError(f'{what} needs the data of all clients: not with dataset = "device"')
    if strategy.needs_norms and not strategy.layout.norms:
        raise RunError(
            f"{s.strategy} needs a model with BatchNorm, {s.model} has none: "
            "use one that has, as lenet5 or resnet18"
        )
    if clip and clip.mode == "sample" and not strategy.clips_by_sample:
        raise RunError('clip-mode = "sample": not for the steps of this strategy; use "batch"')
    _check_scores(strategy)


def _check_scores(strategy: BaseStrategy) -> None:
    """Refuse to score a single sample where a BatchNorm takes statistics of what it gets.

    More samples are no problem: `batches.chunks` leaves no sample alone. Devices are not known yet.
    """
    s, space = strategy.settings, strategy.workspace
    lone = _lone_batch_statistics(strategy)
    if not lone or not space.shares:
        return
    remedies = {str(s.evaluate_on): f"a larger {s.evaluate_on}-fraction"}
    if s.score_without_head:  # whose templates are means of what the body makes of them
        remedies["train"] = "score-without-head=false"
    few = 0 if strategy.final_phase else s.evaluate_clients  # which ends with all clients
    for client in sample_evaluated(s.seed, s.num_clients, few):
        for subset in (one for one in remedies if strategy.count(client, one) == 1):
            raise RunError(
                f'bn-stats = "batch": client {client} has a single {subset} sample, of '
                f"which a BatchNorm of {lone} gets one value per channel; "
                f'use "shared" or "local", or {remedies[subset]}'
            )


def _lone_batch_statistics(strategy: BaseStrategy) -> str:
    """Name the first layer whose BatchNorm keeps no statistics and gets one value per channel."""
    space = strategy.workspace
    for name, lone in space.trainer.profile.lone.items():
        norms = batch_norms(space.model.get_submodule(name))
        if lone and any(norm.running_mean is None for norm in norms):
            return name
    return ""


def check_plans(strategy: BaseStrategy) -> None:
    """Make first and last plans, of 100 clients at most: a bad one ends the run at its start."""
    s = strategy.settings
    checked: list[Plan] = []  # mostly one of each round: clients' plans are alike
    for round_ in (1, s.num_rounds):
        plans = [
            strategy.plan(round_, client) for client in range(min(s.num_clients, MOST_CHECKED))
        ]
        for plan in plans:
            if plan not in checked:
                _check_plan(strategy, plan)
                checked.append(plan)
        if s.presum:
            _check_uploads(strategy, plans)


def _check_plan(strategy: BaseStrategy, plan: Plan) -> None:
    trained = [stage.layers for stage in plan.stages]
    for layers in (plan.download, plan.upload, plan.also_keep, *trained):
        strategy.layout.slice(layers)
    for name in (name for layers in trained for name in layers if ":" in name):
        raise RunError(f"layer {name}: a stage trains whole layers")
    check_plan(strategy.settings, strategy.layout, plan)
    _check_server_data(strategy, plan)
    if strategy.settings.presum and plan.sends:
        raise RunError("presum = true: this strategy needs every client's update; use false")
    for stage in plan.stages:
        try:
            strategy.workspace.trainer.check(stage)
        except ValueError as error:
            raise RunError(str(error)) from error


def _check_uploads(strategy: BaseStrategy, plans: Sequence[Plan]) -> None:
    """Refuse to sum up clients of a round that upload different layers: one weight is sent for all.

    `plans` are those of clients 0, 1, ...
    """
    uploads = [set(strategy.layout.shared(plan.upload)) for plan in plans]
    other = next((client for client, keys in enumerate(uploads) if keys != uploads[0]), None)
    if other is not None:
        raise RunError(
            f"presum = true: in round {plans[0].round} clients 0 and {other} upload different "
            "layers, and a SuperNode has one weight for all; use false"
        )


def _check_server_data(strategy: BaseStrategy, plan: Plan) -> None:
    """Refuse to train a model on the server that no client has: with layers of its start in it."""
    layout = strategy.layout
    trained = {key for stage in plan.stages for key in layout.keys_of(stage.layers)}
    own = [key for key in layout.personal(plan.upload) if key in trained & layout.parameters]
    if strategy.settings.server_data and own:
        layers = ", ".join(dict.fromkeys(key.partition(".")[0] for key in own))
        raise RunError(
            f"server-data: clients train {layers} for themselves, and the server would train the "
            "rest with values that nobody uses; use 0, or a method that shares all that it trains"
        )


def check_aggregate(round_: int, new: Mapping[str, np.ndarray], layout: Layout) -> Arrays:
    """Return aggregated arrays as float32; refuse what is not the model's, or not finite then."""
    arrays: Arrays = {}
    for key, value in new.items():
        shape, right = np.shape(value), layout.shapes.get(key)
        if shape != right:
            model = f"has shape {right}" if right else "has no such key"
            raise RunError(f"round {round_}: aggregate gave {key} {shape}, the model {model}")
        with np.errstate(over="ignore"):  # it is told of in the next line
            arrays[key] = np.asarray(value, np.float32)
        if not np.isfinite(arrays[key]).all():
            raise RunError(f"round {round_}: the aggregated {key} is not finite")
    return arrays
