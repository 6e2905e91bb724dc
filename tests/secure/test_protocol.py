"""Secure sums without a run: shares, masks, and what clients refuse, whatever a server asks."""

import os
import signal
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from random import Random

import msgspec
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20

from fedapps.secure import keys, masks, shamir
from fedapps.secure.client import FILE, SumClient, least
from fedapps.secure.server import SumServer

SHAPES = {"a.w": (2, 3), "a.b": (2,), "c": ()}


def pack(what):
    return msgspec.msgpack.encode(what)


def unpack(what):
    return msgspec.msgpack.decode(what, type=dict[int, bytes])


class Round:
    """A round of clients 10, 11, ... with files in `folder`; a test does some of its steps."""

    def __init__(self, folder, count, round_=1):
        self.clients = {}
        for client in range(10, 10 + count):
            own = folder / str(client)
            own.mkdir(exist_ok=True)
            self.clients[client] = SumClient(own, client, round_)
        self.server = SumServer()
        draws = np.random.default_rng(count)
        self.arrays = {
            client: [draws.normal(0, 3, shape).astype(np.float32) for shape in SHAPES.values()]
            for client in self.clients
        }
        self.weights = {client: 5 * client for client in self.clients}

    def ask(self, step, requests, gone=()):
        """Ask the clients that are still there."""
        return {
            client: self.clients[client].answer(step, given)
            for client, given in requests.items()
            if client not in gone
        }

    def keys(self, gone=()):
        return self.server.keys(self.ask("keys", dict.fromkeys(self.clients, b""), gone))

    def boxes(self, gone=()):
        return self.server.shares(self.ask("shares", self.keys(), gone))

    def upload(self, client, boxes):
        return self.clients[client].upload(boxes, self.arrays[client], self.weights[client])

    def uploaded(self, gone=()):
        """Do all steps up to the upload; return the vectors that the server has got."""
        boxes = self.boxes()
        sent = {c: self.upload(c, given) for c, given in boxes.items() if c not in gone}
        for client, vector in sent.items():
            self.server.add(client, vector)
        return sent

    def plain(self, clients):
        """Return the sum of these clients' vectors: exact numbers, rounded to 2^-24."""
        total = [sum(self.weights[client] for client in clients)]
        for index in range(len(SHAPES)):
            per_client = [self.arrays[client][index].ravel().tolist() for client in clients]
            weights = [self.weights[client] for client in clients]
            total += [
                sum(round(Fraction(v) * n * 2**24) for v, n in zip(values, weights, strict=True))
                for values in zip(*per_client, strict=True)
            ]
        return total


# Shares -------------------------------------------------------------------------------------


def test_any_shares_that_are_enough_give_the_secret():
    secret = keys.new_secret()
    shares = shamir.split(secret, 3, 5)
    for size in (3, 4, 5):
        for places in combinations(range(1, 6), size):
            factors = shamir.weights(places)
            assert shamir.combine(factors, [shares[place - 1] for place in places]) == secret


def test_fewer_shares_fit_every_secret():
    """For any other secret, there is a third share that makes two given ones those of it."""
    given, other = shamir.split(keys.new_secret(), 3, 5)[:2], keys.new_secret()
    factors = shamir.weights([1, 2, 3])
    known = sum(f * int.from_bytes(s) for f, s in zip(factors[:2], given, strict=True))
    third = (int.from_bytes(other) - known) * pow(factors[2], -1, shamir.PRIME) % shamir.PRIME
    assert shamir.combine(factors, [*given, third.to_bytes(shamir.SHARE)]) == other


def test_shares_are_random_and_false_ones_are_found():
    secret = bytes(32)
    first, second = shamir.split(secret, 2, 3), shamir.split(secret, 2, 3)
    assert first != second
    with pytest.raises(ValueError, match="do not fit together"):
        shamir.combine(shamir.weights([1, 2]), [first[0], second[1]])
    assert pow(3, shamir.PRIME - 1, shamir.PRIME) == 1


# Masks --------------------------------------------------------------------------------------


def test_a_mask_is_the_key_stream_over_the_whole_vector():
    """Longer than a part, and not a multiple of it: here in one piece."""
    size, first, second = 2 * masks.PART + 17, keys.new_secret(), keys.new_secret()
    vector = np.random.default_rng(0).integers(0, 2**64, size, dtype=np.uint64)
    expected = vector.tolist()
    for key, sign in ((first, 1), (second, -1)):
        stream = Cipher(ChaCha20(key, bytes(16)), None).encryptor().update(bytes(8 * size))
        mask = [sign * int.from_bytes(stream[i : i + 8], "little") for i in range(0, 8 * size, 8)]
        expected = [(e + m) % 2**64 for e, m in zip(expected, mask, strict=True)]
    masks.add_masks(vector, [first], [second])
    assert vector.tolist() == expected


def test_fixed_point_keeps_float32_and_its_largest_values():
    values = np.array([0.1, -1.0, 1e6, -1e6, 2.0**-24, 0.0], np.float32)
    vector = masks.encoded([values], 3)
    exact = [round(Fraction(v) * 3 * 2**24) for v in values.tolist()]
    assert vector.view(np.int64).tolist() == [3, *exact]
    mean, weight = masks.decoded(vector, {"x": values.shape})
    assert weight == 3 and (mean["x"] == values).all() and mean["x"].dtype == np.float32
    assert masks.decoded(masks.encoded([values], 0), {"x": values.shape}) == ({}, 0)
    assert masks.length(SHAPES.values()) == 1 + 6 + 2 + 1


# Rounds -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "gone", "silent"),
    [(3, 0, 0), (4, 1, 0), (4, 0, 1), (7, 2, 0), (7, 1, 1), (20, 6, 0), (20, 0, 6), (20, 2, 4)],
)
def test_the_sum_is_that_of_the_uploads_up_to_a_third_of_dropouts(tmp_path, count, gone, silent):
    """Some clients are gone after the shares, others after their upload, and still count."""
    round_ = Round(tmp_path, count)
    drawn = Random(count).sample(sorted(round_.clients), gone + silent)
    sent = round_.uploaded(drawn[:gone])
    there = sorted(round_.clients.keys() - drawn[:gone])
    answers = round_.ask("unmask", round_.server.uploads(), drawn)
    total = round_.server.unmask(answers)
    assert total.view(np.int64).tolist() == round_.plain(there)
    assert round_.server.failures == []
    for client, vector in sent.items():  # alone, no vector says anything
        assert not {*vector.tolist()} & {*masks.encoded(round_.arrays[client], 1).tolist()}
    left = [client for client, own in round_.clients.items() if own.path.exists()]
    assert left == sorted(drawn), "secrets are deleted at the unmasking"
    assert all(not own.path.parent.exists() for c, own in round_.clients.items() if c not in drawn)


def test_clients_that_are_gone_early_are_not_in_the_sum(tmp_path):
    round_ = Round(tmp_path, 6)
    requests = round_.keys(gone=[15])
    boxes = round_.server.shares(round_.ask("shares", requests, [10]))
    assert {*boxes} == {11, 12, 13, 14}
    for client, given in boxes.items():
        round_.server.add(client, round_.upload(client, given))
    total = round_.server.unmask(round_.ask("unmask", round_.server.uploads()))
    assert total.view(np.int64).tolist() == round_.plain([11, 12, 13, 14])


def test_more_than_a_third_may_not_be_gone(tmp_path):
    round_ = Round(tmp_path, 7)
    round_.uploaded(gone=[10])
    answers = round_.ask("unmask", round_.server.uploads(), gone=[11, 12])
    with pytest.raises(ValueError, match=r"^4 clients are left, and it needs 5$"):
        round_.server.unmask(answers)
    assert [least(count) for count in (1, 3, 4, 6, 20, 21)] == [3, 3, 3, 4, 14, 14]


def test_each_round_has_other_masks(tmp_path):
    """Also when a round is repeated: the same update looks different."""
    vectors = []
    for _ in range(2):
        round_ = Round(tmp_path, 3)
        vectors.append(round_.uploaded()[10])
    assert not {*vectors[0].tolist()} & {*vectors[1].tolist()}


# A server that lies -------------------------------------------------------------------------


def test_no_client_gives_both_shares_of_another(tmp_path):
    """Not in one request, which only says who has uploaded; and there is no second request."""
    round_ = Round(tmp_path, 6)
    round_.uploaded()
    everyone = sorted(round_.clients)
    client, request = round_.clients[10], pack(everyone)
    given = unpack(client.answer("unmask", request))
    assert {*given} == {*everyone} and {len(share) for share in given.values()} == {shamir.SHARE}
    for again in (request, pack(everyone[:-1])):
        with pytest.raises(ValueError, match="no secrets"):
            client.answer("unmask", again)


def test_a_server_that_tells_clients_different_lists_gets_the_sum_of_three_of_six(tmp_path):
    """As docs/security.md says: each list has t = 4 clients, but all have only three in common."""
    round_ = Round(tmp_path, 6)
    sent, wanted = round_.uploaded(), [10, 11, 14]
    further = {10: 15, 11: 13, 12: 12, 13: 13, 14: 12, 15: 15}
    lists = {client: sorted({*wanted, more}) for client, more in further.items()}
    given = {c: unpack(round_.clients[c].answer("unmask", pack(lists[c]))) for c in lists}

    def secret(of, has_uploaded):
        givers = [c for c, told in lists.items() if (of in told) == has_uploaded][:4]
        factors = shamir.weights([giver - 9 for giver in givers])
        return shamir.combine(factors, [given[giver][of] for giver in givers])

    total, plus = sum(sent[client] for client in wanted), []
    minus = [secret(client, True) for client in wanted]
    for other in lists.keys() - {*wanted}:
        key = keys.private(secret(other, False))
        for client in wanted:
            left = keys.agreed(key, round_.server.roster[client].mask, "mask")
            (minus if client < other else plus).extend(left)
    masks.add_masks(total, plus, minus)
    assert total.tolist() == [value % 2**64 for value in round_.plain(wanted)]


def test_a_share_is_of_the_seed_or_of_the_key(tmp_path):
    """What all clients give for client 15 is its seed if it has uploaded, else its key."""
    for gone in ([], [15]):
        round_ = Round(tmp_path, 6)
        boxes = round_.boxes()
        mask_key, self_seed = msgspec.msgpack.decode(round_.clients[15].path.read_bytes())[
            "secrets"
        ]
        for client in boxes.keys() - gone:
            round_.server.add(client, round_.upload(client, boxes[client]))
        given = round_.ask("unmask", round_.server.uploads())
        places = [1, 2, 3, 4]
        shares = [unpack(given[9 + place])[15] for place in places]
        secret = shamir.combine(shamir.weights(places), shares)
        assert secret == (mask_key if gone else self_seed)


REQUESTS = {
    "not of the round": [10, 11, 12, 13, 14, 15, 99],
    "without itself": [11, 12, 13, 14, 15],
    "too few": [10, 11, 12],
    "not a list": {10: 1},
    "of texts": ["10"],
}


@pytest.mark.parametrize("request_", REQUESTS.values(), ids=REQUESTS)
def test_a_request_to_unmask_that_is_not_right_is_refused_and_ends_the_round(tmp_path, request_):
    round_ = Round(tmp_path, 6)
    round_.uploaded()
    client = round_.clients[10]
    with pytest.raises(ValueError):
        client.answer("unmask", pack(request_))
    with pytest.raises(ValueError, match="no secrets"):
        client.answer("unmask", pack(sorted(round_.clients)))


def test_steps_are_done_once_and_in_order(tmp_path):
    round_ = Round(tmp_path, 4)
    requests, client = round_.keys(), round_.clients[10]
    with pytest.raises(ValueError, match="shares is due, not unmask"):
        client.answer("unmask", pack([10, 11, 12]))
    with pytest.raises(ValueError, match="no secrets"):  # they are gone now
        client.answer("shares", requests[10])
    round_ = Round(tmp_path, 4)
    boxes = round_.boxes()
    client = round_.clients[10]
    first = round_.upload(10, boxes[10])
    with pytest.raises(ValueError, match="unmask is due, not upload"):
        round_.upload(10, boxes[10])
    assert len(first) == 10 and not client.path.exists()
    with pytest.raises(ValueError, match="no step of a secure sum"):
        client.answer("take", b"")


def test_what_a_killed_step_leaves_is_removed_in_the_next_round(tmp_path, monkeypatch):
    first = Round(tmp_path, 3)
    requests = first.keys()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: os.kill(os.getpid(), signal.SIGKILL))
        for client, own in first.clients.items():
            if not (child := os.fork()):
                try:
                    own.answer("shares", requests[client])
                finally:
                    os._exit(1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert len([*tmp_path.rglob(f".{FILE}.*.tmp")]) == 3
    Round(tmp_path, 3, round_=2).keys()
    assert [*tmp_path.rglob("*.tmp")] == [] and len([*tmp_path.rglob(FILE)]) == 3


def test_secrets_are_of_one_round_and_one_client(tmp_path):
    requests = Round(tmp_path, 4).keys()
    later = Round(tmp_path, 4, round_=2).clients[10]
    with pytest.raises(ValueError, match=r"client 10, round 1: shares is due"):
        later.answer("shares", requests[10])
    (tmp_path / "11" / FILE).replace(tmp_path / "10" / FILE)
    with pytest.raises(ValueError, match=r"client 11, round 1: shares is due"):
        Round(tmp_path, 4).clients[10].answer("shares", requests[10])


def test_a_set_that_is_too_small_or_lacks_the_client_is_refused(tmp_path):
    for names, why in (((10, 11), "2 clients: must be 3 or more"), ((11, 12, 13), "keys")):
        round_ = Round(tmp_path, 4)
        round_.keys()
        roster = {client: round_.server.roster[client] for client in names}
        with pytest.raises(ValueError, match=why):
            round_.clients[10].answer("shares", pack(roster))


def test_boxes_of_too_few_clients_are_refused(tmp_path):
    for left, why in ((range(10, 13), "must be 4 or more"), ((10, 11, 12, 99), "not in the round")):
        round_ = Round(tmp_path, 6)
        boxes = unpack(round_.boxes()[10])
        some = {client: boxes.get(client, boxes[10]) for client in left}
        with pytest.raises(ValueError, match=why):
            round_.upload(10, pack(some))


# Clients that lie ---------------------------------------------------------------------------


def test_broken_answers_are_failures_of_their_clients(tmp_path):
    round_ = Round(tmp_path, 6)
    answers = round_.ask("keys", dict.fromkeys(round_.clients, b""))
    nested = b"\x83" + answers[10][1:] + b"\xa1x" + b"\x91" * 10**5 + b"\x90"
    answers[10] = b"\xc1"
    answers[11] = pack({"box": bytes(31), "mask": bytes(32)})
    answers[12] = pack({"box": bytes(32), "mask": bytes(32)})  # no key that agrees on anything
    assert {*round_.server.keys(answers)} == {13, 14, 15}
    assert [failure.client for failure in round_.server.failures] == [10, 11, 12]
    assert round_.ask("keys", {10: b""}) and round_.server.keys({10: nested}) == {}
    assert [failure.client for failure in round_.server.failures] == [10]
    boxes = {client: {14: bytes(148), 15: bytes(148)} for client in (13, 14)}
    boxes |= {15: dict.fromkeys((13, 14, 15), bytes(147))}
    assert round_.server.shares({c: pack(those) for c, those in boxes.items()}) == {}
    assert [failure.client for failure in round_.server.failures] == [13, 14, 15]
    assert "not for the clients of the round" in round_.server.failures[0].cause


def test_false_shares_and_boxes_do_not_pass(tmp_path):
    round_ = Round(tmp_path, 6)
    boxes = {client: unpack(given) for client, given in round_.boxes().items()}
    boxes[11][10] = bytes(148)  # client 10 has sent something else than a box to client 11
    for client, given in boxes.items():
        if client != 15:
            round_.server.add(client, round_.upload(client, pack(given)))
    answers = round_.ask("unmask", round_.server.uploads())
    assert {*unpack(answers[11])} == {11, 12, 13, 14, 15}
    expected = round_.plain([10, 11, 12, 13, 14])
    false = unpack(answers[12])
    false[15] = bytes(66)
    lying = answers | {12: pack(false)}
    with pytest.raises(ValueError, match=r"false shares of the key of client 15|do not fit"):
        round_.server.unmask(lying)
    with pytest.raises(ValueError, match="3 shares of client 10, and it needs 4"):
        round_.server.unmask({c: a for c, a in answers.items() if c != 14})
    assert round_.server.unmask(answers).view(np.int64).tolist() == expected
