"""A client that sends what none should, or nothing, costs nobody but itself."""

import math
import re
from threading import Event

import numpy as np
import pytest
import torch

from fedapps.core.errors import DivergedError, MisfitError
from fedapps.split.client import SplitClient
from fedapps.split.connection import ChannelError
from fedapps.split.frames import Frame
from tests.support.clock import until
from tests.support.split_rounds import (
    BAD,
    LONG,
    batch,
    check_as_without,
    check_mean_of_updates,
    joined,
    let_time_pass,
    play,
)


def spoiled(key, value):
    """A batch of which one entry is `value`."""

    def spoil(tensors):
        tensors[key].view(-1)[-1] = value
        return tensors

    return spoil


ONE = torch.ones(())
FAULTS = {
    "a side too short": (lambda t: t | {"data": t["data"][:, 1:]}, r"sent data \(4, .*expected 1"),
    "a dimension less": (lambda t: t | {"data": t["data"][..., 0]}, r"sent data \(4, .*expected 1"),
    "fewer labels": (lambda t: t | {"labels": t["labels"][1:]}, r"and labels \(3,\)"),
    "no samples": (lambda t: {k: v[:0] for k, v in t.items()}, r"sent data \(0, .*labels \(0,\)"),
    "too many": (lambda t: {k: v.repeat_interleave(3, 0) for k, v in t.items()}, r"data \(12, "),
    "a scalar": (
        lambda t: {"data": ONE, "labels": t["labels"][:1, None]},
        r"data \(\) .* \(1, 1\)",
    ),
    "scalars": (lambda t: {"data": ONE, "labels": torch.tensor(0)}, r"data \(\) and labels \(\)"),
    "float64": (lambda t: t | {"data": t["data"].double()}, "sent data as torch.float64"),
    "float labels": (lambda t: t | {"labels": t["labels"].float()}, "labels as torch.float32"),
    "no labels": (lambda t: {"data": t["data"]}, "sent data: expected data and labels"),
    "nothing": (lambda t: {}, "sent nothing: expected data and labels"),
    "one more": (lambda t: t | {"x": t["data"]}, "sent data, labels, x: expected"),
    "NaN": (spoiled("data", math.nan), "sent smashed data that are not finite"),
    "infinite": (spoiled("data", -math.inf), "sent smashed data that are not finite"),
    "too large": (spoiled("data", -1e30), r"smashed data that are as large as 1e\+30"),
    "label too high": (spoiled("labels", 3), r"sent a label outside 0\.\.2"),
    "label below 0": (spoiled("labels", -1), r"sent a label outside 0\.\.2"),
}
DIVERGED = ("NaN", "infinite", "too large")  # what an honest client sends whose training diverges


@pytest.mark.parametrize("fault", FAULTS)
def test_a_batch_that_is_not_right_costs_its_client_only(world, fault):
    """The client is told why; the round is that of the others."""
    strategy = world()
    spoil, reason = FAULTS[fault]

    def misbehave(plan):
        with joined(plan) as link:
            link.begin()
            link.connection.send(Frame("data", BAD), spoil(batch(strategy)))
            link.connection.receive(BAD, "gradient", LONG)

    result = play(strategy, misbehave)
    assert result.session.lost.keys() == {BAD}
    told = result.session.lost[BAD]
    assert re.search(reason, told)
    if fault in DIVERGED:
        assert isinstance(result.outcome, DivergedError)
        assert str(result.outcome) == told and told.startswith("training diverged: sent ")
    else:
        assert isinstance(result.outcome, ChannelError)
        assert str(result.outcome) == f"the server dropped this client: {told}"
    check_as_without(result, world())


@pytest.mark.parametrize(("model", "refused"), [("conv4", True), ("lenet5", False)])
def test_a_lone_sample_costs_its_client_only_if_a_batchnorm_needs_two(model, refused, world):
    """The maps of conv4 end on one pixel, and its plan tells real clients to skip such a batch."""
    options = f'model="{model}" fedfc.statistics="client"'
    strategy = world(options)

    def misbehave(plan):
        with joined(plan) as link:
            link.begin()
            link.connection.send(Frame("data", BAD), batch(strategy, size=1))
            link.connection.receive(BAD, "gradient", LONG)
            link.connection.send(Frame("failed", BAD, text="enough"))

    result = play(strategy, misbehave)
    if not refused:
        assert result.session.lost == {BAD: "enough"}
        return
    assert result.session.lost[BAD].startswith("sent data (1, ")
    assert result.session.lost[BAD].endswith("expected 2 to 8 samples of (64, 4, 4)")
    check_mean_of_updates(result, [0, 2])
    for key, value in play(world(options)).arrays.items():
        np.testing.assert_allclose(result.arrays[key], value, rtol=0, atol=1e-6, err_msg=key)


@pytest.mark.parametrize(("frames", "reason"), [
    ([Frame("data", BAD), Frame("data", BAD, (0, 1))], "sent data out of turn"),
    ([Frame("gradient", BAD)], "sent gradient out of turn"),
    ([Frame("begin", BAD)], "sent begin out of turn"),
    ([Frame("join", BAD, text="x")], "sent join out of turn"),
], ids=["two batches", "gradient", "begin", "join again"])  # fmt: skip
def test_a_frame_that_is_not_due_costs_its_client_only(world, frames, reason):
    """The others start when all has been sent, so that no batch of client 1 is in a wave."""
    strategy, told = world(), Event()

    def misbehave(plan):
        with joined(plan) as link:
            for frame in frames:
                link.connection.send(frame, batch(strategy))
            try:
                link.begin()
            finally:
                told.set()

    result = play(strategy, misbehave, begin=told)
    assert result.session.lost == {BAD: reason}
    assert str(result.outcome) == f"the server dropped this client: {reason}"
    check_as_without(result, world())


def test_the_channel_tells_of_a_failure_only_what_the_reply_tells(world, monkeypatch):
    loss = SplitClient.loss

    def misfit(client, *batch):
        if client.client == BAD:
            raise MisfitError('line 9: column sex holds "x"')
        return loss(client, *batch)

    monkeypatch.setattr(SplitClient, "loss", misfit)
    assert play(world(), "fit").session.lost == {BAD: MisfitError("").told}


def test_a_client_that_never_stops_does_not_keep_the_round_open(world):
    """It sends more batches than its plan has."""
    strategy = world()

    def misbehave(plan):
        due = plan.stages[0].epochs * strategy.batches(BAD)
        with joined(plan) as link:
            link.begin()
            link.steps = ((0, number) for number in range(20 * due))
            for _ in range(20 * due):
                link.exchange(**batch(strategy))
        return "it was never stopped"

    result = play(strategy, misbehave)
    assert isinstance(result.outcome, ChannelError), result.outcome
    assert result.session.lost.keys() == {BAD}
    check_mean_of_updates(result, [0, 2])


def test_who_is_out_and_goes_on_sending_loses_the_stream(world):
    """The others start when it has, so that the end of the round is not what ends the stream."""
    strategy, told = world(), Event()

    def misbehave(plan):
        with joined(plan) as link:
            link.connection.send(Frame("gradient", BAD))
            with pytest.raises(ChannelError, match="dropped this client: sent gradient out of"):
                link.begin()
            for _ in range(3):
                link.connection.send(Frame("data", BAD), batch(strategy))
            try:
                link.begin()
            finally:
                told.set()

    result = play(strategy, misbehave, begin=told)
    assert str(result.outcome) == "the server ended the channel"
    check_as_without(result, world())


def test_bytes_that_are_no_frame_cost_their_stream_only(world):
    strategy = world()

    def misbehave(plan):
        with joined(plan) as link:
            link.begin()
            link.connection._outbox.put(b"\xff" * 9)
            link.begin()

    result = play(strategy, misbehave)
    assert result.session.lost[BAD].startswith("its stream broke: a header of")
    assert isinstance(result.outcome, ChannelError)
    check_as_without(result, world())


def test_nobody_sends_for_a_client_of_another_stream(world):
    """Frames for client 0 through client 1's stream end that stream and never reach client 0."""
    strategy = world()

    def misbehave(plan):
        with joined(plan) as link:
            link.begin()
            link.connection.send(Frame("failed", 0, text="not true"))
            link.begin()

    result = play(strategy, misbehave)
    assert result.session.refusals() == [(0, "sent data without having joined")]
    assert result.session.lost == {BAD: "its stream ended"}
    check_as_without(result, world())


def test_a_client_that_falls_silent_is_dropped(world, clock):
    strategy = world("step-timeout=1.5")

    def misbehave(plan):
        with joined(plan) as link:
            link.begin()
            until(lambda: {0, 2} == strategy._session._waiting.keys())
            let_time_pass(clock, strategy._session, 1.5)
            link.connection.receive(BAD, "gradient", LONG)

    result = play(strategy, misbehave)
    assert result.session.lost == {BAD: "sent nothing in 1.5 s (step-timeout)"}
    assert result.session.lost[BAD] in str(result.outcome)
    check_as_without(result, world())
