"""A client's side of a secure sum.

Each step may run in another process, so the client keeps the secrets of a round in a file that
nobody else can read. A step takes the file away before it does anything else, and leaves one that
only the next step accepts. So no step is done twice with the same secrets, whatever a server asks:
no mask hides two vectors, and nobody gets both shares of one client. The last step leaves nothing.
"""

import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from fedapps.core.files import write_whole
from fedapps.secure.keys import (
    Box,
    Key,
    PublicKeys,
    agreed,
    box_purpose,
    new_secret,
    opened,
    private,
    public,
    seal,
)
from fedapps.secure.masks import WORD, add_masks, encoded
from fedapps.secure.shamir import SHARE, split

FILE = "secure-sum.bin"
FEWEST = 3  # clients in a sum: of two, each could compute what the other has uploaded
STEPS = ("keys", "shares", "unmask")  # besides the upload, with which a client answers training
Noise = Callable[[int, int], np.ndarray]  # of t, and of the number of entries: int64 [entries]


def least(count: int) -> int:
    """Return t, how many of so many clients must stay to the end: a third of them may not."""
    return max(count - count // 3, FEWEST)


class Secrets(msgspec.Struct, kw_only=True):
    """What a client keeps between two steps of a round; `due` is the step that comes next.

    `secrets` are the private keys and the seed of the self mask, while they are needed. `peers` are
    the clients of the round with their keys for masks. `keys` opens `boxes`, which others sealed.
    """

    client: int
    round: int
    due: str
    secrets: list[Key] = []
    peers: dict[int, Key] = {}
    keys: dict[int, Key] = {}
    boxes: dict[int, Box] = {}


class SumClient:
    """What a client does in a round of secure sums; all methods raise ValueError for a bad request.

    `folder` exists, and nobody but this client's user can enter it.
    """

    def __init__(self, folder: Path, client: int, round_: int) -> None:
        self.path, self.client, self.round = folder / FILE, client, round_

    def answer(self, step: str, request: bytes) -> bytes:
        """Do one of the `STEPS`; request and answer are as the step's method says, in msgpack."""
        if step not in STEPS:
            raise ValueError(f"{step}: no step of a secure sum; these are {', '.join(STEPS)}")
        answer: bytes = getattr(self, f"_{step}")(request)
        return answer

    def upload(
        self, request: bytes, arrays: Iterable[np.ndarray], weight: int, noise: Noise | None = None
    ) -> np.ndarray:
        """Return the masked vector of an update; the request holds `boxes` by sender.

        If there is `noise`, it is added to all entries but the weight.
        """
        kept = self._take("upload")
        boxes = msgspec.msgpack.decode(request, type=dict[int, Box])
        if not kept.peers.keys() >= boxes.keys() >= {self.client}:
            raise ValueError("boxes of clients that are not in the round")
        self._check_count("clients that have shared their secrets", len(boxes), len(kept.peers))
        own, self_seed = private(kept.secrets[0]), kept.secrets[1]
        plus, minus = [self_seed], list[bytes]()
        for other in boxes.keys() - {self.client}:
            signed = plus if self.client < other else minus
            signed += agreed(own, kept.peers[other], "mask")
        vector = encoded(arrays, weight)
        if noise:
            vector[1:] += noise(least(len(kept.peers)), len(vector) - 1).view(WORD)
        add_masks(vector, plus, minus)
        self._keep("unmask", peers=kept.peers, keys=kept.keys, boxes=boxes)
        return vector

    # The steps of STEPS ---------------------------------------------------------------------

    def _keys(self, request: bytes) -> bytes:
        """Make new secrets; the request is empty, and the answer the public keys."""
        for left in self.path.parent.glob(f".{FILE}.*.tmp"):  # of a step that was killed
            left.unlink(missing_ok=True)
        secrets = [new_secret() for _ in range(3)]  # of the boxes, the masks, and the self mask
        self._keep("shares", secrets=secrets)
        return msgspec.msgpack.encode(PublicKeys(public(secrets[0]), public(secrets[1])))

    def _shares(self, request: bytes) -> bytes:
        """Share the secrets; the request holds public keys by client, the answer boxes."""
        kept = self._take("shares")
        roster = msgspec.msgpack.decode(request, type=dict[int, PublicKeys])
        box_key, mask_key, self_seed = kept.secrets
        if roster.get(self.client) != PublicKeys(public(box_key), public(mask_key)):
            raise ValueError("the round has not this client's keys")
        self._check_count("clients", len(roster), len(roster))
        count, own = len(roster), private(box_key)
        shares = [split(secret, least(count), count) for secret in (self_seed, mask_key)]
        keys, boxes = {}, {}
        for place, other in enumerate(sorted(roster)):
            to, back = box_purpose(self.client, other), box_purpose(other, self.client)
            key, keys[other] = agreed(own, roster[other].box, to, back)
            boxes[other] = seal(key, shares[0][place] + shares[1][place])
        peers = {other: both.mask for other, both in roster.items()}
        self._keep("upload", secrets=[mask_key, self_seed], peers=peers, keys=keys)
        return msgspec.msgpack.encode(boxes)

    def _unmask(self, request: bytes) -> bytes:
        """Give a share for each client: of its self mask if it is in the request, or of its key.

        The request lists the clients that have uploaded; shares that cannot be read are left out.
        """
        kept = self._take("unmask")
        uploaded = {*msgspec.msgpack.decode(request, type=list[int])}
        if not kept.boxes.keys() >= uploaded >= {self.client}:
            raise ValueError("clients that have not shared their secrets")
        self._check_count("clients in the sum", len(uploaded), len(kept.peers))
        shares = {}
        for other, box in kept.boxes.items():
            if (both := opened(kept.keys[other], box)) is not None:
                shares[other] = both[:SHARE] if other in uploaded else both[SHARE:]
        with suppress(OSError):  # it holds more than the secrets
            self.path.parent.rmdir()
        return msgspec.msgpack.encode(shares)

    # The file -------------------------------------------------------------------------------

    def _check_count(self, what: str, count: int, of: int) -> None:
        if count < least(of):
            raise ValueError(f"{count} {what}: must be {least(of)} or more")

    def _take(self, step: str) -> Secrets:
        """Take the secrets away from all other steps; raises ValueError if another one is due."""
        mine = self.path.with_name(f".{FILE}.{os.getpid()}.tmp")
        try:
            self.path.replace(mine)
        except FileNotFoundError:
            raise ValueError("this client has no secrets for a secure sum") from None
        try:
            kept = msgspec.msgpack.decode(mine.read_bytes(), type=Secrets)
        finally:
            mine.unlink()
        if (kept.client, kept.round, kept.due) != (self.client, self.round, step):
            told = f"client {kept.client}, round {kept.round}: {kept.due} is due"
            raise ValueError(f"{told}, not {step}")
        return kept

    def _keep(self, due: str, **what: object) -> None:
        kept = Secrets(client=self.client, round=self.round, due=due, **what)  # type: ignore
        write_whole(self.path, msgspec.msgpack.encode(kept))
