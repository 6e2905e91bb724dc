"""A device's own count of privacy: how many updates have left it, with how much noise, in all runs.

It is the file `privacy.json` in `state-dir`. Its epsilon compares the device with one that has any
other data, and does not rest on what the server says of its sampling: it holds even if everybody
knows in which rounds the device took part. So with central privacy it is larger than the server's.
Noise that is drawn from the seed counts as none, because the server knows the seed; updates without
any noise count, too, so that a budget that comes later knows of them.
"""

import math
from pathlib import Path

import msgspec
import numpy as np

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.files import in_turn, read_json, write_whole
from fedapps.core.privacy_settings import PrivacySettings
from fedapps.device.node_config import DELTA

FILE = "privacy.json"


class Spent(msgspec.Struct):
    """The number of updates by their noise multiplier z."""

    updates: dict[str, int] = {}


def read(state_dir: Path) -> Spent:
    """Return what a device has counted; raises `RunError` if that cannot be read."""
    return read_json(state_dir / FILE, Spent, "epsilon is unknown", Spent())


def epsilon(spent: Spent, delta: float) -> float:
    """Return the epsilon of all these updates together.

    An update with other data can change by 2 S, so its RDP is order / (2 (z/2)^2); that of several
    adds up. This needs no accountant, whose packages a device may not have.
    """
    if not spent.updates:
        return 0.0
    if not all(map(float, spent.updates)):
        return math.inf
    # The square of a noise can be too small for a float; this is infinite then.
    rho = sum(2 * n / float(noise) / float(noise) for noise, n in spent.updates.items())
    orders = 1 + np.logspace(-4, 6, 10_000)
    # Canonne, Kamath, Steinke: The Discrete Gaussian for Differential Privacy, Proposition 12
    more = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(float((rho * orders + more).min()), 0.0)


def check(dp: PrivacySettings, state_dir: Path, budget: float | None, delta: float = DELTA) -> None:
    """Raise `RunError` if one more update would exceed the budget; without one (None), any may.

    Epsilon is that at `delta`, or at the run's own if this is smaller.
    """
    if budget is not None:
        _check(dp, read(state_dir), budget, delta)


def count(dp: PrivacySettings, state_dir: Path, budget: float | None, delta: float = DELTA) -> None:
    """Count an update that is about to be made; raises `RunError` if it would exceed the budget.

    The folder must exist.
    """
    with in_turn(state_dir / f".{FILE}.lock"):
        spent = read(state_dir)
        if budget is not None:
            _check(dp, spent, budget, delta)
        content = msgspec.json.encode(_with_one_more(spent, dp))
        write_whole(state_dir / FILE, content, durable=True)


def check_noise(dp: PrivacySettings, budget: float | None) -> None:
    """Raise `RunError` if a device with a budget is in a run without noise that protects it."""
    if budget is None:
        return
    if not dp.noise:
        raise RunError(
            f"dp-budget = {budget:g}: the run has no noise, so its epsilon has no limit; it needs"
            " another dp.mode than none, and dp.noise-multiplier above 0"
        )
    if not dp.secret_noise:
        raise RunError(
            f"dp-budget = {budget:g}: the run's noise comes from its seed, which the server knows;"
            " it needs dp.secret-noise=true"
        )


def _check(dp: PrivacySettings, spent: Spent, budget: float, most: float) -> None:
    check_noise(dp, budget)
    delta = min(dp.delta, most)
    if math.isinf(epsilon(spent, delta)):
        raise RunError(
            f"dp-budget = {budget:g}: this device has sent updates without noise, or with noise"
            " that the server can subtract, so its epsilon has no limit any more; to begin anew,"
            f" with data that it has not used, remove {FILE} from its state-dir"
        )
    before, after = epsilon(spent, delta), epsilon(_with_one_more(spent, dp), delta)
    if after > budget:
        raise RunError(
            f"dp-budget = {budget:g}: this device has spent an epsilon of {before:.4g}, and one"
            f" more round would make it {after:.4g} (delta {delta:g})"
        )
    log.info("epsilon spent here: %.4g of %g (dp-budget)", before, budget)


def _with_one_more(spent: Spent, dp: PrivacySettings) -> Spent:
    noise = repr(dp.noise if dp.protects else 0.0)
    return Spent(spent.updates | {noise: spent.updates.get(noise, 0) + 1})
