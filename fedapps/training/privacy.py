"""Differential privacy of what a client uploads: clipping, local noise, and what may leave.

What is protected is the whole client. Its update is the difference between the slice that it
uploads and the same arrays as it has downloaded them, all taken together as one vector, which is
clipped to the L2 norm S. With local privacy, the client itself clips its update and adds the noise;
with distributed privacy it does so where it masks the update (`fedapps.engine.masking`). The
server's part is `fedapps.engine.privacy`; docs/privacy.md says what both of them guarantee.
"""

import math
from collections.abc import Mapping

import numpy as np

from fedapps.core.draws import generator, secret_seed
from fedapps.core.errors import DIVERGED, DivergedError, RunError
from fedapps.core.settings import Settings
from fedapps.models.layers import Arrays, Layout
from fedapps.training.plan import Plan


def privatize(
    settings: Settings,
    layout: Layout,
    plan: Plan,
    client: int,
    received: Mapping[str, np.ndarray],
    upload: Arrays,
    earlier: int = 0,
) -> Arrays:
    """Return what leaves a client: with local privacy, its clipped update plus noise.

    The noise is N(0, (z S)^2); from the seed, it goes on after `earlier` rounds. Raises `RunError`
    for a plan under which more would leave the client, so the server cannot ask for more.
    """
    dp = settings.dp
    if dp.mode != "local":
        return upload
    check_plan(settings, layout, plan)
    difference, _ = clipped_difference(upload, received, dp.clip_norm)
    seed = secret_seed() if dp.secret_noise else settings.seed
    draws, z = generator(seed, "dp-local", earlier + plan.round, client), dp.noise_multiplier
    noisy = {
        key: received[key] + value + z * dp.clip_norm * draws.standard_normal(value.shape)
        for key, value in difference.items()
    }
    return postprocess(noisy, layout)


def clipped_difference(
    new: Mapping[str, np.ndarray], old: Mapping[str, np.ndarray], limit: float
) -> tuple[Arrays, float]:
    """Return new - old (float64, by name), scaled to an L2 norm of at most `limit`, and its norm.

    The norm is that of all arrays together, as one vector; it is the norm before scaling. Raises
    `DivergedError` if it is not finite: nothing would be clipped.
    """
    difference = {key: value.astype(np.float64) - old[key] for key, value in new.items()}
    # not by np.vdot: the last digits of BLAS depend on its number of threads
    norm = math.sqrt(sum(float((d * d).sum()) for d in difference.values()))
    if not math.isfinite(norm):
        bad = next((key for key, d in difference.items() if not np.isfinite(d).all()), "its norm")
        raise DivergedError(why := f"{DIVERGED}: {bad} is not finite", why)
    scale = min(1.0, limit / norm) if norm else 1.0
    return {key: scale * value for key, value in difference.items()}, norm


def postprocess(arrays: Mapping[str, np.ndarray], layout: Layout) -> Arrays:
    """Return arrays as float32; set variances of BatchNorms that noise made negative to 0.

    This comes after the noise, so it costs no privacy.
    """
    variances = layout.variances
    return {
        key: (np.maximum(value, 0.0) if key in variances else value).astype(np.float32)
        for key, value in arrays.items()
    }


def check_plan(settings: Settings, layout: Layout, plan: Plan) -> None:
    """Refuse a plan under which more leaves a client than differences from what it downloaded.

    Raises `RunError`.
    """
    if settings.dp.mode == "none":
        return
    up, down = layout.shared(plan.upload), layout.shared(plan.download)
    start = set(down).difference(layout.keys_of(plan.also_keep))  # kept layers start as they are
    foreign = layout.layers_of(key for key in up if key not in start)
    reason = ""
    if plan.sends or plan.channel:
        reason = "has clients send more than layers, and no noise is added to the rest"
    elif not up:
        reason = "uploads nothing, so there is nothing to protect"
    elif foreign:
        reason = (
            f"uploads {', '.join(foreign)}, but clients start from other values than downloaded"
        )
    if reason:
        raise RunError(f'dp.mode = "{settings.dp.mode}": this strategy {reason}; use "none"')
