"""`fedapps experiments repeat`: finished rows are made again and compared."""

import json
from dataclasses import asdict, replace

import pytest

from experiments import __main__ as command
from experiments.papers import files
from experiments.run.collect import measured
from experiments.run.repeat import Comparison, quickest
from experiments.run.store import Run, Store, numeric
from fedapps.core import config
from fedapps.serial import run_serial

TABLE = "perfreezeclip-sweep"
TINY = (
    'strategy="fedcmd" dataset="digits" num-clients=4 min-samples=4 alpha=1.0 num-rounds=3 '
    'fraction-train=0.5 local-epochs=1 batch-size=32 finetune-epochs=1 evaluate-rounds="1-2"'
)
READS = {"accuracy_personalized", "selected_before, last 2"}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run of a row."""
    flat = config.resolved(config.defaults() | config.parse([TINY]))
    folder = run_serial(flat | {"runs-dir": str(tmp_path_factory.mktemp("runs"))}, plots=False)
    made = Run(TABLE, "row@hot", "smoke", 0, numeric(flat), seconds=9.0, versions={"torch": "2"})
    return replace(made, **measured(folder, flat, READS))


def put(folder, *runs):
    """Write runs as the file of their table; return the store."""
    path = folder / "smoke" / f"{TABLE}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(asdict(run)) + "\n" for run in runs))
    return Store(folder)


@pytest.fixture
def repeat(tmp_path, capsys):
    """Return repeat(run) -> (status, the line that is printed) of the command on this run."""

    def call(run, *words):
        results = tmp_path / "results"
        put(results, run)
        places = ["--scale", "smoke", "--runs-dir", str(tmp_path / "again")]
        status = command.main(["--results", str(results), "repeat", TABLE, *places, *words])
        (line,) = capsys.readouterr().out.splitlines()
        return status, line

    return call


def test_a_row_comes_out_the_same(run, repeat):
    assert {"figures", "costs", "rounds", "clients", "events"} <= asdict(run).keys()
    assert run.figures.keys() >= READS and run.clients["client"] == [0, 1, 2, 3]
    status, printed = repeat(run)
    assert status == 0 and printed.startswith(f"{TABLE} row@hot s0: the same in 0:")


def test_what_is_different_is_named(run, repeat):
    scores = [*run.clients["accuracy_initial"][:-1], 0.123]
    before = run.figures["accuracy_personalized"]
    figures = run.figures | {"accuracy_personalized": before + 1e-9}
    clients = run.clients | {"accuracy_initial": scores}
    other = replace(run, figures=figures, clients=clients)
    held = sum(len(part) for part in (run.figures, run.costs, run.rounds, run.clients, run.events))
    status, printed = repeat(other)
    first = f"accuracy_personalized ({before + 1e-9} before, {before} now)"
    told = f"2 of {held} differ: {first}, accuracy_initial"
    assert status == 1 and f" s0: {told} in 0:" in printed


def test_a_row_that_fails_is_one_that_did_not_come_out(run, repeat):
    status, printed = repeat(replace(run, config=run.config | {"strategy": "fedap"}))
    assert status == 1 and "failed: " in printed and "BatchNorm" in printed


def test_what_would_run_is_printed_and_does_not(run, repeat, tmp_path):
    assert repeat(run, "--dry-run") == (0, f"0:09      {TABLE} row@hot s0")
    assert not (tmp_path / "again").exists()


def test_of_rows_that_say_their_versions_the_quickest_is_taken(run, tmp_path):
    slow = replace(run, seed=1, seconds=20.0)
    old = replace(run, seed=2, seconds=1.0, versions={})
    scored = replace(run, seed=3, seconds=1.0, note="scored again")
    trial = replace(run, cell="row~0@hot", seconds=1.0)
    nothing = replace(run, seed=4, seconds=1.0, figures={}, note="diverged")
    store, (table,) = put(tmp_path, slow, old, scored, trial, nothing, run), files.pick([TABLE])

    def taken(only="*", seeds=()):
        found = quickest(store, table, "smoke", only, seeds)
        return found and found.seed

    assert taken() == taken("row") == taken("row@hot") == taken("a,row") == 0
    assert taken(seeds=[1, 2]) == 1 and taken(seeds=[2, 3]) == 2 and taken(seeds=[3]) == 3
    assert taken("other") is taken(seeds=[4]) is None


def test_what_the_file_does_not_hold_is_not_compared(run):
    found = {part: asdict(run)[part] for part in ("figures", "costs", "rounds", "clients")}
    assert Comparison(replace(run, events={}), found).same
    assert not Comparison(replace(run, events={"vote fc1": 2}), found).same
