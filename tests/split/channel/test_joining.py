"""Who may join a round on the channel: tokens, and those who come too late or never."""

from contextlib import suppress
from threading import Barrier, Event

import numpy as np
import pytest

from fedapps.split import connection
from fedapps.split import strategy as split
from fedapps.split.client import SplitClient
from fedapps.split.connection import ChannelError
from fedapps.split.frames import Frame
from tests.support.clock import until
from tests.support.split_rounds import (
    BAD,
    LONG,
    RUN,
    batch,
    check_as_without,
    check_mean_of_updates,
    fit,
    joined,
    let_time_pass,
    play,
    wait_for_others,
)


def test_three_real_clients_finish(world):
    """The harness itself; and without client 1 the result is another one."""
    result, alone = play(world(), "fit"), play(world())
    assert result.session.lost == alone.session.lost == {}
    check_mean_of_updates(result, [0, 1, 2])
    assert any(np.abs(result.arrays[key] - v).max() > 1e-4 for key, v in alone.arrays.items())


REFUSED = "the server refused the stream: wrong or used token"


def test_a_wrong_token_is_refused(world, clock):
    strategy = world("join-timeout=1.0")

    def misbehave(plan):
        with joined(plan, token="0" * 32) as link, pytest.raises(ChannelError) as caught:
            link.begin()
        wait_for_others(strategy)
        let_time_pass(clock, strategy._session, 1.0)
        return caught.value

    result = play(strategy, misbehave)
    assert result.session.refusals() == [(BAD, "wrong or used token")]
    assert result.session.lost.keys() == {BAD}
    assert "did not join the channel in 1 s (join-timeout)" in result.session.lost[BAD]
    assert str(result.outcome) == REFUSED
    check_as_without(result, world())


@pytest.mark.parametrize("token", ["0" * 32, "ä" * 32], ids=["hex", "not ASCII"])
def test_a_wrong_token_of_another_client_ends_the_stream_that_it_came_through(world, token):
    """Clients of one SuperNode share a stream; who joins through it needs a token as well."""
    strategy = world()

    def misbehave(plan):
        with joined(plan) as link:
            link.connection.join(0, token)
            with pytest.raises(ChannelError) as caught:
                link.connection.receive(0, "begin", LONG)
        return caught.value

    result = play(strategy, misbehave)
    assert result.session.refusals() == [(0, "wrong or used token")]
    assert str(result.outcome) == "the server dropped this client: wrong or used token"
    assert result.session.lost == {BAD: "its stream ended"}
    check_as_without(result, world())


def test_a_wrong_token_does_not_use_up_the_right_one(world):
    strategy = world()

    def misbehave(plan):
        with joined(plan, token="0" * 32) as link, pytest.raises(ChannelError):
            link.begin()
        return fit(strategy, plan, BAD)

    result = play(strategy, misbehave)
    assert result.session.refusals() == [(BAD, "wrong or used token")]
    assert result.session.lost == {}
    check_mean_of_updates(result, [0, 1, 2])


def test_a_token_is_good_for_one_join(world):
    """A second stream with the token is refused; the client that it belongs to is not disturbed."""
    strategy, errors = world(), []

    def misbehave(plan):
        with joined(plan) as link:
            link.begin()
            with joined(plan) as again, pytest.raises(ChannelError) as caught:
                again.begin()
            errors.append(str(caught.value))
            link.steps = iter([(0, 0)])
            gradient, loss = link.exchange(**batch(strategy))
            assert gradient.abs().max() > 0 and loss > 0
            link.connection.send(Frame("done", BAD))
            with pytest.raises(ChannelError):
                link.begin()

    result = play(strategy, misbehave)
    assert result.outcome is None
    assert errors == [REFUSED]
    assert result.session.refusals() == [(BAD, "wrong or used token")]
    assert result.session.lost == {}
    check_mean_of_updates(result, [0, 2])


def test_a_token_is_good_for_one_of_two_joins_at_the_same_moment(world, monkeypatch):
    """Both streams have been let in with it before either has joined."""
    together, join = Barrier(2), split.Session.joined

    def both(session, client, stream):
        if client == BAD:
            together.wait(LONG)
        return join(session, client, stream)

    monkeypatch.setattr(split.Session, "joined", both)
    strategy = world()

    def misbehave(plan):
        with joined(plan), joined(plan):
            until(lambda: strategy._session.refusals())

    result = play(strategy, misbehave)
    assert result.outcome is None, "both streams joined with the one token"
    assert result.session.refusals() == [(BAD, "wrong or used token")]


@pytest.mark.parametrize("after", ["the others began", "the round"])
def test_a_client_that_joins_too_late_is_told(world, clock, after):
    """It must not wait for a word that never comes: its SuperNode's reply would come as late."""
    strategy = world("join-timeout=1.0")
    late = Event()

    def misbehave(plan):
        wait_for_others(strategy)
        clock.move(1.0)
        assert late.wait(LONG)
        with joined(plan) as link, pytest.raises(ChannelError) as caught:
            link.begin()
        return str(caught.value)

    method = "step" if after == "the others began" else "_serve"
    work = getattr(strategy, method)

    def then_late(*arguments):
        done = work(*arguments)
        late.set()
        return done

    setattr(strategy, method, then_late)
    result = play(strategy, misbehave)
    check_mean_of_updates(result, [0, 2])
    assert result.outcome == f"the server refused the stream: {result.session.lost[BAD]}"
    assert "did not join the channel in 1 s (join-timeout)" in result.session.lost[BAD]
    assert result.session.refusals() == []


def test_a_client_that_joins_too_late_costs_nobody_on_its_supernode(world, clock, monkeypatch):
    """Real clients of one process share a stream; the others are still training when it comes."""
    strategy = world("join-timeout=1.0")
    over, loss = Event(), SplitClient.loss

    def wait(client, logits, labels):
        assert over.wait(LONG)
        return loss(client, logits, labels)

    monkeypatch.setattr(SplitClient, "loss", wait)

    def come_late(plan):
        wait_for_others(strategy)
        clock.move(1.0)
        until(lambda: strategy._session.lost)
        connections = [*connection._connections]
        try:
            with pytest.raises(ChannelError) as caught:
                fit(strategy, plan, BAD)
        finally:
            over.set()
        assert connections == [plan.channel.address], "client 1 had no stream to share"
        return str(caught.value)

    result = play(strategy, come_late)
    reason = result.session.lost[BAD]
    assert "did not join the channel in 1 s (join-timeout)" in reason
    assert result.outcome == f"the server dropped this client: {reason}"
    assert result.session.lost.keys() == {BAD} and result.session.refusals() == []
    monkeypatch.undo()
    check_as_without(result, world())


def test_a_refused_stream_is_noted(serial_run, tiny_npz, read_csv, read_rounds, monkeypatch):
    """Somebody tries client 0's place with a wrong token; all clients go on."""
    loss, tried = SplitClient.loss, []

    def intrude(client, logits, labels):
        if not tried:
            tried.append(client)
            with joined(client.link, 0, "0" * 32) as link, suppress(ChannelError):
                link.begin()
        return loss(client, logits, labels)

    monkeypatch.setattr(SplitClient, "loss", intrude)
    folder = serial_run(tiny_npz, RUN)
    events = read_csv(folder, "events.csv")
    assert [(e["round"], e["client"], e["kind"], e["detail"]) for e in events] == [
        ("1", "0", "refused", "wrong or used token")
    ]
    assert read_rounds(folder)[0]["failures"] == 0
