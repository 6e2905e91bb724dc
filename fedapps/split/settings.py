"""Keys that several methods of split learning have."""

from typing import Annotated

from msgspec import Meta

from fedapps.core.schema import Count, MethodSettings, doc

Cut = Annotated[
    int, Meta(ge=0), doc("layers on the client; 0: 4, or half the layers if these are fewer")
]


class OversampleSettings(MethodSettings, frozen=True):
    """The keys of methods in which clients train at the same time."""

    oversample: Annotated[
        bool, doc("a client with fewer batches takes its own again until all have as many")
    ]
    oversample_limit: Annotated[
        Count,
        doc("devices' batches under oversample, at most so many times their median (device)"),
    ]
