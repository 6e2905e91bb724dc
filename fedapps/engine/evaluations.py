"""Who is evaluated after a round, and how: clients that train, and in the end newcomers."""

from collections.abc import Collection, Sequence

from fedapps.core.draws import sample_evaluated
from fedapps.core.errors import as_returned
from fedapps.core.scored_rounds import is_due
from fedapps.method.flower import BaseStrategy
from fedapps.report.rows import NEWCOMERS
from fedapps.training.plan import Plan


def evaluated(strategy: BaseStrategy) -> list[int]:
    """Return the clients that are there and that the run evaluates; attackers are not scored."""
    s, space = strategy.settings, strategy.workspace
    clients = without_attackers(space.population.training, space.attackers)
    chosen = sample_evaluated(s.seed, clients, s.evaluate_clients)
    if not strategy.devices:  # all that train are there
        return chosen
    there = strategy.clients
    return [client for client in chosen if client in there]


def scored(strategy: BaseStrategy, round_: int) -> Sequence[int]:
    """Return the clients that a round's evaluation scores, besides newcomers.

    After the last round, those of a method with a final phase are all that are honest.
    """
    last = round_ == strategy.settings.num_rounds
    return honest(strategy) if last and strategy.final_phase else evaluated(strategy)


def honest(strategy: BaseStrategy) -> Sequence[int]:
    """Return the clients that train, are there, and are no attackers of a simulation."""
    return without_attackers(strategy.clients, strategy.workspace.attackers)


def without_attackers(clients: Sequence[int], attackers: Collection[int]) -> Sequence[int]:
    """Return the clients that are not among the attackers."""
    return [client for client in clients if client not in attackers] if attackers else clients


def final_phase(strategy: BaseStrategy, round_: int) -> str:
    """Return the phase that follows the last round; "" if there is none."""
    held_out = strategy.workspace.population.held_out
    phase = strategy.final_phase or (NEWCOMERS if held_out else "")
    return phase if round_ == strategy.settings.num_rounds else ""


def plans(strategy: BaseStrategy, round_: int) -> dict[int, Plan]:
    """Return the plans of a round's evaluation; none if it has none.

    The last round's has those of newcomers, too.
    """
    s = strategy.settings
    due = is_due(s, round_)
    if not due and round_ not in s.further_rounds:
        return {}
    clients = [*scored(strategy, round_)]
    if round_ == s.num_rounds:
        clients += newcomers(strategy)
    found = {client: plan_of(strategy, round_, client) for client in sorted(clients)}
    if not due:  # scored without personalization
        return {client: plan.without_stages() for client, plan in found.items()}
    return found


def newcomers(strategy: BaseStrategy) -> list[int]:
    """Return the clients that are there and that training has left out."""
    held_out = strategy.workspace.population.held_out
    return [client for client in held_out if not strategy.devices or client in strategy.devices]


def absent(strategy: BaseStrategy) -> list[str]:
    """Return the clients that training has left out and that are not there."""
    held_out = strategy.workspace.population.held_out
    return [f"client {client}" for client in sorted({*held_out}.difference(newcomers(strategy)))]


def plan_of(strategy: BaseStrategy, round_: int, client: int) -> Plan:
    """Return how a client is evaluated after a round; newcomers have a plan of their own."""
    if client in strategy.workspace.population.held_out:
        return strategy.plan_of_newcomer(round_, client)
    plan = strategy.evaluation_plan(round_, client)
    return as_returned("evaluation_plan", plan, isinstance(plan, Plan), "a Plan")


def layers_told(strategy: BaseStrategy, round_: int) -> str:
    """Say which layers of the scored models were shared, and which were personal; "" without any.

    A client that has missed rounds can get more from the server than the others, who count here.
    """
    layout = strategy.layout
    found = {_shared(strategy, round_, client) for client in evaluated(strategy)}
    if not found:
        return ""
    shared = min(found, key=len)
    own = {*layout.keys_of(layout.names)}.difference(shared)
    kinds = {"shared": set(shared), "personal": own}
    parts = {kind: layout.covering(layout.names, keys) for kind, keys in kinds.items() if keys}
    if len(parts) == 1:
        return f"all {next(iter(parts))}"
    return "; ".join(f"{kind} {', '.join(layers)}" for kind, layers in parts.items())


def _shared(strategy: BaseStrategy, round_: int, client: int) -> frozenset[str]:
    """Return the keys of a client's scored model that are shared: those that it downloads.

    If it also gets further arrays, it may make of them what clients upload in a round.
    """
    plan, layout = strategy.evaluation_plan(round_, client), strategy.layout
    sent = strategy.plan(round_, client).up(layout) if plan.receives else ()
    made = layout.shapes.keys() & {name.rpartition("/")[2] for name in sent}
    return frozenset({*layout.shared(plan.download), *made})
