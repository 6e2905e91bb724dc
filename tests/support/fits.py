"""The local trainings of a run, seen from outside, or made to fail."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from fedapps import client_app
from fedapps.core import registry


@contextmanager
def recorded_fits() -> Iterator[list[tuple]]:
    """Record every local training in here: (client, its state afterwards, request, update)."""
    records, clients = [], []
    make, fit = client_app._client, client_app._fit

    def remember(*arguments):
        clients.append(make(*arguments))
        return clients[-1]

    def record(space, request, store):
        update = yield from fit(space, request, store)
        # split clients run in threads: the last one made need not be this one
        client = next(made for made in reversed(clients) if made.client == request.client)
        records.append((client, dict(client.state), request, update))
        return update

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_app, "_client", remember)
        patch.setattr(client_app, "_fit", record)
        yield records


def fail_fits(patch: pytest.MonkeyPatch, lost: Callable[[int, int], bool]) -> None:
    """From now on let the trainings fail for which `lost(round, client)` is true."""
    fit = client_app._fit

    def fail(space, request, store):
        if lost(request.plan.round, request.client):
            raise RuntimeError("made to fail")
        return fit(space, request, store)

    patch.setattr(client_app, "_fit", fail)


def hooked(patch: pytest.MonkeyPatch, method: str, name: str, hook: Callable) -> None:
    """Let a method's clients call `hook(client, own, ...)` in place of their `own` hook."""
    cls = registry.client_class(method)
    own = getattr(cls, name)
    patch.setattr(cls, name, lambda client, *more: hook(client, partial(own, client), *more))
