"""What is done about clients that fail: advice, and the end of the run if too many do."""

from collections import Counter
from collections.abc import Mapping, Sequence

from fedapps.core import log
from fedapps.core.errors import DIVERGED, RunError
from fedapps.core.settings import Settings
from fedapps.method.update import Failure

DEVICE_TIMES = 3  # how often in a row all devices that were asked may fail
DIVERGED_TIMES = 3  # how often in a row training may diverge at more than half of the clients
ANY = "any"  # training and evaluation together, as they follow each other


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
    """Ends a run when all clients failed or more than `max-failures` (-1: any number but all).

    A single device may be all that was asked, so devices may all fail for a while. Training counts
    apart from evaluation, too: a model that nobody can train any more can still be scored. A run
    whose last round is over and in which nobody ever succeeded has failed in any case, and so has
    one in which training diverges at more than half of the clients, several times in a row: whoever
    has spoiled the model may go on answering.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self._in_a_row = Counter[str]()  # times that all failed, by kind
        self._succeeded = set[str]()
        self._diverged_in_a_row = 0  # times that training diverged at more than half
        self._advised = False
        self._first_round = 0  # that it has seen; a run that goes on had others before

    def apply(
        self,
        round_: int,
        kind: str,
        failures: Sequence[Failure],
        asked: int,
        failed: int,
        devices: bool,
    ) -> None:
        """Raise `RunError` if the run is to end: of `asked` clients, `failed` in the round so far.

        `kind` is what they were asked for, "train" or "evaluate". The error tells the first cause.
        """
        self._first_round = self._first_round or round_
        if kind == "train":
            causes = {f.client: f.cause for f in reversed(failures) if DIVERGED in f.cause}
            self._end_if_most_diverge(round_, causes, asked)
            self._advise(round_, len(causes), asked)
        all_failed = bool(asked) and len({failure.client for failure in failures}) == asked
        if all_failed:
            self._in_a_row.update((kind, ANY))
        elif asked:
            self._in_a_row[kind] = self._in_a_row[ANY] = 0
            self._succeeded.add(kind)
        end = max(self._in_a_row.values(), default=0) >= (DEVICE_TIMES if devices else 1)
        whole = self._first_round == 1 and round_ == self.settings.num_rounds
        in_vain = whole and kind not in self._succeeded
        limit = self.settings.max_failures
        if not failures or not (end or in_vain or 0 <= limit < failed):
            return
        first = failures[0]
        rule = "all failed" if all_failed else f"max-failures = {limit}"
        raise RunError(
            f"round {round_}: {len(failures)} of {asked} clients failed ({rule}); "
            f"client {first.client}: {first.cause}"
        )

    def _end_if_most_diverge(self, round_: int, causes: Mapping[int, str], asked: int) -> None:
        """Raise `RunError` if it has been so for long; that all do is a matter of `apply`."""
        most = 2 * len(causes) > asked
        self._diverged_in_a_row = self._diverged_in_a_row + 1 if most else 0
        if len(causes) < asked and self._diverged_in_a_row >= DIVERGED_TIMES:
            client = min(causes)
            raise RunError(
                f"round {round_}: training diverged at {len(causes)} of {asked} clients, at more "
                f"than half for {DIVERGED_TIMES} rounds in a row; client {client}: {causes[client]}"
            )

    def _advise(self, round_: int, diverged: int, asked: int) -> None:
        """Say once in a run what helps against training that diverges."""
        if not diverged or self._advised:
            return
        self._advised = True
        limit = "" if self.settings.max_norm else ", or limit gradients with max-norm, as 10"
        log.warning(
            "round %s: training diverged at %s of %s clients: lower lr = %g%s",
            round_,
            diverged,
            asked,
            self.settings.round_lr(round_),
            limit,
        )
