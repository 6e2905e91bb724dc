"""What attackers of a simulation do together, or say about themselves, as their updates arrive.

On the clients' side no attacker sees another's update, and each can be in another process. So this
is done where all updates pass in the order of the clients, before the server's own code sees them;
the result is the same for any number of workers. `fedapps/method/attacks.py` has the other attacks.

- `alie`: Baruch, Baruch, Goldberg, A Little Is Enough, NeurIPS 2019 (Algorithm 3). The f attackers
  of a round know only what they hold: all send mu - z sigma, the mean and the standard deviation
  (ddof 0) of their own honest updates, entry by entry. A single attacker sends its own update. Of
  an array that only some of them upload, mu and sigma are over these, and only they send it.
- `inflated-count`: an attacker trains as all do, but says that it has `attack-scale` times as many
  samples, so that its update weighs more. It does so from the start; otherwise the server, which
  has been told how many samples each client has, would refuse it.
"""

from collections.abc import Mapping, Sequence
from statistics import NormalDist

import numpy as np

from fedapps.core import log
from fedapps.core.draws import smallest_share
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.engine.robust import refuse_presum
from fedapps.method.attacks import SIGNS
from fedapps.method.flower import BaseStrategy
from fedapps.method.update import ClientUpdate, Updates, replace
from fedapps.models.layers import Arrays
from fedapps.training.plan import Plan

CHANGING = (*SIGNS, "alie")  # attacks that put other values into the layers of an upload


def attackers(strategy: BaseStrategy) -> frozenset[int]:
    """Return the attackers of a run; raises `RunError` if their attack cannot be simulated."""
    s, task = strategy.settings, strategy.workspace.task
    if s.attack != "none":
        refuse_presum(s, f'attack = "{s.attack}"')
    if s.attack == "label-flip" and not task.has_classes:
        raise RunError(f'attack = "label-flip": needs classes, but task = "{task.name}"')
    found, clients = strategy.workspace.attackers, strategy.workspace.population.training
    if s.attackers and not found:
        told = f"attackers = {s.attackers:g}: of {len(clients)} clients that is nobody"
        raise RunError(f"{told}; use at least {smallest_share(len(clients)):g}")
    return found


def tell_what_is_honest(
    settings: Settings, lying: frozenset[int], plans: Mapping[int, Plan], told: set[str]
) -> None:
    """Warn of what attackers of a round send beside layers, which stays honest; each part once.

    The parts are added to those that have been `told`.
    """
    if settings.attack not in CHANGING:
        return
    names = {name for client in lying & plans.keys() for name in plans[client].sends}
    if parts := {name.partition("/")[0] + "/" for name in names} - told:
        told |= parts
        listed = ", ".join(sorted(parts))
        log.warning('attack = "%s" changes layers; %s is sent as it is', settings.attack, listed)


def colluding(settings: Settings, lying: frozenset[int], updates: Updates) -> Updates:
    """Yield all updates of a round, those of the clients `lying` as these have agreed.

    For `alie`, it waits for all updates of the round, and holds them.
    """
    if settings.attack == "inflated-count":
        for update in updates:
            lies = update.client in lying
            yield inflated(update, settings.attack_scale) if lies else update
        return
    if settings.attack != "alie" or not lying:
        yield from updates
        return
    held = list(updates)
    ours = [update for update in held if update.client in lying]
    z = settings.attack_z or most_deviation(len(held), len(ours))
    agreed = a_little_off([update.arrays for update in ours], z)
    for update in held:
        if update.client in lying:
            update = replace(update, arrays={key: agreed[key] for key in update.arrays})
        yield update


def inflated(update: ClientUpdate, factor: float) -> ClientUpdate:
    """Return an update that claims `factor` times as many samples."""
    count = max(1, round(factor * update.num_examples))
    return replace(update, num_examples=count, weight=factor * update.weight)


def most_deviation(count: int, attackers: int) -> float:
    """Return z_max = Phi^-1((n - f - s) / (n - f)) with s = floor(n/2 + 1) - f; at least 0.

    n = `count` are all clients of the round, f of them attackers; s supporters make a majority.
    """
    honest = count - attackers
    share = (honest - (count // 2 + 1 - attackers)) / honest if honest > 0 else 0.0
    return NormalDist().inv_cdf(min(share, 0.999)) if share > 0.5 else 0.0


def a_little_off(updates: Sequence[Arrays], z: float) -> Arrays:
    """Return mu - z sigma of the updates that have an array (float32), entry by entry."""
    agreed = {}
    for key in dict.fromkeys(key for own in updates for key in own):
        x = np.stack([own[key] for own in updates if key in own]).astype(np.float64)
        agreed[key] = (x.mean(0) - z * x.std(0)).astype(np.float32)
    return agreed
