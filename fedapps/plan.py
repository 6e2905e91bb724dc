"""A plan: what one client does in one round, as data that travels in a Flower message."""

import msgspec

from fedapps.layers import Slice


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """Clipping of a stage: threshold = min(percentile of the last norms, `max_norm`).

    `max_norm` None means no limit; `mode` is `batch` or `sample`; `history` counts norms.
    """

    percentile: float
    max_norm: float | None
    mode: str
    history: int


class Stage(msgspec.Struct, frozen=True, kw_only=True):
    """Some epochs of SGD on some layers; every other layer is frozen and in eval mode."""

    layers: Slice
    epochs: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox_mu: float = 0.0
    clip: Clip | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What a client receives, trains and sends back; slices are tuples of layer names."""

    round: int
    download: Slice
    stages: tuple[Stage, ...]
    upload: Slice
