"""A plan: what one client does in one round, as data that travels in a Flower message."""

import msgspec

from fedapps.models.layers import Layout, Slice
from fedapps.training.channel import Channel


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """Clipping of a stage: threshold = min(percentile of the last norms, `max_norm`).

    `max_norm` None means no limit; `mode` is `batch` or `sample`; `history` counts norms.
    """

    percentile: float
    max_norm: float | None
    mode: str
    history: int


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some epochs of training on some layers; every other layer is frozen and in eval mode.

    `layers` may be empty where the objective trains parameters beside the model; without those
    such a stage trains nothing. `optimizer` is one of `optimizers.OPTIMIZERS`, new in every stage;
    only "sgd" has a `momentum`. `passes` is how many gradients a step evaluates at most, by which
    the server judges the figures of clients. `max_steps` ends the stage early, after so many
    steps (0: no limit). `batches` is the number of batches in an epoch: a client with fewer takes
    its own again (0: as many as it has). A batch of fewer than `least` samples is skipped.
    """

    layers: Slice
    epochs: int
    lr: float
    optimizer: str = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox_mu: float = 0.0
    clip: Clip | None = None
    passes: int = 1
    max_steps: int = 0
    batches: int = 0
    least: int = 1


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client receives, trains and sends back; slices are tuples of layer names.

    A client keeps what it trained and did not upload, and what is in `also_keep` though it was
    uploaded. `receives` and `sends` name extra arrays (float32) that travel down and up, with
    their shapes; a name has a "/", which no entry of a model has. A plan with a `channel` is run on
    the trained layers alone, at the same time as the others of its message. One that is
    `unpersonalized` has lost its stages: what it scores is not what the client would predict with.
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

    def without_stages(self) -> "Plan":
        """Return the plan of an evaluation in which the client scores and does not personalize."""
        return msgspec.structs.replace(self, stages=(), unpersonalized=bool(self.stages))

    def down(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of all arrays that travel to the client, in order."""
        return (*layout.shared(self.download), *self.receives)

    def up(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of all arrays that travel to the server, in order."""
        return (*layout.shared(self.upload), *self.sends)
