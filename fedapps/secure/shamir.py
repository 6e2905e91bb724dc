"""Shamir's secret sharing: a number of shares gives the secret, and fewer say nothing about it.

Shamir, How to Share a Secret, CACM 1979. A secret is the value at 0 of a random polynomial over the
integers modulo 2^521 - 1, and a share is its value at the share's place 1, 2, ... (pycryptodome,
which comes with Flower, has the same in GF(2^128), but takes 200 times as long to combine shares:
for a round of 20 clients, longer than it takes to train them.)
"""

import secrets
from collections.abc import Iterable, Sequence

PRIME = 2**521 - 1
SECRET, SHARE = 32, 66  # bytes


def split(secret: bytes, least: int, count: int) -> list[bytes]:
    """Return `count` shares of a secret of 32 bytes; any `least` of them give it."""
    polynomial = [secrets.randbelow(PRIME) for _ in range(least - 1)]
    polynomial.append(int.from_bytes(secret, "big"))
    shares = []
    for place in range(1, count + 1):
        value = 0
        for coefficient in polynomial:
            value = (value * place + coefficient) % PRIME
        shares.append(value.to_bytes(SHARE, "big"))
    return shares


def weights(places: Sequence[int]) -> list[int]:
    """Return the factors with which the shares of these places add up to the secret."""
    found = []
    for own in places:
        above, below = 1, 1
        for other in places:
            if other != own:
                above, below = above * other % PRIME, below * (other - own) % PRIME
        found.append(above * pow(below, -1, PRIME) % PRIME)
    return found


def combine(factors: Iterable[int], shares: Iterable[bytes]) -> bytes:
    """Return the secret, given the factors of the shares' places (`weights`).

    Raises ValueError if the shares are not of one secret, as far as that can be seen.
    """
    parts = zip(factors, shares, strict=True)
    secret = sum(factor * int.from_bytes(share, "big") for factor, share in parts) % PRIME
    if secret >= 256**SECRET:
        raise ValueError("shares that do not fit together")
    return secret.to_bytes(SECRET, "big")
