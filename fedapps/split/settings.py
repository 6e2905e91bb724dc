"""Keys that several methods of split learning share."""

from typing import Annotated

from msgspec import Meta

from fedapps.core.schema import Count, MethodSettings, doc

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
