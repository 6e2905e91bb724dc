"""What comes back from clients in a round: updates, which are counted, and failures."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fedapps.core import log
from fedapps.core.errors import DECLINED, DIVERGED
from fedapps.core.words import some
from fedapps.engine.failures import refuse_dead_workers
from fedapps.engine.recovery import Recovery
from fedapps.engine.totals import RoundTotals
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import ClientUpdate, Failure, Updates
from fedapps.report.report import Report
from fedapps.training.costs import TrainingStats
from fedapps.training.plan import Plan
from fedapps.wire.exchange import Exchange
from fedapps.wire.fleet import Fleet
from fedapps.wire.nodes import NodeRegistry


@dataclass
class Receiving:
    """Adds what comes back from an exchange to the totals of its round, and reports it."""

    strategy: BaseStrategy
    recovery: Recovery
    report: Report
    nodes: NodeRegistry
    warned: bool = False  # of a personalization, or a model, that diverged

    def accepted(
        self, round_: int, updates: Updates, exchange: Exchange, totals: RoundTotals
    ) -> Updates:
        """Pass on the updates that the strategy's `screen` accepts, and count their costs.

        The others are failures of the exchange.
        """
        for update in self.strategy.screen(round_, updates):
            if isinstance(update, Failure):
                exchange.failures.append(update)
                continue
            totals.bytes_up += exchange.traffic(self.strategy.layout, update.client)[1]
            self.recovery.see(round_, update, self.report)
            done: TrainingStats = update.checked
            totals.add(done)
            for kind, count in (("skipped", done.skipped), ("rejected", done.rejected)):
                if count:
                    detail = f"{count} of {count + done.batches} batches"
                    self.report.event(round_, update.client, kind, detail)
            if not done.batches and done.skipped:
                why = "which have one sample each: BatchNorm needs more; raise batch-size"
                log.info(f"round {round_}: client {update.client} skipped all its batches, {why}")
            yield update

    def scored(self, round_: int, updates: Sequence[ClientUpdate], exchange: Exchange) -> None:
        """Report whose personalization diverged, aloud once: their scores count, and say little.

        Where the plan has none, it is the model itself. Those who have no scores, because their
        errors are not numbers, are failures of the exchange.
        """
        plans = {client: request.plan for client, request in exchange.requests.items()}
        losses = {update.client: update.checked.scores.loss for update in updates}
        alike = [client for client, loss in losses.items() if not math.isfinite(loss)]
        for client in alike:
            self.report.event(round_, client, "diverged", f"the {_scored_part(plans[client])}")
        failed = {f.client for f in exchange.failures if DIVERGED in f.cause} & plans.keys()
        for clients, told in (
            (alike, "all predictions there are alike, and count"),
            (sorted(failed), "they are in no score"),
        ):
            if clients and not self.warned:
                self.warned = True
                who = some([self.report.columns.called(client) for client in clients])
                whose = " and ".join(dict.fromkeys(_scored_part(plans[c]) for c in clients))
                rate = self._rate(round_, plans[clients[0]])
                line = f"{whose} diverged, client {who}: {told}; use a smaller {rate}"
                log.warning(f"round {round_}: {line}")

    def _rate(self, round_: int, plan: Plan) -> str:
        """Name the learning rate that counts for a model that was scored, with its value."""
        s, rates = self.strategy.settings, {stage.lr for stage in plan.stages}
        if s.finetune_rate in rates and "finetune-lr" not in self.strategy.unused:
            return f"finetune-lr than {s.finetune_rate:g}"
        general = {s.round_lr(round_), s.lr}  # the latter for newcomers
        found = max(rates or general)
        return f"{'lr' if found in general else 'learning rate'} than {found:g}"

    def handle_failures(
        self,
        round_: int,
        kind: str,
        exchange: Exchange,
        totals: RoundTotals,
        fleet: Fleet,
        spoilt: str = "",
        others: int = 0,
    ) -> None:
        """Log and record failures, and who declined; raises `RunError` if there are too many.

        A device that declines is as one that is away: it has not failed, but a run in which all
        decline can end. One that has more samples than it said is asked anew. `spoilt` says why
        there is no secure sum of those that have not failed. `others` counts the clients at work
        for an earlier round: they have not failed, either.
        """
        failures = sorted(exchange.failures, key=lambda failure: failure.client)
        failing = "failed" if kind == "train" else "failed in the evaluation"
        failed = set[int]()
        for failure in failures:
            client, cause = failure.client, failure.cause
            called = self.report.columns.called(client)
            if failure.declined:
                log.info("round %s: client %s %s", round_, called, cause)
                self.report.event(round_, client, DECLINED, cause.removeprefix(f"{DECLINED}: "))
                continue
            failed.add(client)
            totals.failed.setdefault(client, failure)
            log.info("round %s: client %s %s: %s", round_, called, failing, cause)
            self.report.event(round_, client, "failure", cause)
        late = {failure.client for failure in failures if failure.unanswered}
        grown = {failure.client for failure in failures if failure.grown}
        self.nodes.recheck(failed | grown, fleet, late, grown)
        if fleet.workers:  # in a simulation, the next worker would die for the same reason
            refuse_dead_workers(round_, failures)
        asked = others + len({*exchange.requests} | {failure.client for failure in failures})
        if kind == "evaluate":  # who withholds scores has not failed, so that not all have
            told = [failure for failure in failures if not failure.withheld]
            if asked and len(failures) - len(told) == asked:
                whose = "all devices that were asked keep theirs to themselves"
                log.info("round %s: no scores: %s", round_, whose)
            failures = told
        devices, s, so_far = bool(fleet.bound), self.strategy.settings, [*totals.failed.values()]
        clips = not self.strategy.has_channel  # with a channel, the model is cut
        counts = self.recovery.failures
        counts.apply(s, round_, kind, failures, asked, so_far, devices, spoilt, clips)


def _scored_part(plan: Plan) -> str:
    return "personalization" if plan.stages else "model"
