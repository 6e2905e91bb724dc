"""The rounds of a run: Flower's callbacks, which call the hooks of a strategy."""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from itertools import chain
from logging import INFO, LogRecord

from flwr.app import Message

from fedapps.core import log
from fedapps.core.errors import DIVERGED, without_lines
from fedapps.core.scored_rounds import is_due
from fedapps.core.words import some
from fedapps.engine import checks, collusion, evaluations, returned, server_data
from fedapps.engine.checkpoint import check_state, needed_after
from fedapps.engine.clocks import clock
from fedapps.engine.drawn import Drawn
from fedapps.engine.metrics import MetricChecks
from fedapps.engine.privacy import MODES
from fedapps.engine.privacy_mode import reference_of
from fedapps.engine.questions import ask
from fedapps.engine.receiving import Receiving
from fedapps.engine.recovery import EarlyStop, Recovery
from fedapps.engine.server_optimizer import ServerOptimizer
from fedapps.engine.summing import SecureSumming, Summing
from fedapps.engine.totals import RoundTotals
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import OnePass
from fedapps.models.layers import Arrays
from fedapps.report.report import Report
from fedapps.training.costs import TrainingStats, cost_of
from fedapps.training.plan import Plan
from fedapps.wire.exchange import Exchange
from fedapps.wire.fleet import Fleet, load, portions
from fedapps.wire.grid import AnyGrid, StreamingGrid
from fedapps.wire.nodes import NodeRegistry
from fedapps.wire.requests import Request, RoundInfo


class Rounds:
    """Runs a strategy: selects clients, sends, aggregates and evaluates; counts costs and failures.

    The constructor checks the strategy against the settings and raises `RunError` if they do not
    fit; `run` does the rounds.
    """

    report: Report
    nodes: NodeRegistry  # knows which SuperNodes are connected
    receiving: Receiving
    idle = False  # whether the last round had no update

    def __init__(self, strategy: BaseStrategy) -> None:
        self.strategy = strategy
        self.settings = s = strategy.settings
        self.layout = strategy.layout
        self.fleet = Fleet()
        training = strategy.workspace.population.training
        check_state(strategy.state)
        self.privacy = MODES[s.dp.mode](s, self.layout, strategy.state, training)
        self.privacy.check_strategy(strategy)
        self.checks = MetricChecks(strategy)
        checks.check_strategy(strategy)
        checks.check_plans(strategy)
        self.clock = clock(strategy)
        self.summing = SecureSumming(strategy) if s.secure_sum else Summing()
        self.attackers = collusion.attackers(strategy)
        self.told: set[str] = set()  # what attackers send honestly
        self.drawn = Drawn(s.strategy)
        self.optimizer = ServerOptimizer(self.settings, self.layout, strategy.state)
        self.totals = RoundTotals()
        self.exchange = Exchange()
        self.recovery = Recovery(self.settings)

    def run(self, grid: AnyGrid, report: Report, nodes: NodeRegistry, fleet: Fleet) -> None:
        """Do all rounds in Flower's own loop; replies are processed as they arrive."""
        strategy, s = self.strategy, self.settings
        self.report, self.nodes = report, nodes
        self.receiving = Receiving(strategy, self.recovery, report, nodes)
        strategy.event = report.event
        self.clock.begin()
        self._meet(fleet)
        if self.recovery.left:  # a method can refuse these SuperNodes
            strategy.train_nodes(fleet.nodes, fleet.workers)
        streaming = StreamingGrid(grid, lambda: self.exchange.given_up_messages(), nodes.lookout)
        self.summing.grid = streaming
        if not self.recovery.done:
            for client in sorted(self.attackers):
                report.event(0, client, "attacker", s.attack)
            ask(strategy, fleet, streaming, report.folder)
        with strategy.running(), without_lines("flwr", _banner), suppress(EarlyStop):
            report.begin()  # from here on nothing refuses the run
            self.recovery.goes_on(report.folder)
            strategy.run_rounds(self, streaming, self.recovery.left, s.round_timeout)
        self.clock.end()

    # Flower's callbacks; Flower counts the rounds of this process from 1 -------------------

    def configure_train(self, round_: int) -> list[Message]:
        """Select clients and make the messages to SuperNodes."""
        round_ += self.recovery.done
        self._see_who_is_there(round_)
        self.totals = RoundTotals()
        there = self.clock.there(round_)
        with self.drawn.watched("select"):
            wanted = returned.check_selected(round_, self.clock.select(round_, there), there)
        wanted = self.privacy.select(self.strategy.overall(round_), wanted, there)
        selected = self.clock.reached(round_, wanted)
        selected = self.summing.enough(round_, selected)
        with self.drawn.watched("plan"):
            plans = {client: self.strategy.plan(round_, client) for client in selected}
        plans = self.strategy.begin_round(round_, plans)
        collusion.tell_what_is_honest(self.settings, self.attackers, plans, self.told)
        for kind, detail in self.privacy.begin(plans).items():
            self.report.event(round_, "server", kind, detail)
        self.recovery.before_sending(self.report, self.strategy)
        self.totals.clients = len(plans)
        ready = self.summing.begin(round_, plans, self._info(round_, "train"), self.fleet)
        messages = self._send(round_, ready, "train")
        self.exchange.failures += self.summing.failures
        self.totals.epsilon = self.privacy.epsilon()
        self.totals.bytes_down = self.exchange.nbytes
        return messages

    def aggregate_train(self, round_: int, replies: Iterable[Message]) -> None:
        """Aggregate the updates in client order; end the run if too many clients failed."""
        round_ += self.recovery.done
        replied = self.exchange.updates(replies, self.layout, self.checks.training)
        arrived = self.drawn.by_clients("training", replied)
        sent = collusion.colluding(self.settings, self.attackers, arrived)
        counted = self.receiving.accepted(round_, sent, self.exchange, self.totals)
        others = len(self.clock.at_work)
        in_time = self.clock.counted(round_, counted, partial(self.exchange.traffic, self.layout))
        summed = self.summing.release(in_time, self.exchange.failures)
        reference = partial(reference_of, self.strategy, round_)
        updates = self.privacy.release(self.strategy.overall(round_), summed, reference)
        first = next(updates, None)
        self.idle = first is None
        new: Arrays = {}
        if first is not None:
            with self.drawn.watched("aggregate"):
                each = self.drawn.not_while("aggregate", chain([first], updates))
                new = self.strategy.aggregate(round_, OnePass(each))
        for _ in updates:  # count also those that `aggregate` did not read, and their failures
            pass
        moved = {**self.strategy.end_round(round_), **self.summing.moved}
        self.totals.bytes_down += sum(down for down, _ in moved.values())
        self.totals.bytes_up += sum(up for _, up in moved.values())
        self.receiving.handle_failures(
            round_, "train", self.exchange, self.totals, self.fleet, self.summing.spoilt, others
        )
        means = returned.check_aggregate(round_, new, self.layout)
        self.strategy.arrays.update(self.optimizer.new(self.strategy.arrays, means))
        spent = server_data.train(self.strategy, round_)
        with self.drawn.watched("after_round"):
            after = cost_of(self.strategy.after_round, round_, TrainingStats)
        arrays = self.strategy.arrays
        arrays.update(returned.check_model(round_, arrays, self.layout))
        check_state(self.strategy.state, f"round {round_}: ")
        self.clock.close(moved, spent.macs + after.macs)
        self.totals.add(spent)
        self.totals.add(after)
        self.totals.virtual_seconds = self.clock.now

    def configure_evaluate(self, round_: int) -> list[Message]:
        """Make the evaluation messages of a round; none if the round is not evaluated."""
        round_ += self.recovery.done
        with self.drawn.watched("evaluation_plan"):
            plans = evaluations.plans(self.strategy, round_)
        messages = self._send(round_, plans, "evaluate")
        self.totals.bytes_eval = self.exchange.nbytes
        if final := evaluations.final_phase(self.strategy, round_):
            if absent := evaluations.absent(self.strategy):
                log.warning("newcomers that are not there: %s", some(absent))
            self.totals = self._close_training(round_, final)
        return messages

    def aggregate_evaluate(self, round_: int, replies: Iterable[Message]) -> None:
        """Collect the scores in client order; write the round's rows and a checkpoint if due."""
        round_ += self.recovery.done
        found = self.exchange.updates(replies, self.layout, self.checks.evaluation)
        updates = [update.without_counts() for update in self.drawn.by_clients("evaluation", found)]
        self.receiving.scored(round_, updates, self.exchange)
        self.checks.tell_missing(updates)
        self.receiving.handle_failures(round_, "evaluate", self.exchange, self.totals, self.fleet)
        for update in updates:
            self.recovery.see(round_, update, self.report)
        due = is_due(self.settings, round_)
        # A final phase asks all clients; in a round without an evaluation, nobody has answered.
        those = {*evaluations.evaluated(self.strategy)} if updates else ()
        if scores := [u.checked.scores for u in updates if u.client in those]:
            shown = scores if due else [score.initial_only() for score in scores]
            self.totals.means = self.report.evaluation(round_, shown)
        new = [u for u in updates if self.exchange.requests[u.client].plan.newcomer]
        self.report.unseen(round_, [update.checked.scores for update in new])
        if self.totals.phase:
            for update in (u for u in updates if self._is_of_phase(u.client)):
                self.totals.add(update.checked.finetuned)
        self.report.round(self.totals.row(round_, self.strategy.phase(round_)))
        failures = self.exchange.failures
        diverged = {f.client for f in failures if f.client in those and DIVERGED in f.cause}
        means = self.totals.means
        self.recovery.after_round(round_, self.strategy, self.report, means, len(diverged))

    # Who is there -------------------------------------------------------------------------

    def _meet(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.strategy.devices.clear()
        self.strategy.devices |= {client: bound.samples for client, bound in fleet.bound.items()}

    def _see_who_is_there(self, round_: int) -> None:
        """Bind clients to the connected SuperNodes; in a simulation these never change."""
        if self.fleet.workers:
            return
        before = self.fleet.bound
        self._meet(self.nodes.wait_for_nodes())
        now = self.fleet.bound
        for kind, there, elsewhere in (("left", before, now), ("joined", now, before)):
            for client in sorted(set(there) - set(elsewhere)):
                log.info("round %s: client %s %s", round_, client, kind)
                self.report.event(round_, client, kind, f"SuperNode {there[client].node}")

    # Sending ------------------------------------------------------------------------------

    def _send(self, round_: int, plans: Mapping[int, Plan], kind: str) -> list[Message]:
        strategy, s = self.strategy, self.settings
        requests: list[Request] = []
        loads: list[float] = []
        for client, plan in plans.items():
            with self.drawn.watched("download"):
                arrays = returned.download(strategy, round_, client, plan)
            boxes = self.summing.boxes.get(client, b"") if kind == "train" else b""
            trained, scored = (strategy.count(client, n) for n in ("train", s.evaluate_on))
            count = trained if kind == "train" else scored
            grown = s.max_samples if strategy.devices else 0
            requests.append(Request(client, plan, arrays, count, boxes, grown, s.dp.by_clients))
            loads.append(load(plan, trained, scored, s.batch_size))
        places = self.fleet.nodes
        if kind == "train":
            places = strategy.train_nodes(places, self.fleet.workers)
        allotted = self.fleet.allot(requests, loads, places)
        if not s.presum and not any(plan.channel for plan in plans.values()):
            allotted = portions(allotted, strategy.layout, strategy.workspace.group.size)
        self.exchange = Exchange(allotted, strategy.unreachable, s.max_value)
        return self.exchange.messages(self._info(round_, kind), kind, str(round_))

    def _info(self, round_: int, kind: str) -> RoundInfo:
        """Return what all messages of a round say about the run."""
        about, resident = self.report.about, self.strategy.workspace.resident
        return RoundInfo(
            run_dir=str(self.report.folder),
            fingerprint=resident.fingerprint,
            presum=self.settings.presum and kind == "train",
            run_id=about.id,
            resumed=[*about.resumed],
            needed=needed_after(round_, self.settings.checkpoint_every),
            sketch=resident.sketch,
            earlier=self.strategy.earlier,
        )

    def _close_training(self, round_: int, final: str) -> RoundTotals:
        """Write the last round's row; return totals for the phase that follows."""
        later = [client for client in self.exchange.requests if self._is_of_phase(client)]
        payload = sum(self.exchange.payloads[client] for client in later)
        self.totals.bytes_eval -= payload
        self.report.round(self.totals.row(round_, self.strategy.phase(round_)))
        return RoundTotals(
            phase=final,
            clients=len(later),
            failed=self.totals.failed,
            counted=len(self.totals.failed),
            bytes_eval=payload,
            epsilon=self.totals.epsilon,  # fine-tuning releases nothing more
            virtual_seconds=self.totals.virtual_seconds,
        )

    def _is_of_phase(self, client: int) -> bool:
        """Tell whether a client belongs to the phase that follows the training.

        To a final phase of the method belong all clients that trained, or else newcomers alone.
        """
        newcomer = self.exchange.requests[client].plan.newcomer
        return newcomer != bool(self.strategy.final_phase)


def _banner(record: LogRecord) -> bool:
    """Tell whether a log line is from Flower's loop; the report has its own line per round."""
    return record.module in ("strategy", "strategy_utils") and record.levelno <= INFO
