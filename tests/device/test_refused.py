"""A device says why the SuperLink refuses it."""

from contextlib import suppress
from email.utils import formatdate
from types import SimpleNamespace

import httpx
import pytest

from fedapps.device import refused

ACTIVATE, BEAT = "/flwr.proto.Fleet/ActivateNode", "/flwr.proto.Fleet/SendNodeHeartbeat"


NOW = 1_800_000_000.0


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(refused.time, "time", lambda: NOW)


def said(call, status, ahead):
    """What is told if the device's clock is so many seconds ahead of the server's."""
    return refused.reason(call, status, formatdate(NOW - ahead, usegmt=True))


@pytest.mark.parametrize("call", [ACTIVATE, BEAT])
@pytest.mark.parametrize(
    ("ahead", "told"),
    [(-400, "400 s behind"), (-305, "305 s behind"), (100, "100 s ahead of"), (5, "5 s ahead of")],
)
def test_a_clock_that_is_off_is_named(call, ahead, told):
    assert f"its clock is {told} the server's; set it (Flower" in said(call, 401, ahead)


@pytest.mark.parametrize("ahead", [-200, 0, 3])
def test_a_clock_that_is_right_is_not_blamed(ahead):
    assert said(BEAT, 401, ahead) == "" and said(ACTIVATE, 401, ahead) == refused.NOT_LET_IN


def test_other_answers_are_no_refusals():
    for call, status in ((ACTIVATE, 200), (ACTIVATE, 503), (BEAT, 200), (BEAT, 404)):
        assert said(call, status, 1000) == ""
    assert refused.reason(ACTIVATE, 412, None) == refused.NOT_LET_IN


def test_the_cause_is_told_once(caplog):
    answer = SimpleNamespace(status_code=412, headers={})
    refusals, context = refused.Refusals(), SimpleNamespace(rpc_method=ACTIVATE)
    for _ in range(3):
        assert refusals.intercept(context, lambda asked: answer) is answer
    assert caplog.text.count(refused.NOT_LET_IN) == 1


def test_what_is_not_reached_is_told_once_until_it_is(caplog):
    def fail(asked):
        raise httpx.ConnectError("[Errno 111] Connection refused")

    context = SimpleNamespace(
        rpc_method=BEAT, request=httpx.Request("POST", "https://site.example:4443/v1/fleet")
    )
    refusals, answers = refused.Refusals(), [fail, fail, lambda asked: httpx.Response(200), fail]
    for answer in answers:
        with suppress(httpx.ConnectError):
            refusals.intercept(context, answer)
    told = "site.example:4443 is not reached: [Errno 111] Connection refused"
    assert caplog.messages == [told, told] and not refusals.told
