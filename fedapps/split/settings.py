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
        bool, doc("a client with fewer batches repeats its own until all have equally many")
    ]
    oversample_limit: Annotated[
        Count,
        doc("most batches of a device under oversample, as a multiple of the median (device)"),
    ]
