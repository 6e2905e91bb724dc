"""Runs the work of several clients, and does the jobs that are alike together (key `group`)."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from fedapps.core.errors import named
from fedapps.method import local
from fedapps.method.client import ClientHooks
from fedapps.method.flower import BaseClient
from fedapps.method.jobs import Job, Result, Scoring, Training, Work, after, alone, has_own
from fedapps.method.update import ClientUpdate, replace
from fedapps.models.layers import Arrays
from fedapps.models.modes import eval_mode
from fedapps.training.draw import Draw
from fedapps.training.evaluation import Score
from fedapps.training.objective import Objective
from fedapps.training.plan import Plan
from fedapps.training.stacked.group import Group
from fedapps.training.stacked.run import Lesson
from fedapps.training.workspace import Workspace

PHASES = {"train": "trained", "finetune": "fine-tuned"}


def round_of(client: BaseClient, hook: str, plan: Plan, received: Arrays) -> Work[ClientUpdate]:
    """Return a client's `train_round` or `evaluate_round`, as work that can wait for others.

    Without `group`, or if the class of the client has a `hook` of its own, it is done at once.
    """
    own = getattr(type(client), hook) is not getattr(BaseClient, hook)
    if own or not client.workspace.group.size:
        done: ClientUpdate = getattr(client, hook)(plan, received)
    else:
        done = yield from getattr(local, hook)(client, plan, received)
    return done


def results(space: Workspace, works: Iterable[Work[Result]]) -> Iterator[Result]:
    """Yield what the clients' works return, in their order.

    With the key `group`, that many clients work at the same time.
    """
    size, waiting = space.group.size, iter(works)
    if not size:
        yield from map(alone, waiting)
    while size and (party := [*islice(waiting, size)]):
        yield from _Party(space, party).results()


@dataclass
class _Paused:
    """A client that waits for a job, and the model as this client left it."""

    work: Work[Any]
    job: Job
    entries: dict[str, Tensor]
    asking: list[bool]  # whether each parameter asks for gradients

    @property
    def kind(self) -> Hashable:
        """Jobs of the same kind can be done together."""
        if isinstance(self.job, Scoring):
            return Scoring
        objective = _objective(self.job)
        return self.job.plan.stages, objective.loss is None, objective.anchor is None


class _Party:
    """Clients that work at the same time, on the one model of the process.

    A client goes on until its work yields a job that can be done together with those of others.
    When all clients wait, the jobs of the same kind are done, and their clients go on.
    """

    def __init__(self, space: Workspace, works: list[Work[Any]]) -> None:
        self.space, self.group, self.works = space, space.group, works
        self.waiting: dict[int, _Paused] = {}
        self.done: dict[int, Any] = {}

    def results(self) -> list[Any]:
        """Do everything; return what the works return, in their order."""
        for place, work in enumerate(self.works):
            self._go_on(place, work.__next__)
        while self.waiting:
            kind = next(iter(self.waiting.values())).kind
            alike = [place for place, own in self.waiting.items() if own.kind == kind]
            self._do({place: self.waiting.pop(place) for place in alike})
        return [self.done[place] for place in range(len(self.works))]

    def _go_on(self, place: int, resume: Callable[[], Job]) -> None:
        """Let a client work until it has to wait, or is done."""
        work = self.works[place]
        try:
            job = resume()
            while not self._joins(job):
                job = after(work, job)
        except StopIteration as end:
            self.done[place] = end.value
            return
        state, layout = self.space.model.state_dict(), self.space.layout
        entries = {key: state[key].clone() for key in layout.keys_of(layout.names)}
        asking = [parameter.requires_grad for parameter in self.space.model.parameters()]
        self.waiting[place] = _Paused(work, _with_own_anchor(job), entries, asking)

    def _joins(self, job: Job) -> bool:
        """Tell whether a job can be done with those of others; say once that it is, or why not."""
        why = why_alone(self.group, job)
        done = "scored" if isinstance(job, Scoring) else PHASES.get(job.phase, job.phase)
        how = f"one after the other: {why}" if why else "together"
        self.group.tell(f"clients are {done} {how}")
        return not why

    def _do(self, alike: dict[int, _Paused]) -> None:
        """Do jobs of the same kind together, or one after the other if that fails."""
        found: list[Any] = []
        try:
            found = _done_together(self.group, [*alike.values()])
        except Exception as error:  # of one client; alone, it fails alone
            told = named(error)
            self.group.tell(f"some clients work one after the other, after {told}")
        if not found:  # out here, where the error no longer holds the memory of the group
            for place, own in alike.items():
                self._restore(own)
                self._go_on(place, partial(after, own.work, own.job))
            return
        for (place, own), result in zip(alike.items(), found, strict=True):
            self._restore(own)
            if isinstance(own.job, Training):
                self._as_trained(own.job)
            self._go_on(place, partial(own.work.send, result))

    @torch.no_grad()
    def _restore(self, own: _Paused) -> None:
        """Put the entries of a client into the model."""
        state, model = self.space.model.state_dict(), self.space.model.eval()
        for key, value in own.entries.items():
            state[key].copy_(value)
        for parameter, asks in zip(model.parameters(), own.asking, strict=True):
            parameter.requires_grad_(asks)

    def _as_trained(self, job: Training) -> None:
        """Leave everything else as training this client alone would have left it."""
        trainer = self.space.trainer
        trainer.seed(_draw(job).torch_seed())
        if trained := [stage for stage in job.plan.stages if trainer.trains(stage)]:
            trainer.freeze_all_but(trained[-1].layers)
        eval_mode(self.space.model)


def why_alone(group: Group, job: Job) -> str:
    """Say why a job cannot be done together with those of other clients; "" if it can."""
    hooks = ("score", "predict", "module") if isinstance(job, Scoring) else ("train",)
    for name in hooks:
        if has_own(job.client, name):
            return f"the client has `{name}` of its own"
    if isinstance(job, Scoring):
        return group.cannot_score()
    return group.cannot_train(job.plan.stages, job.objective)


def _done_together(group: Group, paused: list[_Paused]) -> list[Any]:
    """Do jobs of the same kind; return their results, and put trained entries into `paused`."""
    jobs = [own.job for own in paused]
    trainings = [job for job in jobs if isinstance(job, Training)]
    if not trainings:
        data = [job.client.test_data for job in jobs]
        outputs = group.outputs([own.entries for own in paused], [inputs for inputs, _ in data])
        return [
            Score.of(job.client.task, found, targets)
            for job, found, (_, targets) in zip(jobs, outputs, data, strict=True)
        ]
    lessons = [
        Lesson(
            own.entries,
            job.client.train_data,
            _draw(job),
            _objective(job),
            job.thresholds,
            cache_key=job.client.client,
        )
        for own, job in zip(paused, trainings, strict=True)
    ]
    group.train(trainings[0].plan.stages, lessons)
    for own, lesson in zip(paused, lessons, strict=True):
        own.entries = lesson.entries
    return [lesson.done for lesson in lessons]


def _with_own_anchor(job: Job) -> Job:
    """Copy an anchor: of live parameters it would have the values of whichever client is next."""
    if isinstance(job, Scoring) or job.objective.anchor is None:
        return job
    given = job.objective.anchor.items()
    anchor = {k: v.detach().clone() if isinstance(v, Tensor) else v for k, v in given}
    return replace(job, objective=replace(job.objective, anchor=anchor))


def _draw(job: Training) -> Draw:
    client = job.client
    return Draw(client.settings.seed, job.phase, job.plan.round, client.client)


def _objective(job: Training) -> Objective:
    """Return the objective of a job; the loss of the task, which needs no client, is None."""
    of_task = getattr(job.objective.loss, "__func__", None) is ClientHooks.loss
    return replace(job.objective, loss=None) if of_task else job.objective
