"""The run directory under faults: what appends never creates, and what a stopped run leaves."""

import resource
import shutil

import pytest

from fedapps import serial
from fedapps.core.errors import RunError
from fedapps.report import directory
from fedapps.report.report import Report

RUN = 'strategy="fedper" num-clients=3 fraction-train=1.0 num-rounds=4 run-name="x"'


# What appends never creates


@pytest.fixture
def wiped(monkeypatch):
    """The run directory goes away after the first round."""
    write = Report.round

    def then_wipe(report, row):
        write(report, row)
        if row.round == 1:
            shutil.rmtree(report.folder)

    monkeypatch.setattr(Report, "round", then_wipe)


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


def test_and_the_command_ends_with_one_line(wiped, tmp_path, tiny_npz, data_root, capsys):
    folders = f'runs-dir="{tmp_path}/runs" data-root="{data_root}" device="cpu" local-epochs=1'
    assert serial.main([f"--run-config={option}" for option in (tiny_npz, folders, RUN)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    runs = tmp_path / "runs"
    assert line == (
        f"error: round 2, client 0, train: cannot write {runs}/x/clients/0: {runs}/x is gone"
    )


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
