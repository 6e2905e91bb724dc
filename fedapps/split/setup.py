"""What split learning needs around its rounds: keys, a figure, checks, the address, plans."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from fedapps.core.errors import RunError
from fedapps.core.schema import Count, MethodSettings, doc
from fedapps.method.figures import Figure
from fedapps.method.flower import BaseStrategy
from fedapps.models.grouping import frozen_keys
from fedapps.models.layers import UNCUT
from fedapps.models.training_pass import draws
from fedapps.training.costs import has_dropout
from fedapps.training.plan import Plan


def check_settings(strategy: BaseStrategy) -> None:
    """Raise `RunError` for settings and models that do not work with split learning."""
    s = strategy.settings
    if s.dp.mode != "none":
        raise RunError(
            f'dp.mode = "{s.dp.mode}": clients of this strategy send features and labels, '
            'which get no noise; use "none"'
        )
    if strategy.layout.stays:
        raise RunError(
            f'{s.strategy} needs bn-stats = "shared" or "batch" and bn-local = false: no client'
            " has statistics of the server's layers"
        )
    if s.prox_mu or strategy.clip() or s.presum:
        raise RunError(
            f"{s.strategy} does not support prox-mu, clip-percentile, max-norm and presum, "
            "because clients hold only a part of the model; leave them out"
        )
    if s.adapter_rank:
        raise RunError(f"adapter-rank = {s.adapter_rank}: {s.strategy} trains whole layers; use 0")
    model = strategy.workspace.model
    if frozen := sorted(frozen_keys(model)):
        raise RunError(
            f'model = "{s.model}": {s.strategy} trains whole layers, and {frozen[0]} is frozen'
            " (requires_grad)"
        )
    if not strategy.layout.can_be_cut:
        raise RunError(f'model = "{s.model}": {s.strategy} cuts the model, and {UNCUT}')
    # All threads of a process draw dropout masks from one generator, in an unpredictable order.
    drawing = [f"{name} has dropout" for name, part in model.named_children() if has_dropout(part)]
    if not drawing and draws(model, strategy.workspace.dataset.inputs):
        drawing = ["forward draws random numbers when it trains"]
    if drawing:
        raise RunError(
            f'model = "{s.model}": {drawing[0]}, and with {s.strategy} clients and server train at '
            "the same time, so that no run could be repeated; use a model without dropout"
        )


Cut = Annotated[
    int,
    Meta(ge=0),
    doc("number of layers on the client; 0: 4, or half of the layers if that is less"),
]


class OversampleSettings(MethodSettings, frozen=True):
    """The keys of methods in which clients train at the same time."""

    oversample: Annotated[
        bool, doc("a client with fewer batches repeats them until all clients have the same number")
    ]
    oversample_limit: Annotated[
        Count,
        doc("with oversample: limit of a device's batches, as a multiple of the median (device)"),
    ]


LEAK = Figure(
    "leak",
    "share of other clients' test samples of classes that the client lacks which, sent through the "
    "layers of its own last training, are taken for one of its classes (`score-last`, simulation)",
    sometimes=True,
)


LOOPBACK = ("127.0.0.1", "localhost", "[::1]")  # hosts that are this machine


def reachable(address: str, told: str) -> str:
    """Return the address that clients connect to; raises `RunError` if it is not a valid one.

    `address` is the run-config's channel-address, `told` its channel-reach.
    """
    for key, value in (("channel-address", address), ("channel-reach", told or address)):
        host, _, port = value.rpartition(":")
        if not host or not port.isdecimal() or int(port) > 65535:
            raise RunError(f'{key} = "{value}": must be host:port, for example 127.0.0.1:9099')
    if not told and address.rpartition(":")[0] in ("0.0.0.0", "[::]"):
        raise RunError(
            f'channel-address = "{address}": needs channel-reach, an address clients can reach'
        )
    return told or address


def read_certificate(folder: Path) -> str:
    """Return the certificate with which clients verify the server.

    Raises `RunError` if the folder lacks server.crt, server.key or ca.crt.
    """
    for name in ("server.crt", "server.key", "ca.crt"):
        if not (folder / name).is_file():
            raise RunError(f'channel-tls = "{folder}": has no {name}')
    try:
        return (folder / "ca.crt").read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RunError(f'channel-tls = "{folder}": ca.crt cannot be read: {error}') from error


def training_nodes(wanted: int, there: int, workers: int) -> int:
    """Return on how many of the SuperNodes to train; `wanted` is channel-nodes (0: not set).

    Raises `RunError` if they cannot all work at the same time: there are too few `workers`.
    """
    wanted = wanted or (1 if workers else there)
    if workers > 0 and (at_once := min(workers, there)) < wanted:
        raise RunError(
            f"channel-nodes = {wanted}: {wanted} SuperNodes must work at the same time, but "
            f"{at_once} can; use channel-nodes=1, or fedapps run with --federation-config "
            f"'num-supernodes={wanted} client-resources-num-cpus=1 init-args-num-cpus={wanted}'"
        )
    return wanted


def least_cut(plans: Mapping[int, Plan]) -> int:
    """Return the smallest number of layers on a client."""
    return min(len(plan.stages[0].layers) for plan in plans.values())
