"""A device says why the SuperLink refuses it."""

import os
import shutil
import sys
from contextlib import suppress
from email.utils import formatdate
from types import SimpleNamespace

import httpx
import pytest

from fedapps.device import refused, supernode

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
    told = said(BEAT, 401, ahead), said(ACTIVATE, 401, ahead)
    assert told == (refused.UNKNOWN, refused.NOT_LET_IN)


@pytest.mark.parametrize(("answer", "end", "status", "left"), [
    (401, SystemExit(0), 1, []),
    (401, httpx.HTTPError("for more, see https://"), 1, ["The SuperLink has refused this device."]),
    (200, SystemExit(0), 0, []),
    (200, None, 1, ["Lost the SuperLink."]),
])  # fmt: skip
def test_a_device_that_was_removed_ends_with_an_error(
    answer, end, status, left, monkeypatch, caplog
):
    """Flower ends its SuperNode as if it had been told to, or with an address of documentation.

    Without a SuperLink its function just returns.
    """
    refusals, context, found = refused.Refusals(), SimpleNamespace(rpc_method=BEAT), []

    def run():
        refusals.intercept(context, lambda _: httpx.Response(answer))
        if end:
            raise end

    monkeypatch.setattr(supernode.flower, "command", lambda _: run)
    monkeypatch.setattr(supernode.flower, "flwr_exit", lambda code, text: found.append(text))
    monkeypatch.setattr(supernode, "answer_sooner", lambda: refusals)
    for name in ("serve_figures", "shorten_backoff", "keep_trying"):
        monkeypatch.setattr(supernode, name, lambda: None)
    monkeypatch.setattr(sys, "argv", ["flower-supernode"])
    monkeypatch.setattr(os, "umask", lambda _: 0)
    monkeypatch.setattr(os, "_exit", sys.exit)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")  # as a supervisor starts it
    with pytest.raises(SystemExit) as ended:
        supernode.main()
    assert shutil.which("flower-superexec"), "which it starts"
    assert ended.value.code == status and found == left
    assert caplog.messages == [refused.UNKNOWN] * (answer == 401)


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
