"""Where clients of split learning find the server: the part of a plan that only they have."""

import msgspec


class Channel(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Where and how a client of split learning reaches the server in one round.

    `token` is valid for one join. `certificate` is the certificate of the server's CA (PEM; empty:
    no TLS). `limit` is the largest number of bytes of tensors in a frame. `join` is how many
    seconds to wait for a connection, and `wait` how many for an answer. With `relay`, the client's
    layers travel through the channel too. The server expects at most so many `batches` in an epoch
    (0: no limit).
    """

    address: str
    token: str = ""
    certificate: str = ""
    limit: int = 0
    join: float = 0.0
    wait: float = 60.0
    relay: bool = False
    batches: int = 0
