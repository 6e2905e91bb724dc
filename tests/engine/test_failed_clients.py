"""What is left of a client's failure: its traceback, raised at once or in log.txt."""

from datetime import datetime, timedelta
from unittest.mock import Mock

import pytest

from fedapps import client_app
from fedapps.engine.failed_clients import MOST_BYTES, ClientError, raising, record
from fedapps.serial import main, run_serial
from tests.support.fits import hooked

ONE = 'strategy="fedavg" num-rounds=2 fraction-train=1.0 num-clients=3'


@pytest.fixture
def unlucky(monkeypatch):
    """Client 1 raises in every training."""

    def before_training(client, own, plan):
        if client.client == 1:
            raise ValueError("no luck")
        return own(plan)

    hooked(monkeypatch, "fedavg", "before_training", before_training)


def test_a_serial_run_ends_with_the_clients_own_error(flat_config, no_plots, unlucky):
    with pytest.raises(ClientError, match=r"^round 1, client 1, train: ValueError: no luck$") as e:
        run_serial(flat_config(ONE), keep_going=False)
    assert isinstance(e.value.__cause__, ValueError)
    with raising(False):  # the next run is as it is told
        run_serial(flat_config(ONE))


def test_a_run_that_keeps_going_has_each_traceback_once(serial_run, read_csv, unlucky):
    folder = serial_run(ONE)
    failed = [event for event in read_csv(folder, "events.csv") if event["kind"] == "failure"]
    assert [(event["round"], event["client"]) for event in failed] == [("1", "1"), ("2", "1")]
    text = (folder / "log.txt").read_text("utf-8")
    assert text.count("Traceback (most recent call last)") == 2
    assert text.count("in before_training") == 2 and "round 2, client 1, train failed" in text


def test_the_log_has_what_was_said_before_the_run_had_a_directory(serial_run):
    """Each run what was said in it: notes of keys without effect come before the first line."""
    folder, other = serial_run(ONE, "clip-history=7"), serial_run(ONE)
    note = "WARNING clip-history = 7 has no effect with clip-percentile = 100\n"
    text = (folder / "log.txt").read_text("utf-8")
    assert note in text.partition("round 1/")[0] and text.count(note) == 1
    assert "clip-history" not in (other / "log.txt").read_text("utf-8")


def test_a_message_that_fails_everybody_is_traced(serial_run, monkeypatch, tmp_path):
    monkeypatch.setattr(client_app, "_place", Mock(side_effect=OSError("no data here")))
    with pytest.raises(Exception, match="no data here"):
        serial_run(ONE, 'run-name="x"')
    text = (tmp_path / "runs" / "x" / "log.txt").read_text("utf-8")
    assert "OSError: no data here" in text and "clients [0, 1, 2]" in text


def test_the_command_line_chooses(tiny_npz, no_plots, unlucky, tmp_path, data_root):
    options = ["--run-config", tiny_npz, "--run-config", ONE]
    options += ["--run-config", f'runs-dir="{tmp_path}" data-root="{data_root}" num-rounds=1']
    with pytest.raises(ClientError):
        main(options)
    assert main([*options, "--keep-going"]) == 0


def test_a_device_says_itself_that_it_failed(tmp_path, capsys):
    """Whoever looks after it does not see what the server prints."""
    for folder, place in ((tmp_path, "is in"), (tmp_path / "gone", "could not be written to")):
        record(folder, "round 1, client 2, train", ValueError("no luck"), aloud=True)
        line = f"ValueError: no luck; its traceback {place} {folder}/log.txt"
        assert capsys.readouterr().out == f"warning: round 1, client 2, train: {line}\n"


def test_a_log_is_never_made_in_a_folder_that_is_gone_nor_without_end(tmp_path):
    error = ValueError("no luck")
    record(tmp_path / "gone", "round 1, client 2, train", error)
    assert not (tmp_path / "gone").exists()
    record(tmp_path, "round 1, client 2, train", error)
    first = (tmp_path / "log.txt").read_text("utf-8").splitlines()[0]
    assert first[20:] == "round 1, client 2, train"
    assert abs(datetime.now() - datetime.fromisoformat(first[:19])) < timedelta(minutes=5)
    with (tmp_path / "log.txt").open("r+b") as file:
        file.truncate(MOST_BYTES)
    record(tmp_path, "round 2, client 2, train", error)
    assert (tmp_path / "log.txt").stat().st_size == MOST_BYTES
