"""The run directory under faults: what appends never creates, and what a stopped run leaves."""

import contextlib
import csv
import fcntl
import itertools
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from flwr.supercore.exit import exit_handler
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import load_file

from fedapps import serial
from fedapps.compare.sweep import Sweep
from fedapps.core import config, files, log, stopping
from fedapps.core.errors import RunError
from fedapps.engine.rounds import Rounds
from fedapps.report import directory, report
from fedapps.report.about import command
from fedapps.report.page.reading import RunFiles
from fedapps.report.report import Report

RUN = 'strategy="fedper" num-clients=3 fraction-train=1.0 num-rounds=4 run-name="x"'


@pytest.fixture
def wiped(monkeypatch):
    """The run directory goes away after the first round."""
    write = Report.round

    def then_wipe(report, row):
        write(report, row)
        if row.round == 1:
            shutil.rmtree(report.folder)

    monkeypatch.setattr(Report, "round", then_wipe)


def test_a_run_that_ends_while_its_directory_is_made_has_begun_or_not(
    flat_config, tmp_path, monkeypatch
):
    """A folder with files says of which run they are, so the same sweep can go on."""
    flat = flat_config(RUN, f'runs-dir="{tmp_path}"')
    sweep, writes, replace = Sweep(tmp_path, (), 1), [], Path.replace

    def dies(path, target):
        if len(writes) == instant:
            raise KeyboardInterrupt
        writes.append(target)
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", dies)
    for instant in itertools.count():
        writes.clear()
        name, ended = f"x{instant}", False
        with contextlib.suppress(KeyboardInterrupt):
            named = [["ann", "bob", "cy"], ["a", "b", "c"]]
            settings = config.read(flat | {"runs-dir": str(tmp_path), "run-name": name})
            Report.create(settings, flat, names=named)
            ended = True
        assert not sweep._is_done(SimpleNamespace(name=name, flat=flat))
        if ended:
            break
    assert {"config.toml", "names.csv", "class-names.csv"} <= {path.name for path in writes}


@pytest.mark.parametrize("keep_going", [False, True])
@pytest.mark.parametrize("strategy", ["fedper", "fedavg"])  # with and without state on clients
def test_a_run_directory_that_is_gone_ends_the_run(
    strategy, keep_going, wiped, flat_config, tiny_npz, no_plots, tmp_path
):
    flat = flat_config(tiny_npz, RUN, f'strategy="{strategy}"')
    with pytest.raises(RunError, match=r"cannot write .*/runs/x/") as error:
        serial.run_serial(flat, keep_going=keep_going)
    assert "\n" not in str(error.value)
    assert [*(tmp_path / "runs").iterdir()] == []


def test_a_table_that_is_gone_is_not_begun_anew(tmp_path):
    table = tmp_path / "rounds.csv"
    with pytest.raises(RunError, match=r"^cannot write .*/rounds\.csv: No such file or directory$"):
        directory.append(table, [[1, 2]])
    assert not table.exists()
    directory.start(table, [["a", "b"]])
    directory.append(table, [[1, 2], [3, "ü"]])
    assert table.read_text("utf-8") == "a,b\n1,2\n3,ü\n"
    with pytest.raises(RunError, match="File exists"):
        directory.start(table, [["a", "b"]])
    assert table.read_text("utf-8") == "a,b\n1,2\n3,ü\n"


def test_a_table_never_holds_half_a_row(tmp_path):
    table = tmp_path / "rounds.csv"
    directory.start(table, [["a", "b"]])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))  # a disk with four bytes left
    try:
        with pytest.raises(RunError, match=r"^cannot write .*rounds\.csv: File too large$"):
            directory.append(table, [["123", "456"]])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert table.read_text("utf-8") == "a,b\n"


@pytest.mark.parametrize(("cell", "why"), [
    ("x" * 200_000, "field larger than"), ("x\r2,y", "new-line character seen"),
])  # fmt: skip
def test_a_table_that_cannot_be_parsed_is_refused_in_a_line(cell, why, tmp_path):
    """Half a line break makes no second row, which page, status and `row_count` do not see."""
    table, before = tmp_path / "events.csv", csv.field_size_limit()
    table.write_text(f"round,detail\n1,{cell}\n", encoding="utf-8", newline="")
    try:
        csv.field_size_limit(131_072)  # Python's default, which reading a data set raises
        with pytest.raises(RunError, match=rf"^cannot read .*events\.csv: {why}"):
            directory.lines(table)
    finally:
        csv.field_size_limit(before)


def test_rows_are_counted_as_they_are_read(tmp_path):
    table = tmp_path / "events.csv"
    assert directory.row_count(table) == 0
    directory.start(table, [["round", "detail"]])
    assert directory.row_count(table) == 0
    directory.append(table, [[1, 'two\nlines, a "quote"\r\n'], [2, "\r"], [2, ""]])
    assert directory.row_count(table) == len(directory.lines(table)) == 3


# What a stopped run leaves

FILES = {"run.json", "config.toml", "rounds.csv", "clients.csv", "classes.csv", "events.csv"}
FILES |= {"summary.json", "model.safetensors", "log.txt", "clients"}


ANY_NAME = st.text("=\uff1d+-@;'\", 1a", min_size=1)


@given(st.lists(ANY_NAME, min_size=1, unique=True))
@example(["-1", "0", "=x", "'=x", "''=x", "'", "a;=x", "a;'=x", "+", "1"])
def test_names_of_clients_and_classes_are_read_as_the_data_have_them(called):
    """Also those that a spreadsheet would take for a formula, so that the files protect them."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        directory.write_names(folder, called, called[::-1])
        assert directory.names(folder) == (*called,)
        assert directory.names(folder, directory.CLASS_NAMES) == (*called[::-1],)
        assert RunFiles.read(folder).names == {str(n): name for n, name in enumerate(called)}
        for number, name in enumerate(called):
            assert directory.client_of(folder, name) == number


def test_a_name_of_a_client_can_be_copied_from_a_mac(tmp_path):
    """It has an accent as a character of its own there; names of a run never do."""
    directory.write_names(tmp_path, ["Anna", "Bj\u00f6rn"])
    assert directory.client_of(tmp_path, "Bjo\u0308rn") == 1


def test_where_the_data_name_nobody_a_client_is_a_number(tmp_path):
    assert directory.client_of(tmp_path, "007") == 7
    line = "--client anna: must be a number; the data of this run name no clients"
    with pytest.raises(RunError, match=f"^{line}$"):
        directory.client_of(tmp_path, "anna")


@pytest.fixture
def interrupted(monkeypatch, flat_config, tiny_npz):
    """Return run(interrupt): a run that calls `interrupt` in round 3, trained and not scored."""
    configure = Rounds.configure_evaluate

    def run(interrupt):
        def then_interrupt(rounds, round_):
            if round_ == 3:
                interrupt()
            return configure(rounds, round_)

        with monkeypatch.context() as patch:
            patch.setattr(Rounds, "configure_evaluate", then_interrupt)
            serial.run_serial(flat_config(tiny_npz, RUN))

    return run


def check_left(folder, stopped, read_summary, read_rounds):
    """All files of two rounds are there, and the summary says that it is not all."""
    assert {path.name for path in folder.iterdir()} >= FILES
    assert not [*folder.rglob(".*.tmp")]  # nor half of a file
    summary = read_summary(folder)
    assert (summary["finished"], summary["stopped"], summary["round"]) == (False, stopped, 2)
    assert [row["round"] for row in read_rounds(folder)] == [1, 2]
    assert len(load_file(folder / "model.safetensors")) > 0


def test_a_run_leaves_what_it_has(interrupted, tmp_path, read_summary, read_rounds):
    with pytest.raises(KeyboardInterrupt):
        interrupted(Mock(side_effect=KeyboardInterrupt))
    folder = tmp_path / "runs" / "x"
    check_left(folder, "Ctrl-C", read_summary, read_rounds)
    assert (folder / "plots" / "accuracy.png").stat().st_size > 1000
    assert "interrupted" in (folder / "report.html").read_text("utf-8")


def test_so_does_one_that_fails(interrupted, no_plots, tmp_path, read_summary, read_rounds, capsys):
    with pytest.raises(RunError, match="worker died"):
        interrupted(Mock(side_effect=RunError("round 3: worker died (memory?): no\nreason")))
    stopped = "round 3: worker died (memory?): no reason"
    folder = tmp_path / "runs" / "x"
    check_left(folder, stopped, read_summary, read_rounds)
    assert capsys.readouterr().out.splitlines()[-1] == f"stopped after round 2 of 4, see {folder}"


def test_last_model_is_kept(interrupted, serial_run, tiny_npz, tmp_path, read_summary, read_rounds):
    with pytest.raises(ZeroDivisionError):
        interrupted(lambda: 1 / 0)
    stopped = "ZeroDivisionError: division by zero"
    check_left(tmp_path / "runs" / "x", stopped, read_summary, read_rounds)
    shorter = serial_run(tiny_npz, RUN, 'num-rounds=2 run-name="y"')
    model = (tmp_path / "runs" / "x" / "model.safetensors").read_bytes()
    assert model == (shorter / "model.safetensors").read_bytes()


@contextlib.contextmanager
def handled(number, handler):
    """Have a handler of a signal, which is there again at the end of a run."""
    before = signal.signal(number, handler)
    try:
        with pytest.raises(SystemExit) as exit_:
            yield exit_
        assert signal.getsignal(number) is handler
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_ends_as_it_is_told(
    number, interrupted, no_plots, monkeypatch, tmp_path, read_summary, read_rounds, capsys
):
    """By another process, or because its terminal was closed; both are often told twice."""
    monkeypatch.setattr(Report, "_plot", lambda report: os.kill(os.getpid(), number))
    with handled(number, signal.SIG_DFL) as exit_:
        interrupted(lambda: os.kill(os.getpid(), number))
    assert exit_.value.code == 128 + number
    folder = tmp_path / "runs" / "x"
    check_left(folder, number.name, read_summary, read_rounds)
    assert capsys.readouterr().out.splitlines()[-2:] == [
        f"stopped after round 2 of 4 ({number.name}), see {folder}",
        f"interrupted after round 2 of 4; to resume: fedapps serial --resume {folder} --keep-going",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_signal_goes_on_to_flowers_own_handler(number, interrupted, no_plots, tmp_path):
    summary = tmp_path / "runs" / "x" / "summary.json"
    seen = []

    def flowers(signalnum, frame):
        seen.append((signalnum, summary.exists()))
        sys.exit(0)

    with handled(number, flowers) as exit_:
        interrupted(lambda: os.kill(os.getpid(), number))
    assert seen == [(number, True)] and exit_.value.code == 0


def test_flowers_end_waits_for_the_rest(interrupted, no_plots, tmp_path, read_summary, read_rounds):
    """There the run has a thread of its own, and the main thread gets the signals."""
    there, ended = threading.Event(), threading.Event()

    def interrupt():
        there.set()
        assert ended.wait(60)

    def run():
        with contextlib.suppress(SystemExit):
            interrupted(interrupt)

    thread = threading.Thread(target=run)
    thread.start()
    assert there.wait(60)
    end_of_process = exit_handler.registered_exit_handlers[-1].exit_handler
    ended.set()
    end_of_process()
    stopped = "Flower ended the process of the run"
    check_left(tmp_path / "runs" / "x", stopped, read_summary, read_rounds)
    thread.join(60)
    end_of_process()  # of a run that is over, the next one is not told
    stopping.check()


def test_what_fails_keeps_nothing_else(serial_run, tiny_npz, tmp_path, monkeypatch, read_summary):
    folder, create = tmp_path / "runs" / "x", Report.create

    def and_block(*arguments):
        report = create(*arguments)
        for name in ("model.safetensors", "classes.csv"):
            (folder / name).mkdir()
        return report

    monkeypatch.setattr(Report, "create", and_block)
    with pytest.raises(RunError, match=r"^cannot write .*/model\.safetensors: Is a directory$"):
        serial_run(tiny_npz, RUN)
    summary = read_summary(folder)
    assert (summary["finished"], summary["round"]) == (False, 4)
    assert "model.safetensors: Is a directory" in summary["stopped"]
    assert not [*folder.rglob(".*.tmp")]  # nor half of a file


def test_a_full_disk_costs_the_log_and_nothing_else(tmp_path, capfd):
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with log.to_file(tmp_path / "log.txt"):
        log.info("a line")
    assert capfd.readouterr() == ("a line\n", "")


def test_versions_and_command_are_there_from_the_start(interrupted, no_plots, tmp_path):
    about = {}

    def interrupt():
        about.update(json.loads((tmp_path / "runs" / "x" / "run.json").read_text("utf-8")))

    begun = datetime.now(UTC)
    interrupted(interrupt)
    known = {name: metadata.version(name) for name in ("torch", "flwr", "numpy")}
    assert known.items() <= about["versions"].items() and "python" in about["versions"]
    assert abs(datetime.fromisoformat(about["started"]) - begun) < timedelta(minutes=5)
    assert about["command"] == command(sys.orig_argv)


@pytest.mark.parametrize(("words", "text"), [
    (
        ["/v/bin/python", "-m", "fedapps.serial", "--run-config", 'strategy="fedper" lr=0.1'],
        """python -m fedapps.serial --run-config 'strategy="fedper" lr=0.1'""",
    ),
    (["/v/bin/python", "/v/bin/flwr-serverapp", "--token", "secret"], "flwr-serverapp"),
    (["/v/bin/flower-superexec", "--auth", "secret"], "flower-superexec"),
    ([], ""),
])  # fmt: skip
def test_the_command_is_told_without_flowers_tokens(words, text):
    assert command(words) == text


def test_a_summary_survives_a_power_cut(serial_run, tiny_npz, monkeypatch):
    """Without it, a finished run would have a damaged one, which no comparison could read."""
    synced = {}

    def write(path, content, durable=False):
        synced[path.name] = durable
        files.write_whole(path, content, durable)

    monkeypatch.setattr(report, "write_whole", write)
    serial_run(tiny_npz, RUN, "num-rounds=1")
    assert synced["summary.json"] and synced["model.safetensors"]


def test_settings_and_names_survive_a_power_cut_and_what_did_not_is_refused(tmp_path, monkeypatch):
    synced, fsync = set(), os.fsync
    monkeypatch.delattr(fcntl, "F_FULLFSYNC", raising=False)
    monkeypatch.setattr(os, "fsync", lambda h: [synced.add(os.fstat(h).st_ino), fsync(h)])
    directory.configure(tmp_path, config.defaults())
    directory.write_names(tmp_path, ["a"], ["x"])
    files = {path.name: path.stat().st_ino for path in tmp_path.iterdir()}
    assert len(files) == 4 and {*files.values()} <= synced
    (tmp_path / "rounds.csv").touch()
    (tmp_path / "config.toml").write_bytes(b"")
    with pytest.raises(RunError, match=f"^{tmp_path} is not a run directory: config.toml: names "):
        config.stored(tmp_path)
    (tmp_path / "resume.toml").replace(tmp_path / "config.toml")
    assert config.stored(tmp_path)["strategy"] == config.defaults()["strategy"]
