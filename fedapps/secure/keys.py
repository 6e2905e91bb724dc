"""Keys of a round: what two clients agree on, and boxes that only the receiver can open."""

import os
from typing import Annotated

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from msgspec import Meta

from fedapps.secure.shamir import SHARE

KEY = 32  # bytes
NONCE = bytes(12)  # the same for all, because a key encrypts a single box
Key = Annotated[bytes, Meta(min_length=KEY, max_length=KEY)]
Share = Annotated[bytes, Meta(min_length=SHARE, max_length=SHARE)]
Box = Annotated[bytes, Meta(min_length=2 * SHARE + 16, max_length=2 * SHARE + 16)]


class PublicKeys(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A client's public keys of a round: for the boxes sent to it, and for its masks."""

    box: Key
    mask: Key


def new_secret() -> bytes:
    """Return a private key, or the seed of a mask, from the operating system's entropy."""
    return os.urandom(KEY)


def private(secret: bytes) -> X25519PrivateKey:
    """Return a private key from its bytes."""
    return X25519PrivateKey.from_private_bytes(secret)


def public(secret: bytes) -> bytes:
    """Return the public key of a private one."""
    return private(secret).public_key().public_bytes_raw()


def agreed(own: X25519PrivateKey, other: bytes, *purposes: str) -> list[bytes]:
    """Return keys, one for each purpose, that only the owners of two key pairs know.

    Raises ValueError if `other` is no public key that can be used.
    """
    common = own.exchange(X25519PublicKey.from_public_bytes(other))
    return [
        HKDF(SHA256(), KEY, None, f"fedapps secure-sum {purpose}".encode()).derive(common)
        for purpose in purposes
    ]


def box_purpose(sender: int, receiver: int) -> str:
    """Return the purpose of the key of the box that a client sends to another."""
    return f"box {sender} {receiver}"


def seal(key: bytes, content: bytes) -> bytes:
    """Return the one box that a key encrypts."""
    return ChaCha20Poly1305(key).encrypt(NONCE, content, None)


def opened(key: bytes, box: bytes) -> bytes | None:
    """Return the content of a box, or None if it was not sealed with this key."""
    try:
        return ChaCha20Poly1305(key).decrypt(NONCE, box, None)
    except InvalidTag:
        return None
