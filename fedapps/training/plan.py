"""A plan: what one client does in one round, as data that travels in a Flower message."""

import msgspec

from fedapps.core.schema import AtLeastZero, NonNegative, learned
from fedapps.models.layers import Layout, Slice
from fedapps.training.channel import Channel


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """Clipping of a stage: the threshold is min(percentile of the last norms, `max_norm`).

    `max_norm` None means no limit; `mode` is `batch` or `sample`; `history` is the number of norms
    that are kept.
    """

    percentile: float
    max_norm: float | None
    mode: str
    history: int


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some epochs of training on some layers; every other layer is frozen and in eval mode.

    `layers` may be empty if the objective trains parameters beside the model; otherwise a stage
    without layers trains nothing. `optimizer` is a name in `optimizers.OPTIMIZERS`; each stage
    begins with a new optimizer (our choice). Only "sgd" has a `momentum`. `passes` is the largest
    number of gradients that a step computes; the server checks the clients' figures against it.
    `max_steps` ends the stage after that many steps (0: no limit). `batches` is the number of
    batches in an epoch; a client with fewer batches uses its own again (0: as many as it has). A
    batch of fewer than `least` samples is skipped.
    """

    layers: Slice
    epochs: NonNegative
    lr: AtLeastZero
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox_mu: float = 0.0
    clip: Clip | None = None
    passes: int = 1
    max_steps: int = 0
    batches: int = 0
    least: int = 1


@learned
class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client receives, trains and sends back; slices are tuples of layer names.

    A client keeps what it has trained and does not upload. It also keeps the layers in `also_keep`,
    although they are uploaded. `receives` and `sends` name additional arrays (float32), with their
    shapes, that travel down and up. Such a name contains a "/"; names of a model's entries do not.
    A plan with a `channel` is run on a model of the trained layers alone, at the same time as the
    other plans of its message. An `unpersonalized` plan has lost its stages, and does not score the
    model that predicts. A `newcomer` has never trained; its stages may be run `as_in_round`.
    """

    round: int
    download: Slice
    stages: tuple[Stage, ...]
    upload: Slice
    also_keep: Slice = ()
    receives: dict[str, tuple[int, ...]] = {}
    sends: dict[str, tuple[int, ...]] = {}
    channel: Channel | None = None
    unpersonalized: bool = False
    newcomer: bool = False
    as_in_round: bool = False

    def without_stages(self) -> "Plan":
        """Return the plan of an evaluation in which the client does not personalize."""
        return msgspec.structs.replace(self, stages=(), unpersonalized=bool(self.stages))

    def down(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of all arrays that travel to the client, in order."""
        return (*layout.shared(self.download), *self.receives)

    def up(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of all arrays that travel to the server, in order."""
        return (*layout.shared(self.upload), *self.sends)
