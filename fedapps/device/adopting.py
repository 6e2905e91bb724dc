"""Personalize the shared model of a run that is over: what a newcomer does, without a server.

python -m fedapps adopt --model shared.safetensors --data mine.npz --state-dir DIR
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from fedapps import data, models
from fedapps.core import config, registry
from fedapps.core.data_settings import DEVICE
from fedapps.core.errors import RunError
from fedapps.core.schema import Scalar
from fedapps.core.settings import Settings
from fedapps.data.spec import FILLS
from fedapps.device import personalized
from fedapps.device.claims import claim
from fedapps.device.device import not_finite
from fedapps.device.personalized import ModelMetadata, Personalized
from fedapps.engine.again import ALLOWED, check_changes
from fedapps.engine.finished import OVER, SUBSETS
from fedapps.engine.metrics import MetricChecks
from fedapps.method.flower import BaseClient, BaseStrategy
from fedapps.models.layers import as_sent, take
from fedapps.report.rows import ClientEval
from fedapps.training.plan import Plan
from fedapps.training.run_data import RunData
from fedapps.training.workspace import Workspace


@dataclass(frozen=True)
class Adopted:
    """A personalized model: its scores before and after, its file, and what to tell of it."""

    scores: ClientEval
    settings: Settings
    path: Path
    told: tuple[str, ...]


def adopt(
    model: Personalized, own: Path, state_dir: Path, changes: Mapping[str, Scalar]
) -> Adopted:
    """Personalize a shared model on own data, as its method has newcomers do; write it.

    `changes` are run-config keys with new values, about personalization. Afterwards `state_dir` is
    that of a device. Raises `RunError` if model, data or changes do not fit.
    """
    about = model.about
    if about.client is not None:
        raise RunError(
            f"the model is that of client {about.client}; adopt takes the shared model of a run"
        )
    settings = _settings(about, changes)
    new = settings.num_clients - 1
    torch.set_num_threads(settings.threads)
    space = Workspace(settings, RunData(settings, _data(own, about, settings), new))
    told = [*space.dataset.told]
    if (several := data.clients_in(own, settings.client_column, about.columns)) > 1:
        told.append(
            f"{own}: holds {several} values of {settings.client_column} (client-column), and all"
            " rows are taken as those of one client"
        )
    share = space.population.share(new)
    sizes = {subset: len(getattr(share, subset)) for subset in SUBSETS}
    strategy: BaseStrategy = registry.strategy_class(settings.strategy)(space, None, {new: sizes})
    strategy.arrays.update(take(model.module, strategy.arrays))
    space.resident.take_frozen(model.module)
    plan = _plan(strategy, new, about, changes)
    received = {key: strategy.arrays[key] for key in space.layout.shared(plan.download)}
    own_layers = take(model.module, space.initial.keys() - received.keys())
    space.initial.update(own_layers)  # as the run began, which can be from `initial-model`
    client: BaseClient = registry.client_class(settings.strategy)(space, new, {})
    claim(state_dir)
    update = client.evaluate_round(plan, as_sent(received))
    if broken := not_finite(client.module()):
        raise RunError(f"personalization diverged ({broken}): nothing is written")
    path = state_dir / personalized.FILE
    if path.exists():
        told.append(f"{path}: replaces the model that was there")
    personalized.save(path, client)
    scores = MetricChecks(strategy).evaluation(update, plan).scores
    return Adopted(scores, settings, path, tuple(told))


def _settings(about: ModelMetadata, changes: Mapping[str, Scalar]) -> Settings:
    """Return the settings of the run with one more client, which has come after the training."""
    flat = config.defaults() | about.config
    check_changes(flat, changes, {*ALLOWED, "missing", "target-column"})
    new = int(flat["num-clients"])
    more: dict[str, Scalar] = {"num-clients": new + 1, "unseen-clients": str(new), "few-shot": 0}
    more |= {"dataset": DEVICE, "device": "cpu", "model": models.own.in_app(str(flat["model"]))}
    more |= {"attackers": 0.0}  # a newcomer is none
    return config.read(flat | OVER | more | dict(changes))


def _data(path: Path, about: ModelMetadata, settings: Settings) -> data.Dataset:
    """Open own data; they are normalized as those of the run, if it has told how."""
    form = replace(data.Form.of(settings, about.names), columns=about.columns)
    found = data.of_device(path, about.inputs, about.targets, form)
    if len(found.target_values) < 2:
        raise RunError(f"{path}: holds 1 sample; must be at least 2, of which one is for the test")
    if form.missing in FILLS and about.mean and not about.filling:
        raise RunError(
            f'missing = "{form.missing}": the run filled no values, so its model cannot say with'
            ' what; missing="drop" leaves such rows out'
        )
    found = replace(found, names=about.names, scaling=about.scaling)
    return replace(found, normalization=about.normalization) if about.mean else found


def _plan(
    strategy: BaseStrategy, client: int, about: ModelMetadata, changes: Mapping[str, Scalar]
) -> Plan:
    """Return what the newcomer does; the file says it if it depends on what the run has decided."""
    settings, rounds = strategy.settings, strategy.settings.num_rounds
    unchanged = type(strategy)(strategy.workspace, _settings(about, {}), strategy.devices)
    plain = unchanged.plan_of_newcomer(rounds, client)
    told = about.newcomer or plain
    if plain.receives or told.receives:
        raise RunError(
            f"{settings.strategy}: a newcomer needs more than the shared model; it can"
            " only take part in a run"
        )
    if _layers(plain) == _layers(told):
        return strategy.plan_of_newcomer(rounds, client)
    if changes:
        raise RunError(
            f"{', '.join(changes)}: cannot change, as the run has decided which layers are trained"
        )
    return told


def _layers(plan: Plan) -> list[tuple[str, ...]]:
    return [plan.download, *(stage.layers for stage in plan.stages)]
