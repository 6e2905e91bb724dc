"""What is done about clients that fail: a line each, and the end of the run if too many do."""

from collections.abc import Sequence

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.words import number
from fedapps.method.update import Failure

DEVICE_ROUNDS = 3  # rounds in a row in which all devices that were asked may fail


DIVERGED = "training diverged"  # how the cause of such a failure begins
MANY = 0.25  # share of a round's clients that must diverge for an advice


class DivergenceAdvice:
    """Says once in a run what to try where training diverges at many clients."""

    def __init__(self, lr: float, max_norm: float) -> None:
        clip = "" if max_norm else ", or max-norm=10, which limits gradients"
        self.text = f"try a lower lr (it is {lr:g}){clip}"
        self._told = False

    def apply(self, failures: Sequence[Failure], asked: int) -> None:
        """Take a round's failures, of `asked` clients."""
        diverged = {failure.client for failure in failures if failure.cause.startswith(DIVERGED)}
        if diverged and len(diverged) >= MANY * asked and not self._told:
            log.warning(
                "%s at %s of %s: %s", DIVERGED, len(diverged), number(asked, "client"), self.text
            )
            self._told = True


def refuse_dead_workers(round_: int, failures: Sequence[Failure]) -> None:
    """Raise `RunError` if a worker process died under any of the failed clients."""
    dead = [failure for failure in failures if failure.worker_died]
    if dead:
        clients = ", ".join(str(failure.client) for failure in dead)
        whose = f"client{'s' if len(dead) > 1 else ''} {clients}"
        raise RunError(
            f"round {round_}: the worker process of {whose} died, mostly for want of"
            " memory: take fewer workers at once (--federation-config client-resources-num-cpus=2),"
            " a smaller batch-size or cache-limit"
        )


class FailurePolicy:
    """Ends a run when all clients failed or more than `limit` (-1: any number but all).

    A single device may be all that was asked, so devices may all fail for a while.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._failed_rounds = 0

    def apply(
        self, round_: int, failures: Sequence[Failure], asked: int, failed: int, devices: bool
    ) -> None:
        """Raise `RunError` if the run is to end: of `asked` clients, `failed` in the round so far.

        The error tells the first cause.
        """
        if asked:
            all_failed = len({failure.client for failure in failures}) == asked
            self._failed_rounds = self._failed_rounds + 1 if all_failed else 0
        end = self._failed_rounds >= (DEVICE_ROUNDS if devices else 1)
        if not failures or not (end or 0 <= self.limit < failed):
            return
        first = failures[0]
        rule = "all failed" if len(failures) == asked else f"max-failures = {self.limit}"
        raise RunError(
            f"round {round_}: {len(failures)} of {asked} clients failed ({rule}); "
            f"client {first.client}: {first.cause}"
        )
