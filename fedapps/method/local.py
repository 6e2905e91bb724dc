"""What a client does in a round, around the hooks of its method."""

import dataclasses
from collections.abc import Collection, Mapping

import numpy as np
import torch

from fedapps.core.errors import as_returned, what_it_is
from fedapps.data.spec import Spec
from fedapps.method.attacks import changed_upload
from fedapps.method.client import ClientHooks
from fedapps.method.client_tools import LAST, MODEL, NORMS, keep
from fedapps.method.figures import LAST_LOCAL, WITHOUT_HEAD
from fedapps.method.jobs import Scoring, Training, Work, has_own
from fedapps.method.update import ClientUpdate, Metrics
from fedapps.models.layers import Arrays, Slice, put, take
from fedapps.tasks import Task
from fedapps.training.clipping import Threshold, Thresholds
from fedapps.training.costs import Costs, TrainingStats, cost_of
from fedapps.training.evaluation import Score
from fedapps.training.plan import Clip, Plan
from fedapps.training.privacy import privatize


def train_round(client: ClientHooks, plan: Plan, received: Arrays) -> Work[ClientUpdate]:
    """Train as the plan says; return the upload, the sample count and the metrics.

    Raises `PermissionError` for a plan that uploads a personal layer.
    """
    _refuse_leak(client, plan)
    receive(client, plan, received)
    sent = client.layout.shared(plan.upload)
    attacks = client.client in client.workspace.attackers
    start = take(client.model, sent) if attacks else {}
    thresholds = _thresholds(client, plan)
    before = cost_of(client.before_training, plan, Costs)
    done = yield Training(client, plan, "train", client.objective("train"), thresholds)
    done.spend(before)
    _keep(client, plan, thresholds)
    exact = take(client.model, sent)
    client.upload = privatize(
        client.settings, client.layout, plan, client.client, received, exact, client.earlier
    )
    if attacks:
        client.upload = changed_upload(client.settings, start, client.upload)
    done.spend(cost_of(client.after_training, plan, Costs))
    client.keep_parts()
    metrics: Metrics = {"train_loss": done.mean_loss, **dataclasses.asdict(done)}
    size = len(client.train_data[1])
    weight = 1.0 if client.settings.dp.by_clients else float(size)  # the count has no noise
    return ClientUpdate(client.client, client.upload, size, metrics, weight, _sent(client, plan))


def evaluate_round(client: ClientHooks, plan: Plan, received: Arrays) -> Work[ClientUpdate]:
    """Score the received model, personalize it (`personalize`), and score it again.

    The metrics are the loss, what the task counts before and after (`keys`), and the figures that
    the strategy declares, none of which takes the place of another metric.
    """
    receive(client, plan, received)
    before = cost_of(client.before_scoring, plan, Costs)
    initial = yield from _score(client)
    figures = _figures(client)
    if client.settings.score_without_head and WITHOUT_HEAD.name not in figures:
        figures = figures | client.without_head()
    if client.settings.score_last:
        figures = figures | {LAST_LOCAL.name: (yield from _score_last(client, initial))}
    done = (yield from _personalize(client, plan)) if plan.stages else TrainingStats()
    done.spend(before)
    personalized = (yield from _score(client)) if plan.stages else initial
    metrics: Metrics = {"num_train": len(client.train_data[1]), "loss": personalized.loss}
    for when, score in (("initial", initial), ("personalized", personalized)):
        metrics |= {f"{when}_{name}": found.tolist() for name, found in score.counts.items()}
    metrics |= {f"finetune_{name}": n for name, n in dataclasses.asdict(done).items()}
    return ClientUpdate(client.client, {}, len(client.test_data[1]), figures | metrics)


def keys(task: Task) -> set[str]:
    """Return the names of an evaluation's metrics that are no figures."""
    counts = task.sizes(Spec((1,), choices=1))  # the same names for all targets
    scored = {f"{when}_{name}" for when in ("initial", "personalized") for name in counts}
    done = {f"finetune_{field.name}" for field in dataclasses.fields(TrainingStats)}
    return {"num_train", "loss", *scored, *done}


def begin(client: ClientHooks) -> None:
    """Begin a device's run with what an earlier run has left: the client's personal layers.

    The norms that clipping has seen, the model for `score-last`, and what `of_one_run` names are
    dropped.
    """
    over = (NORMS, LAST, *client.of_one_run())
    for key in [key for key in client.state if key.startswith(over)]:
        del client.state[key]  # in place: clients of `other` methods hold the same dictionary


def receive(client: ClientHooks, plan: Plan, received: Arrays) -> None:
    """Build the model from what was downloaded, else what the client kept, else initial values.

    Work for other clients in this process leaves no trace: hooks find the model in eval mode, with
    all parameters asking for gradients.
    """
    client.received = received
    downloaded = {key: received[key] for key in client.layout.shared(plan.download)}
    client.workspace.reset(client.kept() | downloaded)


def _refuse_leak(client: ClientHooks, plan: Plan) -> None:
    personal = set(client.layout.keys_of(client.personal()))
    uploads = client.layout.keys_of(plan.upload)
    if leak := client.layout.layers_of(key for key in uploads if key in personal):
        raise PermissionError(f"the plan uploads {', '.join(leak)}: personal layers never leave")


def _sent(client: ClientHooks, plan: Plan) -> Arrays:
    """Return the additional arrays of the upload; raises `ValueError` if a hook forgot one.

    The same holds for one of another shape, or that the plan does not have: it would not arrive.
    """
    if missing := [name for name in plan.sends if name not in client.sends]:
        raise ValueError(f"the plan sends {missing[0]}, but no hook has put it into self.sends")
    if more := [name for name in client.sends if name not in plan.sends]:
        raise ValueError(f"self.sends has {more[0]}, which the plan does not send")
    found = {name: np.asarray(client.sends[name], np.float32) for name in plan.sends}
    for name, shape in plan.sends.items():
        if found[name].shape != tuple(shape):
            told = f'self.sends["{name}"] is {found[name].shape}'
            raise ValueError(f"{told}, but the plan sends {tuple(shape)}")
    return found


def _thresholds(client: ClientHooks, plan: Plan) -> dict[tuple[Slice, Clip], Threshold]:
    """Return a threshold for each kind of stage, with the norms of the client's earlier steps.

    Stages with the same layers and the same clipping share their norms.
    """
    clipped = [(stage.layers, stage.clip) for stage in plan.stages if stage.clip]
    known = {key: client.state.get(_norms_of(*key), torch.empty(0)) for key in clipped}
    return {key: Threshold(key[1], norms.tolist()) for key, norms in known.items()}


def _keep(client: ClientHooks, plan: Plan, thresholds: Thresholds) -> None:
    """Store what the client keeps after training: its layers, and the norms for clipping.

    For `score-last` it stores the whole model too.
    """
    keep(client.state, MODEL, take(client.model, _kept(client, plan)))
    for key, threshold in thresholds.items():
        if threshold.remembers:
            norms = torch.tensor(threshold.arrived, dtype=torch.float64)
            client.state[_norms_of(*key)] = norms
    if client.settings.score_last and plan.stages:
        keep(client.state, LAST, client.last_local())


def _kept(client: ClientHooks, plan: Plan) -> Collection[str]:
    """Return the keys that a client keeps; raises TypeError or ValueError if they are no keys."""
    keys, resident = client.keeps(plan), client.workspace.resident
    right = "keys of the model, such as self.layout.keys_of(self.layout.head)"
    as_returned("keeps", keys, isinstance(keys, Collection), right)
    known = resident.initial.keys() | resident.counters.keys()
    if unknown := [key for key in keys if key not in known]:
        raise ValueError(f"keeps returned {unknown[0]}: must return {right}")
    return keys


def _figures(client: ClientHooks) -> dict[str, float]:
    """Return a client's figures; raises TypeError for values that are no numbers of Python's."""
    found = client.extra_scores()
    right = 'a dict of floats, such as {"own": 0.5}; float(value) makes one of a tensor'
    as_returned("extra_scores", found, isinstance(found, dict), right)
    values: Mapping[str, object] = found
    for name, value in values.items():
        if not isinstance(value, int | float | list):  # what can travel
            told = f"extra_scores returned {name} = {what_it_is(value)}"
            raise TypeError(f"{told}: must return {right}")
    return found


def _norms_of(layers: Slice, clip: Clip) -> str:
    return f"{NORMS}{'+'.join(layers)}/{clip.percentile:g}-{clip.mode}-{clip.history}"


def _personalize(client: ClientHooks, plan: Plan) -> Work[TrainingStats]:
    """Call the hook; the training that it stands for by default is a job, which can wait.

    A newcomer that is trained `as_in_round` is first prepared as in a round.
    """
    hooks = ("adapt", "personalize") if plan.newcomer else ("personalize",)
    decisive = hooks[:1] if plan.as_in_round else hooks
    if any(has_own(client, hook) for hook in decisive):
        return cost_of(getattr(client, hooks[0]), plan, TrainingStats)
    before = cost_of(client.before_training, plan, Costs) if plan.as_in_round else Costs()
    objective = client.objective("train" if plan.as_in_round else "finetune")
    done: TrainingStats = yield Training(client, plan, "finetune", objective, {})
    done.spend(before)
    return done


def _score_last(client: ClientHooks, initial: Score) -> Work[float]:
    """Score the model of the last local training; without one, return the initial score.

    If the client trained only a part of the model, the rest is scored as it was received.
    Afterwards the initial model is in place again.
    """
    last = client.kept(LAST)
    if not last:
        return initial.value
    initial_model = take(client.model, last)
    put(client.model, last)
    value = (yield from _score(client)).value
    put(client.model, initial_model)
    return value


def _score(client: ClientHooks) -> Work[Score]:
    client.model.eval()
    score: Score = yield Scoring(client)
    return score
