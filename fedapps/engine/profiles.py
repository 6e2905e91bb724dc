"""What the clients' devices can do: speeds and availability, from the file that `devices` names.

[[device]]
name = "phone"
macs = 5e9          # multiply-accumulates per second
down = 2.5e6        # bytes per second to the device
up = 6e5            # bytes per second from it
spread = 0.5        # each client's three speeds are these times exp(spread * z), z ~ N(0, 1) [0]
availability = 0.8  # probability that a client is there in a round [1]
share = 3           # how often clients have it, compared with other devices [1]
clients = "0,4-7"   # or the clients that have it

[server]
macs = 1e12         # of the server's own training [inf]
"""

import hashlib
import math
import tomllib
from dataclasses import dataclass

import msgspec
import numpy as np

from fedapps.core.draws import generator
from fedapps.core.errors import RunError
from fedapps.core.paths import absolute
from fedapps.core.schema import AtLeastZero, Positive, Share
from fedapps.core.words import span


class Device(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of device; with a `spread`, its speeds are medians over the clients that have it."""

    name: str
    macs: Positive
    down: Positive
    up: Positive
    spread: AtLeastZero = 0.0
    availability: Share = 1.0
    share: Positive = 1.0
    clients: str = ""


class Server(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The server's speed in multiply-accumulates per second."""

    macs: Positive = math.inf


class Devices(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of a file of devices."""

    device: tuple[Device, ...]
    server: Server = Server()


_GPU = 1.25e8  # bytes per second: a network of 1 Gbit/s
NAMED = {
    # phones over the mobile network: 20 Mbit/s down and 5 Mbit/s up
    "lognormal": Devices(
        device=(Device(name="phone", macs=5e9, down=2.5e6, up=6.25e5, spread=1.0),)
    ),
    # A desktop without a GPU beside three with one. A quarter of the peak of 32-bit arithmetic
    # that the makers state: an i7-8700 then takes about 600 s for five epochs of VGG16 on 12,500
    # images of 32 x 32.
    "desktops": Devices(
        device=(
            Device(name="i7-8700", macs=1.0e11, down=_GPU, up=_GPU, clients="0"),
            Device(name="gtx-1080", macs=1.1e12, down=_GPU, up=_GPU, clients="1"),
            Device(name="gtx-1660-ti", macs=6.8e11, down=_GPU, up=_GPU, clients="2"),
            Device(name="rtx-2080-ti", macs=1.7e12, down=_GPU, up=_GPU, clients="3"),
        ),
        server=Server(macs=1.7e12),
    ),
}


@dataclass(frozen=True)
class Profiles:
    """The devices of all clients, as arrays [clients].

    `macs` is in multiply-accumulates per second, `down` and `up` in bytes per second,
    `availability` a probability. `server` is the server's `macs`, and `digest` a checksum of what
    `devices` names, uint8 [32].
    """

    macs: np.ndarray
    down: np.ndarray
    up: np.ndarray
    availability: np.ndarray
    server: float
    digest: np.ndarray

    def seconds(self, client: int, macs: int, down: int, up: int) -> float:
        """Return the seconds that a client downloads, computes and uploads, one after another."""
        parts = (down / self.down[client], macs / self.macs[client], up / self.up[client])
        return float(parts[0] + parts[1] + parts[2])


def read(text: str, num_clients: int, seed: int) -> Profiles:
    """Return what the key `devices` names, for each client; raises `RunError`.

    Clients that no device names are drawn by `share`. The first clients have the same devices
    however many there are.
    """
    found = NAMED.get(text) or _read(text)
    kinds = found.device
    of = np.full(num_clients, -1)
    for number, kind in enumerate(kinds):
        for client in _clients(text, kind):
            if client < num_clients:  # a file can name more clients than a run has
                of[client] = number
    free = [number for number, kind in enumerate(kinds) if not kind.clients]
    if not free and (of < 0).any():
        missing = int(np.flatnonzero(of < 0)[0])
        cure = "add one without `clients`"
        if text in NAMED:
            cure = f"it has those of {len(kinds)} clients: set num-clients, or write a file"
        raise _wrong(text, f"no device is for client {missing}; {cure}")
    if free:
        shares = np.cumsum([kinds[number].share for number in free])
        draws = generator(seed, "device").random(num_clients) * shares[-1]
        drawn = np.array(free)[np.searchsorted(shares[:-1], draws, side="right")]
        of = np.where(of < 0, drawn, of)
    spread = np.array([kind.spread for kind in kinds])[of]
    noise = generator(seed, "device-speed").standard_normal((num_clients, 3))
    factors = np.exp(spread[:, None] * noise).T

    def speeds(name: str, factor: np.ndarray) -> np.ndarray:
        return np.array([getattr(kind, name) for kind in kinds])[of] * factor

    return Profiles(
        macs=speeds("macs", factors[0]),
        down=speeds("down", factors[1]),
        up=speeds("up", factors[2]),
        availability=speeds("availability", np.ones(num_clients)),
        server=found.server.macs,
        digest=np.frombuffer(hashlib.sha256(repr(found).encode()).digest(), np.uint8),
    )


def _read(text: str) -> Devices:
    if "/" not in text and not text.startswith("~"):
        raise _wrong(text, f"must be {', '.join(NAMED)}, or the path of a .toml file")
    path = absolute(text, "devices")
    try:
        found = msgspec.convert(tomllib.loads(path.read_text("utf-8")), Devices)
    except OSError as error:
        raise _wrong(text, error.strerror or str(error)) from error
    except ValueError as error:  # not TOML, not UTF-8, or other keys or values
        raise _wrong(text, str(error).replace("`", "")) from error
    if not found.device:
        raise _wrong(text, "must have a table [[device]]")
    return found


def _clients(text: str, kind: Device) -> list[int]:
    try:
        return [client for word in kind.clients.split(",") if word for client in span(word)]
    except ValueError:
        why = f'{kind.name}: clients = "{kind.clients}": must be clients, such as 3,7-9'
        raise _wrong(text, why) from None


def _wrong(text: str, why: str) -> RunError:
    return RunError(f'devices = "{text}": {why}')
