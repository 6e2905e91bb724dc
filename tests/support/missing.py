"""Clients that are missing in a step of a secure sum."""

from fedapps.method.flower import BaseClient
from fedapps.secure.client import SumClient


def failing(monkeypatch, steps):
    """Let steps fail in round 2: {name of a step, or "train": clients}."""
    answer, train = SumClient.answer, BaseClient.train_round

    def check(client, round_, step):
        if round_ == 2 and client in steps.get(step, ()):
            raise OSError(f"no {step}")

    def failing_answer(own, step, request):
        check(own.client, own.round, step)
        return answer(own, step, request)

    def failing_train(own, plan, received):
        check(own.client, plan.round, "train")
        return train(own, plan, received)

    monkeypatch.setattr(SumClient, "answer", failing_answer)
    monkeypatch.setattr(BaseClient, "train_round", failing_train)
