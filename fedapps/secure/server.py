"""The server's side of a secure sum: it passes on what clients tell each other, and adds up.

What clients send is checked when it arrives; a client whose answer is broken is left out, with a
reason. The server cannot see whether a vector is what a client should send, but it can see whether
the masks are gone: then the sum of the weights is that of the clients' sample counts.
"""

from collections.abc import Callable, Mapping, Sized
from typing import TypeVar

import msgspec
import numpy as np

from fedapps.core.errors import one_line
from fedapps.method.update import Failure
from fedapps.secure import shamir
from fedapps.secure.client import least
from fedapps.secure.keys import Box, PublicKeys, Share, agreed, new_secret, private, public
from fedapps.secure.masks import add_masks

Answers = Mapping[int, bytes]
T = TypeVar("T")


class TooFew(ValueError):
    """More clients are missing than may be missing from a sum."""


class SumServer:
    """One round of a secure sum; its methods are the steps, in their order.

    `failures` are the clients whose answer to the last step was broken.
    """

    def __init__(self) -> None:
        self.roster: dict[int, PublicKeys] = {}
        self.uploaded: list[int] = []
        self.failures: list[Failure] = []
        self._total: np.ndarray | None = None
        self._boxes: dict[int, dict[int, Box]] = {}

    def too_few(self, there: Sized) -> str:
        """Say why a round cannot go on with the clients that are still there; "" if it can."""
        needed = least(len(self.roster))
        if len(there) >= needed:
            return ""
        return f"{len(there)} clients are left, and it needs {needed}"

    def keys(self, answers: Answers) -> dict[int, bytes]:
        """Take the clients' public keys; return the request for their shares, by client."""
        self.roster = self._read(answers, PublicKeys, _check_keys)
        everyone = msgspec.msgpack.encode(self.roster)
        return dict.fromkeys(self.roster, everyone)

    def shares(self, answers: Answers) -> dict[int, bytes]:
        """Take the boxes that clients have sealed; return for each client those that it gets."""

        def check(sealed: dict[int, Box]) -> None:
            if sealed.keys() != self.roster.keys():
                raise ValueError("its boxes are not for the clients of the round")

        boxes = self._boxes = self._read(answers, dict[int, Box], check)
        return {
            client: msgspec.msgpack.encode({sender: boxes[sender][client] for sender in boxes})
            for client in boxes
        }

    def add(self, client: int, vector: np.ndarray) -> None:
        """Add a masked vector to the sum."""
        if self._total is None:
            self._total = np.zeros_like(vector)
        self._total += vector
        self.uploaded.append(client)

    def uploads(self) -> dict[int, bytes]:
        """Return the request to unmask, for each client that has uploaded."""
        return dict.fromkeys(self.uploaded, msgspec.msgpack.encode(self.uploaded))

    def unmask(self, answers: Answers) -> np.ndarray:
        """Take the shares that clients give; return the sum; raises `TooFew`, ValueError."""
        given = self._read(answers, dict[int, Share])
        why = self.too_few(given)
        if self._total is None or why:
            raise TooFew(why)
        needed = least(len(self.roster))
        places = {client: place for place, client in enumerate(sorted(self.roster), start=1)}
        factors: dict[tuple[int, ...], list[int]] = {}
        plus: list[bytes] = []
        minus: list[bytes] = []
        for client in self._boxes:
            some = [giver for giver, shares in given.items() if client in shares][:needed]
            if len(some) < needed:
                raise ValueError(f"{len(some)} shares of client {client}, and it needs {needed}")
            if (holders := tuple(some)) not in factors:
                factors[holders] = shamir.weights([places[giver] for giver in holders])
            secret = shamir.combine(factors[holders], [given[giver][client] for giver in holders])
            if client in self.uploaded:
                minus.append(secret)
                continue
            if public(secret) != self.roster[client].mask:
                raise ValueError(f"false shares of the key of client {client}")
            for other in self.uploaded:  # what they have added, or subtracted, is left over
                left = minus if other < client else plus
                left += agreed(private(secret), self.roster[other].mask, "mask")
        add_masks(self._total, plus, minus)
        return self._total

    def _read(
        self, answers: Answers, kind: type[T], check: Callable[[T], None] = lambda _: None
    ) -> dict[int, T]:
        """Read and check the clients' answers, in the order of the clients; others are failures."""
        self.failures, found = [], {}
        for client, answer in sorted(answers.items()):
            try:
                found[client] = msgspec.msgpack.decode(answer, type=kind)
                check(found[client])
            except (ValueError, RecursionError) as error:
                found.pop(client, None)
                cause = f"its answer is broken: {one_line(str(error))}"
                self.failures.append(Failure(client, cause))
        return found


def _check_keys(keys: PublicKeys) -> None:
    """Raise ValueError for a key with which no other client could agree on anything."""
    for key in (keys.box, keys.mask):
        agreed(private(new_secret()), key)
