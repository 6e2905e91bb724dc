"""The command `ready` of a node-config: a device works only while it ends with status 0."""

import subprocess

import psutil
import pytest

from fedapps.core.errors import RunError
from fedapps.device import readiness
from fedapps.device.readiness import DeclinedError
from tests.support.clock import PATIENCE, until
from tests.support.split_rounds import LONG


def test_a_device_that_is_not_ready_misses_the_round_and_has_not_failed(
    nodes, device_run, tmp_path, read_csv, read_rounds, capsys
):
    """Nor does it end a run that no failure may pass; a minute later it takes part."""
    nodes[1]["ready"] = f"test -e '{tmp_path}/on mains'"
    nodes[2]["ready"] = "true"
    folder = device_run("num-rounds=2 max-failures=0")
    events = [[*row.values()][1:] for row in read_csv(folder, "events.csv")]
    no = ["1", "declined", "its ready command ends with status 1"]
    assert [event for event in events if event[1] != "joined"] == [no] * 4  # also scored
    figures = [(row["failures"], row["evaluated"]) for row in read_rounds(folder)]
    assert figures == [(0, len(nodes) - 1)] * 2
    told = capsys.readouterr().out
    assert "round 1: client 1 declined: its ready command ends with status 1\n" in told
    assert not (tmp_path / "state-1" / "log.txt").exists()  # no traceback
    (tmp_path / "on mains").touch()
    folder = device_run("num-rounds=2")
    kinds = {row["kind"] for row in read_csv(folder, "events.csv")}
    assert not kinds & {"declined", "failure"}
    assert [row["evaluated"] for row in read_rounds(folder)] == [len(nodes)] * 2


def test_nobody_waits_on_the_channel_for_a_device_that_declines(
    nodes, device_run, read_csv, sessions
):
    nodes[1]["ready"] = "false"
    folder = device_run(f'strategy="fedfc" num-rounds=2 evaluate-every=0 join-timeout={LONG}')
    no = "its ready command ends with status 1"
    assert [session.lost for session in sessions] == [{1: f"declined: {no}"}] * 2
    kinds = {(row["client"], row["kind"], row["detail"]) for row in read_csv(folder, "events.csv")}
    assert kinds == {("1", "declined", no)}


def test_a_run_in_which_all_decline_ends(nodes, device_run):
    """As if all were away; the next one may find them ready."""
    for node in nodes:
        node["ready"] = "false"
    line = r"clients declined \(all declined\); client 0: declined: its re"
    with pytest.raises(RunError, match=line):
        device_run("num-rounds=9")


@pytest.mark.parametrize(("command", "seconds", "reason"), [
    ("sh -c 'exit 3'", PATIENCE, "ends with status 3"),
    ("sleep 600", 0.1, "takes more than 0.1 s"),
    ("/gone/since/the/start", PATIENCE, "cannot be run"),
])  # fmt: skip
def test_every_other_end_says_no(command, seconds, reason, monkeypatch):
    monkeypatch.setattr(readiness, "SECONDS", seconds)
    with pytest.raises(DeclinedError, match=f"^declined: its ready command {reason}$"):
        readiness.check(command)


def test_the_command_gets_its_words_as_from_a_shell(tmp_path):
    readiness.check(f'touch "{tmp_path}/two words" {tmp_path}/one')
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "two words"]


def test_what_a_command_has_started_ends_with_it(monkeypatch, tmp_path):
    started, wait = tmp_path / "child", subprocess.Popen.wait

    def too_long(process, timeout=None):
        if timeout is None:
            return wait(process)
        until(lambda: started.exists() and started.read_text().endswith("\n"))
        raise subprocess.TimeoutExpired(process.args, timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", too_long)
    with pytest.raises(DeclinedError, match="takes more than 10 s"):
        readiness.check(f"sh -c 'sleep 600 & echo $! > {started}; wait'")
    child = psutil.Process(int(started.read_text()))
    until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE)
