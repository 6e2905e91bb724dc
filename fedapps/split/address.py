"""The address of the channel of split learning, and the certificate of its server."""

from pathlib import Path

from fedapps.core.errors import RunError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")


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


def is_loopback(address: str) -> bool:
    """Tell whether an address (host:port) is on this machine, so that no data leaves it."""
    return address.rpartition(":")[0] in LOOPBACK
