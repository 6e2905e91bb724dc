"""The parts of a client's round that can wait for other clients: local training, and scoring.

A client's round is a generator that yields such jobs, and gets the result of each. `alone` does
them at once, one after the other; `fedapps.method.together` does those of several clients at once.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from fedapps.method.client import ClientHooks
from fedapps.training.clipping import Thresholds
from fedapps.training.costs import TrainingStats
from fedapps.training.evaluation import Score
from fedapps.training.objective import Objective
from fedapps.training.plan import Plan


@dataclass(frozen=True)
class Training:
    """Training the client's model on the stages of a plan; the result is what was done."""

    client: ClientHooks
    plan: Plan
    phase: str
    objective: Objective
    thresholds: Thresholds

    def alone(self) -> TrainingStats:
        """Do it for this client alone."""
        return self.client.train(self.plan, self.phase, self.objective, self.thresholds)


@dataclass(frozen=True)
class Scoring:
    """Scoring the client's model, which is in eval mode, on its test samples."""

    client: ClientHooks

    def alone(self) -> Score:
        """Do it for this client alone."""
        return self.client.score(self.client.test_data)


def has_own(client: ClientHooks, hook: str) -> bool:
    """Tell whether a client, or its class, has a hook or tool other than that of `ClientHooks`."""
    return getattr(getattr(client, hook), "__func__", None) is not getattr(ClientHooks, hook)


Job = Training | Scoring
Result = TypeVar("Result")
Work = Generator[Job, Any, Result]  # gets a TrainingStats for a Training, a Score for a Scoring


def alone(work: Work[Result]) -> Result:
    """Do all jobs of a client at once; return what its work returns."""
    try:
        job = next(work)
        while True:
            job = after(work, job)
    except StopIteration as end:
        result: Result = end.value
        return result


def after(work: Work[Any], job: Job) -> Job:
    """Do a job, and return the next one; raises StopIteration if there is none."""
    try:
        result = job.alone()
    except Exception as error:
        return work.throw(error)
    return work.send(result)
