"""The session of a round without a channel: what is due, floods, limits in time."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedapps.core.errors import RunError
from fedapps.split.channel import Stream, _take
from fedapps.split.frames import FRAME_HEADER_BYTES, Frame
from fedapps.split.rules import (
    LARGEST_LOSS,
    BatchGradient,
    Rules,
    Smashed,
    frame_limit,
    implausible,
)
from fedapps.split.session import Session
from tests.support.split_rounds import LONG


def rules(**changes):
    """What is due from clients 0 and 1: two epochs of two batches of up to four pairs."""
    known = {
        "shapes": {0: (2,), 1: (2,)}, "batches": {0: 2, 1: 2}, "epochs": 2, "classes": 3,
        "batch_size": 4, "dtype": torch.float32, "torch_device": torch.device("cpu"), "least": 1,
        "join_timeout": LONG, "step_timeout": LONG, "round_timeout": LONG,
    }  # fmt: skip
    return Rules(**known | changes)


def both_joined(**changes):
    """A session that clients 0 and 1 have joined."""
    session = Session(rules(**changes))
    for client in (0, 1):
        assert session.joined(client, Stream())
    return session


def pairs():
    return {"data": torch.ones(4, 2), "labels": torch.tensor([0, 1, 2, 0])}


def test_a_frame_has_room_for_the_largest_batch_that_a_client_can_have():
    """A float32 pair and its label are 16 bytes; gRPC's limits are ints of 32 bits."""
    assert frame_limit(rules(), 3) == 4 * 16
    assert frame_limit(rules(relays={"fc": (9, 2)}), 3) == 9 * 2 * 4
    assert frame_limit(rules(batch_size=10**9), 3) == 2**31 - 1 - FRAME_HEADER_BYTES
    most = (2**31 - 1 - FRAME_HEADER_BYTES) // 16
    assert frame_limit(rules(batch_size=10**9), most) // 16 == most
    assert frame_limit(rules(batch_size=most), 10**9) // 16 == most
    with pytest.raises(RunError, match="batch-size = 1000000000: the features of 134213632 samp"):
        frame_limit(rules(batch_size=10**9), most + 1)


def test_a_batch_of_a_client_that_failed_is_in_no_wave():
    session = both_joined()
    session.arrived(Frame("data", 0), pairs())
    session.arrived(Frame("failed", 0, text="for a\x1b[2J reason"), {})
    session.arrived(Frame("data", 1), pairs())
    assert [smashed.client for smashed in next(session.waves([0, 1]))] == [1]
    assert session.lost == {0: "for a?[2J reason"}  # no character that steers a terminal


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62))
def test_only_steps_that_a_client_has_are_taken(epoch, batch):
    session = both_joined()
    session.arrived(Frame("data", 0, step=(epoch, batch)), pairs())
    session.arrived(Frame("data", 1), pairs())
    next(session.waves([0, 1]))
    assert (0 in session.lost) != (0 <= epoch < 2 and 0 <= batch < 2)


def test_more_frames_than_can_be_due_are_not_kept():
    """A client that floods the server's memory while it computes; one frame at a time is due."""
    session = both_joined()
    taken = [session.arrived(Frame("data", 0), pairs()) for _ in range(50)]
    assert taken == [True] * 2 + [False] * 48
    assert session._inbox.qsize() == 2 + 2  # joins, and two frames
    session.arrived(Frame("data", 1), pairs())
    assert [smashed.client for smashed in next(session.waves([0, 1]))] == [1]
    assert session.lost == {0: "sent data out of turn"}


def test_a_round_ends_after_round_timeout_however_busy_a_client_is(clock):
    session = both_joined(step_timeout=0.375, round_timeout=0.5, epochs=1000)
    waves = session.waves([0])
    for epoch in range(1000):
        session.arrived(Frame("data", 0, step=(epoch, 0)), pairs())
        if next(waves, None) is None:
            break
        session.send({0: BatchGradient(torch.ones(4, 2), 0.0)})
        clock.move(0.125)
    assert clock.now == 0.5
    assert session.lost == {0: "sent nothing before the round's end (round-timeout)"}


def test_a_client_that_a_run_leaves_when_it_ends_is_told_so():
    """Not that it was too slow, nor that it did not join, though it had time left for both."""
    session = Session(rules())
    assert session.joined(0, Stream())
    session.abort()
    assert not list(session.waves([0, 1]))
    assert session.lost == dict.fromkeys((0, 1), "the run has ended")


def test_a_client_that_comes_too_late_is_refused():
    session = Session(rules(join_timeout=0.05, step_timeout=0.05))
    assert session.joined(1, Stream())
    assert not list(session.waves([0, 1]))
    assert session.token(0) is None
    assert not session.joined(0, Stream())
    session.close()
    assert not session.joined(1, Stream())


@pytest.mark.parametrize(
    "frames",
    [
        ["join", "failed", "failed"], ["join", "failed", "join"], ["join", "join"],
        ["join", "data"], ["failed"], ["join with another token"],
    ],
    ids=", ".join,
)  # fmt: skip
def test_who_comes_too_late_can_say_no_more_than_that_it_gives_up(frames):
    """All but the last frame are taken; the last one ends the stream and stands in the events."""
    session, stream = Session(rules()), Stream()
    assert session.joined(1, stream)
    stream.clients.add(1)
    session.drop(0, "too late")
    taken = []
    for frame in frames:
        token = "0" * 32 if "another" in frame else session.tokens[0]
        taken.append(_take(session, stream, Frame(frame.split()[0], 0, text=token), {}))
    assert taken == [True] * (len(frames) - 1) + [False]
    assert [who for who, _ in session.refusals()] == [0]
    assert stream.clients == {1} and session.lost == {0: "too late"}


def test_a_client_whose_batch_was_refused_is_out():
    session = both_joined()
    session.arrived(Frame("data", 0), pairs())
    session.arrived(Frame("data", 1), pairs())
    next(session.waves([0, 1]))
    gradient = torch.ones(4, 2)
    session.send({0: BatchGradient(gradient, 1e9, "too large"), 1: BatchGradient(gradient, 1.0)})
    assert session.lost == {0: "too large"} and session.bytes_down.total() == gradient.nbytes


@pytest.mark.parametrize("worst", [3e2, 1e30, math.inf, math.nan])
def test_batches_that_nobody_should_learn_from(worst):
    """Client 1's loss is far above that of guessing, log 4, as NumPy has it."""
    logits = np.array([[0, 1, 2, 3], [0, 0, 0, 0], [1, 1, 1, -worst]], np.float32)
    labels = np.array([0, 1, 3])
    shifted = logits[:2] - logits[:2].max(1, keepdims=True)
    own = np.log(np.exp(shifted).sum(1)) - shifted[np.arange(2), labels[:2]]
    assert own.mean() < LARGEST_LOSS * np.log(4) < 3e2
    data = torch.ones(2, 5)
    wave = [
        Smashed(0, (0, 0), data, torch.tensor(labels[:2])),
        Smashed(1, (0, 0), data[:1], torch.tensor(labels[2:])),
    ]
    assert implausible(torch.tensor(logits[:2]), wave[:1]) == {}
    (refused,) = implausible(torch.tensor(logits), wave).items()
    client, answer = refused
    assert client == 1 and torch.equal(answer.gradient, torch.zeros(1, 5))
    assert answer.rejection.startswith("training diverged: a batch's loss is ")
    assert answer.rejection.endswith(" on the server, at most 138.629")  # 100 log 4
