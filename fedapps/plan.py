"""A plan: what one client does in one round, as data that travels in a Flower message."""

import msgspec

from fedapps.layers import Layout, Slice


class Clip(msgspec.Struct, frozen=True, kw_only=True):
    """Clipping of a stage: threshold = min(percentile of the last norms, `max_norm`).

    `max_norm` None means no limit; `mode` is `batch` or `sample`; `history` counts norms.
    """

    percentile: float
    max_norm: float | None
    mode: str
    history: int


class Stage(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Some epochs of SGD on some layers; every other layer is frozen and in eval mode.

    `max_steps` ends the stage early, after so many steps (0: no limit).
    """

    layers: Slice
    epochs: int
    lr: float
    momentum: float = 0.0
    weight_decay: float = 0.0
    prox_mu: float = 0.0
    clip: Clip | None = None
    max_steps: int = 0


class Plan(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client receives, trains and sends back; slices are tuples of layer names.

    A client keeps what it trained and did not upload, and of what it uploaded the slice `keep`.
    `receives` and `sends` name further arrays (float32) that travel down and up, with their
    shapes; a name has a "/", which no entry of a model has.
    """

    round: int
    download: Slice
    stages: tuple[Stage, ...]
    upload: Slice
    keep: Slice = ()
    receives: dict[str, tuple[int, ...]] = {}
    sends: dict[str, tuple[int, ...]] = {}

    def down(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of all arrays that travel to the client, in order."""
        return (*layout.shared(self.download), *self.receives)

    def up(self, layout: Layout) -> tuple[str, ...]:
        """Return the names of all arrays that travel to the server, in order."""
        return (*layout.shared(self.upload), *self.sends)
