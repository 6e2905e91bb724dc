"""`python -m benchmarks`: what is timed, what peers train, and one small comparison."""

import os
import sys
from datetime import datetime, timedelta
from statistics import median
from unittest.mock import Mock

import pytest
import torch

from benchmarks import results, soak, supernodes
from benchmarks.__main__ import Run, main, measured
from benchmarks.device_costs import Costs
from benchmarks.peers import task
from benchmarks.results import ratios
from benchmarks.workloads import GPU_MODES, SCALE, contenders
from fedapps import models

WEIGHTS = 32 * (3 * 25 + 1) + 64 * (32 * 25 + 1) + 512 * (64 * 25 + 1) + 10 * 513


def test_a_round_is_the_median_without_the_first_and_the_last(tmp_path):
    soon, took = datetime.now() + timedelta(seconds=100), (3, 5, 4, 99)
    ends = [soon + timedelta(seconds=sum(took[:count])) for count in range(5)]
    lines = "\n".join(f"{end} round {number}" for number, end in enumerate(ends, 1))
    program = f"print({lines!r}); print('did weights=7 steps=5')"
    run = measured([sys.executable, "-c", program], tmp_path)
    assert run.round == pytest.approx(median(took[:3]))
    assert 80 < run.start < 100 - run.round  # from the command on, so a little less
    assert run.did == (7, 5)
    assert measured([sys.executable, "-c", "raise OSError('no room')"], tmp_path) == (
        "OSError: no room"
    )


@pytest.mark.parametrize("rounds", [2, 4, 5])
def test_what_devices_cost_needs_rounds_for_quartiles(rounds, monkeypatch, capsys):
    """Every second round has an evaluation after it, and is told apart."""
    seconds = [1.0, 2.0, 3.0, 4.0][:rounds]
    costs = Costs(evaluated=seconds[::2], rounds=seconds[1::2])
    monkeypatch.setattr(supernodes, "show", lambda *_: costs.show("ours"))
    monkeypatch.setattr(sys, "argv", ["supernodes", "--rounds", str(rounds)])
    assert supernodes.main() == (0 if rounds == 4 else 2)
    told = capsys.readouterr().out.splitlines()
    if rounds != 4:
        assert told == [f"error: --rounds {rounds}: must be even, and at least 4"]
    else:
        assert told[3].split()[-5:] == ["3.00", "s", "(1.50", "to", "4.50)"]


@pytest.mark.parametrize("program", [soak, supernodes])
def test_memory_of_devices_needs_linux(program, monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(sys, "argv", ["program"])
    monkeypatch.setattr(program, "Deployment", None)
    assert program.main() == 1
    told = "error: this needs Linux, which alone tells the memory (PSS) of a device\n"
    assert capsys.readouterr().out == told


def test_on_macos_memory_is_counted_in_bytes_and_there_is_no_lscpu(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    begin = datetime.now()
    lines = "\n".join(f"{begin + timedelta(seconds=n)} round {n}" for n in (1, 2, 3, 4))
    program = f"print({lines!r}); print('did weights=7 steps=5')"
    wait4 = os.wait4

    def waited(*given):
        process, status, _ = wait4(*given)
        return process, status, Mock(ru_maxrss=5_000_000)

    monkeypatch.setattr(os, "wait4", waited)
    assert measured([sys.executable, "-c", program], tmp_path).memory == 5
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "cores" in results.here(1, 0.0, {}, "cpu").machine


def test_ratios_are_of_the_same_repeat():
    slow, fast = (
        [Run(seconds, 0, 0, (0, 0)) for seconds in each] for each in ((2, 9, 8), (1, 3, 2))
    )
    assert ratios(slow, fast) == (3, 2, 4)


def test_on_a_gpu_other_contenders_do_what_the_page_says():
    assert contenders("fedavg", "cuda") == GPU_MODES and "pfl" in contenders("fedavg", "cpu")
    # its contenders are numbers of clients, which bring their own data
    assert contenders("scale", "cuda") == contenders("scale", "cpu") == tuple(SCALE)


def test_peers_train_our_model():
    ours, peers = models.build("cnn", (3, 32, 32), 10, seed=3), task.build()
    values = ours.state_dict().values()
    peers.load_state_dict(dict(zip(peers.state_dict(), values, strict=True)))
    x = torch.randn(4, 3, 32, 32)
    torch.testing.assert_close(peers(x), ours(x))


@pytest.mark.parametrize("part", ["--quick", "--contenders=serial", "--device=cuda"])
def test_a_part_of_a_comparison_does_not_replace_the_page(part, capsys):
    with pytest.raises(SystemExit):
        main(["fedavg", part, "--out", "benchmarks"])
    told = capsys.readouterr().err.rpartition("error: ")[2]
    assert told.startswith(part.split("=")[0]) and "needs --out" in told


@pytest.mark.slow
def test_floor_and_serial_do_the_same_work(tmp_path, capfd):
    main(["fedavg", "--quick", "--contenders", "floor;serial", "--out", str(tmp_path)])
    page = (tmp_path / "RESULTS.md").read_text("utf-8")
    assert "could not run" not in page
    assert "- `serial`" in page and "- `floor`" in page and "`pfl`" not in page
    assert f"50 steps a round, {WEIGHTS:,}" in " ".join(page.split())
    cells = {
        row.split("|")[1].strip(): row.split("|")[2:5]
        for row in page.splitlines()
        if row.startswith("| `")
    }
    floor, serial = (list(map(float, cells[f"`{name}`"])) for name in ("floor", "serial"))
    assert floor[1] == serial[2] == 1
    assert serial[1] == pytest.approx(serial[0] / floor[0], abs=0.02)
    assert (tmp_path / "results.png").stat().st_size > 1000
