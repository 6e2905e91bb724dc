"""FedFC's automatic cuts: what clients say of their speed, and what is made of it."""

import pytest
from flwr.app import MetricRecord

from clients.fedfc import FedFCClient
from fedapps.core.errors import RunError
from fedapps.engine.failed_clients import ClientError
from fedapps.serial import run_serial
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.replies import unreadable
from fedapps.wire.serial_grid import SerialGrid
from strategies.fedfc import FedFC, deepest


def test_auto_cuts_are_no_slower_than_the_slowest_at_the_default():
    seconds = {0: [4.0, 4.0, 4.0, 4.0], 1: [1.0, 1.0, 1.0, 1.0], 2: [3.0, 4.0, 2.0, 1.0]}
    assert deepest(seconds, default=2) == {0: 2, 1: 3, 2: 2}


def test_nobody_makes_all_others_as_slow_as_it_says_it_is():
    """The first claims a minute a layer; with the limit it counts three medians of 2 s."""
    seconds = {0: [60.0] * 4} | {client: [1.0, 1.0, 3.0, 3.0] for client in (1, 2, 3, 4)}
    assert deepest(seconds, default=2) == {0: 2, 1: 3, 2: 3, 3: 3, 4: 3}
    assert deepest(seconds, default=2, most=3) == {0: 1, 1: 3, 2: 3, 3: 3, 4: 3}
    assert deepest(seconds, default=2, most=2) == {0: 1, 1: 2, 2: 2, 3: 2, 4: 2}


def test_auto_cuts_are_measured_once_and_noted(serial_run, tiny_npz, read_csv):
    folder = serial_run(f'{tiny_npz} strategy="fedfc" fedfc.cuts="auto" num-clients=3')
    cuts = [row for row in read_csv(folder, "events.csv") if row["kind"] == "cut"]
    assert [(row["round"], row["client"]) for row in cuts] == [("0", "0"), ("0", "1"), ("0", "2")]
    assert all(row["detail"] in ("1", "2", "3") for row in cuts)
    assert any(int(row["detail"]) >= 2 for row in cuts)


@pytest.fixture
def told(serial_run, tiny_npz, monkeypatch):
    """Return run(change): cuts by speed on three SuperNodes, `change` alters what the first says.

    It gives the run directory, and the seconds that counted.
    """
    counted = {}
    answered = FedFC.answered
    monkeypatch.setattr(FedFC, "answered", lambda s, t: (counted.update(t), answered(s, t)))

    def run(change):
        pull = SerialGrid.pull_messages

        def altered(grid, message_ids):
            replies = pull(grid, message_ids)
            return [
                change(reply) if "answer-0" in reply.content.metric_records else reply
                for reply in replies
            ]

        monkeypatch.setattr(SerialGrid, "pull_messages", altered)
        folder = serial_run(
            f'{tiny_npz} strategy="fedfc" fedfc.cuts="auto" num-clients=3 num-rounds=1',
            num_supernodes=3,
        )
        return folder, counted

    return run


def lied(times):
    def change(reply):
        reply.content["answer-0"] = MetricRecord({"values": times})
        return reply

    return change


def broke(reply):
    return unreadable(reply.metadata.reply_to_message_id, "Traceback\nno\x1b[31m luck")


NO_TIMES = "its answer is not 4 numbers above 0 and at most 60"


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (broke, "no?[31m luck"),
        (lied([1.0, 1.0]), NO_TIMES),
        (lied([1.0, 1.0, 1.0, 0.0]), NO_TIMES),
        (lied([1.0, 1.0, 1.0, 1e300]), NO_TIMES),
        (lied([61.0, 1.0, 1.0, 1.0]), NO_TIMES),
        (lied([1.0] * 2**17), "a reply of 1048631 bytes: at most 1048576 were asked for"),
    ],
    ids=["error", "short", "zero", "1e300", "beyond step-timeout", "too large"],
)
def test_a_client_that_does_not_tell_its_speed_gets_the_default_cut(change, cause, told, read_csv):
    folder, counted = told(change)
    assert counted.keys() == {1, 2}
    events = read_csv(folder, "events.csv")
    unanswered = [e for e in events if e["kind"] == "unanswered"]
    told_why = [(e["round"], e["client"], e["detail"]) for e in unanswered]
    assert told_why == [("0", "0", f"layer-seconds: {cause}")]
    cuts = {e["client"]: int(e["detail"]) for e in events if e["kind"] == "cut"}
    assert cuts.keys() == {"0", "1", "2"} and cuts["0"] == 2
    assert not [e for e in events if e["kind"] == "failure"]


def test_answers_are_in_the_order_of_clients_whoever_is_first(told, monkeypatch):
    send = StreamingGrid.send_and_receive
    monkeypatch.setattr(
        StreamingGrid, "send_and_receive", lambda *own, **more: iter([*send(*own, **more)][::-1])
    )
    _, counted = told(lambda reply: reply)
    assert [*counted] == [0, 1, 2]


@pytest.fixture
def speechless(monkeypatch):
    """Client 1 raises when it is asked; 2 answers with what is no list of numbers."""
    answer = FedFCClient.answer

    def fail(client, question):
        if client.client == 1:
            raise RuntimeError("no\nluck")
        return ["fast"] if client.client == 2 else answer(client, question)

    monkeypatch.setattr(FedFCClient, "answer", fail)


THREE = 'strategy="fedfc" fedfc.cuts="auto" num-clients=3 num-rounds=1 fraction-train=1.0'


def test_who_cannot_answer_is_not_asked(serial_run, tiny_npz, read_csv, read_rounds, speechless):
    """All are on one SuperNode; each traceback is in the log once."""
    folder = serial_run(tiny_npz, THREE)
    events = read_csv(folder, "events.csv")
    unanswered = {e["client"]: e["detail"] for e in events if e["kind"] == "unanswered"}
    assert unanswered.keys() == {"1", "2"}
    assert unanswered["1"] == "layer-seconds: RuntimeError: luck"
    assert unanswered["2"].startswith("layer-seconds: TypeError: ")
    cuts = {e["client"]: e["detail"] for e in events if e["kind"] == "cut"}
    assert cuts.keys() == {"0", "1", "2"} and cuts["1"] == cuts["2"] == "2"
    assert [(row["clients"], row["failures"]) for row in read_rounds(folder)] == [(3, 0)]
    text = (folder / "log.txt").read_text("utf-8")
    assert text.count("Traceback (most recent call last)") == 2
    assert "client 1, layer-seconds failed" in text


def test_a_serial_run_may_end_with_a_clients_error(flat_config, tiny_npz, no_plots, speechless):
    line = "^client 1, layer-seconds: RuntimeError: no\nluck$"
    with pytest.raises(ClientError, match=line) as caught:
        run_serial(flat_config(tiny_npz, THREE), keep_going=False)
    assert isinstance(caught.value.__cause__, RuntimeError)


def test_without_any_speed_there_is_no_run(serial_run, tiny_npz, monkeypatch):
    monkeypatch.setattr(FedFCClient, "answer", lambda client, question: [0.0])
    with pytest.raises(RunError, match=f"^layer-seconds: no client answered; .*: {NO_TIMES}$"):
        serial_run(f'{tiny_npz} strategy="fedfc" fedfc.cuts="auto" num-clients=3')
