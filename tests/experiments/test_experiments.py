"""The papers' tables: their files, how a figure is read, what is kept and when it is done."""

import csv
import html
import json
import os
import re
import shutil
import threading
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy import stats

from experiments import HERE
from experiments import __main__ as runner
from experiments.figures import communication, costs, curves, over
from experiments.outcomes.cells import Figure, outcomes, over_key
from experiments.papers import files, readings
from experiments.papers.table import Cell, Claim, Job, Reading, Row, Scale, Table, Worst
from experiments.publish import charts, html_page, markdown_page, sections
from experiments.run import rescoring
from experiments.run.collect import collect
from experiments.run.dependent import settled, waits
from experiments.run.estimate import Estimate, at_work
from experiments.run.rescoring import can_be_scored_again
from experiments.run.runner import Runner, check, groups
from experiments.run.store import Run, Store, diverged, interrupted, numeric
from experiments.run.tuning import chosen, trials
from fedapps.compare import workers
from fedapps.compare.grid import read_seeds
from fedapps.compare.workers import Worker
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.core.files import held
from fedapps.report import directory
from fedapps.report.about import About
from fedapps.report.columns import columns_of
from fedapps.report.report import Report
from fedapps.report.summary import versions
from fedapps.serial import run_serial
from fedapps.tasks import CLASSIFICATION
from tests.support.marks import LONG, THOROUGH
from tests.support.papers import run_of

TINY = (
    'dataset="digits" num-clients=4 min-samples=4 alpha=1.0 num-rounds=3 fraction-train=0.5 '
    'local-epochs=1 batch-size=32 finetune-epochs=1 evaluate-every=0 evaluate-rounds="1-2"'
)
READ = "selected_before, last 10"


def test_costs_are_those_of_fedseqs_tables(tmp_path, capsys):
    files = {kind: tmp_path / f"costs.{kind}" for kind in ("csv", "png")}
    assert runner.main(["costs", "--csv", str(files["csv"]), "--plot", str(files["png"])]) == 0
    shown = capsys.readouterr().out
    with files["csv"].open() as file:
        rows = [(r["method"], r["unfreeze_rounds"], int(r["cost"])) for r in csv.DictReader(file)]
    assert rows == [
        ("FedAvg", "", 873_039_000_000),
        ("FedBABU", "", 865_344_000_000),
        ("FedSeq vanilla", "0,100,200", 314_912_000_000),
        ("FedSeq vanilla", "0,50,100", 590_128_000_000),
        ("FedSeq anti", "0,100,200", 838_880_000_000),
        ("FedSeq anti", "0,50,100", 852_112_000_000),
    ]
    for figure in ("832", "51,264", "524,800", "5,130", "582,026", "314,912,000,000"):
        assert figure in shown
    assert [line.split()[-1:] for line in shown.splitlines()].count(["+0"]) == 6
    assert max(map(len, shown.splitlines())) <= 100
    assert files["png"].read_bytes().startswith(b"\x89PNG")


def test_a_rounds_cost_is_the_parameters_that_it_trains_times_50_batches():
    """Vanilla unfreezes conv1, conv2 and fc1 at rounds 0, 100 and 200, counted from 0."""
    found = {(cost.method, cost.unfreeze_rounds): cost for cost in costs.costs(costs.PAPER)}
    vanilla = found["FedSeq vanilla", "0,100,200"]
    millions = [size * 50 / 1e6 for size in (832, 832 + 51_264, 832 + 51_264 + 524_800)]
    ends = [(1, 100), (101, 200), (201, 300)]
    phases = zip(ends, millions, strict=True)
    assert vanilla.corners() == [(end, value) for pair, value in phases for end in pair]
    assert found["FedAvg", ""].corners() == [(1, 29.1013), (300, 29.1013)]


def test_costs_of_another_model_and_shape(capsys):
    options = ["--model", "lenet5", "--shape", "3,32,32", "--unfreeze-rounds", "0,10,20"]
    assert runner.main(["costs", "--rounds", "30", *options]) == 0
    shown = capsys.readouterr().out
    assert "62,050" in shown and "0,10,20" in shown
    assert "+" not in shown, "the published figures are for another model"


@pytest.fixture
def table(base):
    """A table with two rows, one column each, at a scale of tiny runs."""
    rows = (
        Row("avg", 'strategy="fedavg"', READ, 50.0),
        Row("per", 'strategy="fedper"', published={"hot": 60.0}),
    )
    scales = {"smoke": Scale(TINY, seeds="0-1")}
    return Table("t", "T", base, rows=rows, columns={"hot": "lr=0.1"}, scales=scales)


@pytest.fixture
def store(tmp_path):
    """An empty store."""
    return Store(tmp_path / "results")


def replace_scale(table, **changes):
    """Return the scales of a table, with another `smoke`."""
    return {"smoke": msgspec.structs.replace(table.scales["smoke"], **changes)}


def test_every_cell_of_every_table_is_a_valid_run_config():
    columns = columns_of(CLASSIFICATION).rounds
    for table in files.tables().values():
        check([Job(cell, 0) for scale in table.scales for cell in table.cells(scale)], columns)
        for reads in (claim.reads for claim in table.claims if claim.reads):
            readings.check(reads, columns)


# Their results were published before this was noticed; the pages say which trials are the same.
SEARCHED_IN_VAIN = {
    ("benchmark-digits", "fedas", "finetune-epochs"),
    ("benchmark-digits", "fedrep", "local-epochs"),
    ("heart", "fedas", "finetune-epochs"),
    ("heart", "fedrep", "local-epochs"),
    ("heart", "pfedme", "local-epochs"),
    ("shakespeare", "fedrep", "local-epochs"),
    ("watch", "fedas", "finetune-epochs"),
    ("watch", "fedrep", "local-epochs"),
    ("watch", "pfedme", "local-epochs"),
}


def test_no_search_lists_a_key_that_the_method_does_not_read():
    """Trials that differ by nothing else are the same, so that fewer settings are tried."""
    found = set()
    for table in files.tables().values():
        for cell in (cell for scale in table.scales for cell in table.cells(scale)):
            flat = numeric(cell.config(0))
            ignored = registry.unused(str(flat["strategy"]), flat)
            found |= {(table.name, cell.row.name, key) for key in cell.row.search if key in ignored}
    assert found == SEARCHED_IN_VAIN


def test_a_table_is_plotted_over_a_key_that_all_its_columns_set():
    over = {table.name: table for table in files.tables().values() if table.over}
    assert "fedcmd-participation" in over
    for table in over.values():
        for settings in table.columns.values():
            assert f" {table.over}=" in f" {settings}", table.name


def test_where_a_paper_compares_rows_we_test_a_claim():
    for table in files.tables().values():
        compared = [row for row in table.rows if row.published]
        assert table.claims or len(compared) < 2, table.name


def test_fedbabus_tables_publish_the_same_figure_for_the_same_run():
    published = {}
    for name, table in files.tables().items():
        for cell in table.cells("paper") if name.startswith("fedbabu") else []:
            run = str(numeric(cell.config(0)))
            for reading in cell.row.readings:
                figure = reading.published_in(cell.column)
                other = published.setdefault((run, reading.reads), figure)
                assert other == figure, f"{name}, {cell.name}"


def test_fedrep_is_not_the_same_run_in_two_columns():
    """It ignores `local-epochs`, so a column that sets only this key would change nothing."""
    for table in files.tables().values():
        seen = {}
        for cell in table.cells("paper"):
            flat = numeric(cell.config(0))
            if "fedrep.head-epochs" in flat:
                text = str({key: flat[key] for key in flat if key != "local-epochs"})
                assert seen.setdefault(text, cell.name) == cell.name, table.name


def test_a_cell_lays_row_column_and_scale_over_the_base(table):
    avg, per = table.cells("smoke")
    assert (avg.name, per.name) == ("avg@hot", "per@hot")
    flat = per.config(3)
    wanted = {"model": "cnn", "strategy": "fedper", "lr": 0.1, "num-clients": 4, "seed": 3}
    assert {key: flat[key] for key in wanted} == wanted
    flat["lr"] = 9.0  # a caller's changes are its own
    texts = [str(table.base_file), "lr=0.1", 'strategy="fedper"', TINY]
    for seed in (3, 4):
        assert per.config(seed) == config.parse([*texts, f"seed={seed}"])
    assert [cell.name for cell in table.cells("smoke", "p*")] == ["per@hot"]
    told = "scale smoke: row pre: must match one of avg, per, did you mean per"
    with pytest.raises(RunError, match=told):
        files.having([table], "smoke", "pre")
    with pytest.raises(RunError, match="no scale paper; there is smoke"):
        table.cells("paper")


def test_a_run_is_estimated_by_those_most_like_it(table, store):
    avg, per = table.cells("smoke")

    def seconds(cell, seed):
        return Estimate(store.runs()).seconds(cell, seed)

    assert seconds(avg, 0) is None
    far = replace(run_of(per, 0), table="elsewhere")
    store.save(per, replace(far, config=far.config | {"model": "conv4"}, seconds=45.0))
    assert seconds(avg, 0) is None, "another model tells nothing"
    store.save(per, far)
    assert seconds(avg, 0) == 30.0, "the same data and model"
    store.save(per, run_of(per, 0, seconds_per_round=7.0, seconds=24.0))
    assert seconds(avg, 0) == 24.0, "another row of the table"
    for seed, took in enumerate((40.0, 9e4, 42.0)):
        store.save(avg, run_of(avg, seed, seconds_per_round=2.0, seconds=took))
    assert seconds(avg, 3) == 42.0, "the row itself, with its fine-tuning; one run was paused"
    store.save(avg, run_of(avg, 1, seconds=9e4, seconds_at_work=41.0))
    assert seconds(avg, 3) == 41.0
    twice = replace(avg, extra=f"local-epochs={2 * avg.config(0)['local-epochs']}")
    assert seconds(twice, 0) == 2 * seconds(avg, 3), "as many epochs again"


def test_a_row_that_takes_long_leaves_the_others_theirs(table, store, tmp_path, monkeypatch):
    jobs = [Job(cell, seed) for seed in (0, 1) for cell in table.cells("smoke")]
    made = Runner(store, tmp_path, "", jobs=2)
    known = dict(zip([(job.cell.name, job.seed) for job in jobs], (60, 30, 90, None), strict=True))
    monkeypatch.setattr(Estimate, "seconds", lambda _, cell, seed: known[cell.name, seed])
    made.left = dict.fromkeys(jobs)
    made.active = {0: (jobs[0], tmp_path, time.monotonic() - 1000)}
    assert made.remaining() == pytest.approx((30 + 90 + 60) / 2, abs=1)
    made.left = dict.fromkeys(jobs[:3])
    assert made.remaining() == pytest.approx(90, abs=1), "one row is done by one process"
    made.left = {}
    assert made.remaining() == 0


def test_estimates_are_made_anew_only_when_there_are_new_runs(table, store, tmp_path, monkeypatch):
    jobs = [Job(cell, 0) for cell in table.cells("smoke")]
    made, asked = Runner(store, tmp_path, ""), []
    made.left, made.active, seconds = dict.fromkeys(jobs), {}, Estimate.seconds
    counted = lambda self, cell, seed: asked.append(cell) or seconds(self, cell, seed)  # noqa: E731
    monkeypatch.setattr(Estimate, "seconds", counted)
    assert made.remaining() is made.remaining() is None and len(asked) == 2
    other = table.cells("smoke")[0]
    store.save(other, run_of(other, 1, seconds=12.0, seconds_per_round=4.0))
    del made.left[jobs[0]]
    assert made.remaining() == made.remaining() == 12.0 and len(asked) == 3


def test_selected_before_pools_the_next_rounds_clients():
    """By hand: round t is scored with those that `Generator.choice` draws for round t + 1."""
    flat = {"num-rounds": 5, "num-clients": 6, "fraction-train": 0.5, "seed": 9}
    rng, lines = np.random.default_rng(1), []
    right, size = rng.integers(0, 9, (6, 6)), rng.integers(9, 20, 6)
    for round_ in range(1, 6):
        for client in range(6):
            accuracy = right[round_, client] / size[client]
            values = {"round": round_, "client": client, "num_test": size[client]}
            lines.append({k: str(v) for k, v in (values | {"accuracy_initial": accuracy}).items()})
    from zlib import crc32

    means = []
    for round_ in (1, 2, 3, 4):
        draws = np.random.default_rng([9, crc32(b"sample"), round_ + 1])
        drawn = draws.choice(6, 3, replace=False)
        means.append(right[round_, drawn].sum() / size[drawn].sum())
    for last, those in ((2, means[2:]), (10, means)):  # nobody was scored before round 1
        found = readings.selected_before(lines, flat, last)
        assert found == pytest.approx(np.mean(those), abs=1e-15)
    missing = [line for line in lines if line["round"] != "4"]
    with pytest.raises(RunError, match='set evaluate-rounds = "3-4"'):
        readings.selected_before(missing, flat, 2)


@pytest.mark.parametrize("key", ["momentum=0.5", "threads=7", "presum=true"])
def test_a_row_is_done_until_a_key_of_its_config_changes(table, store, key):
    """Also one that changes no more than the last digits."""
    cell, seed = table.cells("smoke")[1], 0
    assert store.find(cell, seed) is None
    store.save(cell, run_of(cell, seed))
    assert Store(store.folder).find(cell, seed).seed == seed
    assert store.find(cell, 1) is None
    other = Row("per", f'strategy="fedper" {key}')
    assert store.find(Cell(table, other, "hot", "smoke"), seed) is None


def test_tables_share_runs_and_new_keys_with_defaults_change_nothing(table, store):
    cell = table.cells("smoke")[1]
    run = run_of(cell, 0)
    del run.config["evaluate-on"]  # a run from before there was such a key, which has its default
    store.save(cell, run)
    renamed = Cell(table, Row("same", 'strategy="fedper"'), "hot", "smoke")
    assert store.find(renamed, 0) == run
    machine = Row("x", 'strategy="fedper" data-root="/elsewhere" fedprox.prox-mu=3.0')
    assert store.find(Cell(table, machine, "hot", "smoke"), 0) == run


def test_threads_find_what_others_save(table, store, monkeypatch):
    """Of two that look at the same time, one does not lose what the other has just read."""
    cell, others, read = table.cells("smoke")[1], Store(store.folder), Store._read_again
    monkeypatch.setattr(Store, "_read_again", lambda *of: [read(*of), time.sleep(0.001)][0])

    def save_and_find(seed):
        others.save(cell, run_of(cell, seed))
        return store.find(cell, -seed) is None and any(run.seed == seed for run in store.runs())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(save_and_find, range(1, 60)))


def test_run_directories_below_the_results_are_not_taken_for_results(table, store):
    cell = table.cells("smoke")[0]
    store.save(cell, run_of(cell, 0))
    run = store.folder / "runs" / "fedavg-digits"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"method": "fedavg"}')
    assert [found.cell for found in Store(store.folder).runs()] == [cell.name]


def test_a_run_that_comes_in_the_same_tick_of_the_clock_is_seen(table, store):
    first, second = table.cells("smoke")
    store.save(first, run_of(first, 0))
    folder, other, now = store.path(first, 0).parent, Store(store.folder), time.time() + 3600
    os.utime(folder, (now, now))
    assert [run.cell for run in other.runs()] == [first.name]
    store.save(second, run_of(second, 0))
    os.utime(folder, (now, now))
    assert [run.cell for run in other.runs()] == [first.name, second.name]


def test_nobody_runs_what_another_process_holds(store):
    with store.claimed("a training") as mine:
        (lock,) = (store.folder / ".locks").iterdir()
        with held(lock) as free:
            assert mine and not free
        with store.claimed("another") as other:
            assert other
    with store.claimed("a training") as again:
        assert again


@pytest.mark.slow
def test_rows_run_side_by_side_once_and_one_that_fails_is_named(table, store, tmp_path, capfd):
    bad = Cell(table, Row("bad", 'strategy="fedap"'), "hot", "smoke")  # no BatchNorm
    jobs = [Job(cell, 0) for cell in (*table.cells("smoke"), bad)]
    made = Runner(store, tmp_path / "runs", "~/fedapps-data", jobs=2, reads={READ})
    assert made.run(jobs) == ["t bad@hot s0"]
    assert "BatchNorm" in capfd.readouterr().err
    runs = {run.cell: run for run in Store(store.folder).runs()}
    assert set(runs) == {"avg@hot", "per@hot"}
    avg = runs["avg@hot"]
    assert avg.rounds["round"] == [1, 2, 3] and len(avg.clients["client"]) == 4
    lines = directory.lines(next((tmp_path / "runs").glob("t-avg*/clients.csv")))
    flat = table.cells("smoke")[0].config(0)
    assert avg.figures[READ] == readings.selected_before(lines, flat, 10)
    again = [line for line in lines if line["round"] == "2"]
    assert all(line["accuracy_initial"] for line in again)
    assert {line["accuracy_personalized"] for line in again} == {""}, "nobody personalizes in it"
    assert avg.rounds["accuracy_personalized"][:2] == [None, None]
    before = sorted((tmp_path / "runs").iterdir())
    assert made.run(jobs[:2]) == [] and sorted((tmp_path / "runs").iterdir()) == before


@pytest.mark.parametrize("cause", [
    "all failed; client 2: training diverged",
    "client 2, train: trace, which Client sends, is as large as 2e+06: at most 1e+06 (max-value)",
])  # fmt: skip
def test_a_run_that_diverges_is_done_and_its_table_says_so(
    cause, table, store, tmp_path, monkeypatch
):
    def diverge(*_, **__):
        raise RunError(f"round 1: {cause}; see FILE")

    monkeypatch.setattr(Worker, "run", diverge)
    cell = table.cells("smoke")[0]
    made = Runner(store, tmp_path / "runs", "~/fedapps-data")
    assert made.run([Job(replace(cell, suffix="~0", extra="lr=9.0"), 0), Job(cell, 0)]) == []
    kept = Store(store.folder).find(cell, 0)
    assert kept.figures == {} and kept.note == f"round 1: {cause}"
    lines = "\n".join(markdown_page.markdown(sections.section(store, table)))
    assert "| avg@hot | 0 | training diverged |  |" in lines and "1 of 2 rows" in lines
    store.save(cell, run_of(cell, 1, figures={READ: 0.5}))
    lines = "\n".join(markdown_page.markdown(sections.section(store, table)))
    assert "| avg@hot | 1 | " in lines and "|  | 0 | training diverged |  |" in lines


def test_columns_side_by_side_and_the_worst_of_them(table, store):
    """Two rows in three columns; a seed that diverged makes its column the worst."""
    columns = {"none": "lr=0.1", "hot": "lr=0.2", "odd": "lr=0.3"}
    wide = replace(table, columns=columns, side_by_side=True)
    read = ["accuracy_personalized", "accuracy_personalized", READ]
    for cell in wide.cells("smoke"):
        value = {"none": 0.9, "hot": 0.4, "odd": 0.6}[cell.column]
        for seed in (0, 1):
            figures = {name: value + seed / 50 for name in read}
            store.save(cell, run_of(cell, seed, figures=figures))
    odd = next(cell for cell in wide.cells("smoke") if cell.name == "per@odd")
    store.save(odd, diverged(odd, 1, "training diverged"))
    part = sections.section(store, wide)
    half = stats.t.ppf(0.975, 1) * 1.0  # the standard error of two values that differ by 2
    assert part.heads == ["row", "seeds", "reading", *columns]
    assert part.rows[1] == [
        "per", "0,1", "personalized", f"91.0 ± {half:.1f}", f"41.0 ± {half:.1f}",
        "60.0, 1 diverged",
    ]  # fmt: skip
    (chart,) = part.figures
    told = [hit.title for hit in chart.hits]
    assert told == ["avg: none 91.0, hot 41.0", "per: none 91.0, odd 0.0, training diverged"]
    assert chart.title.endswith("(diamond); where a training diverged, 0")


def test_settings_are_those_of_the_best_trial_and_never_such_that_diverge(table, store):
    row = Row("x", 'strategy="fedper"', READ, search={"lr": [0.1, 1.0, 10.0, 2.0]})
    cell = replace(table.cells("smoke")[0], row=row)
    scores = {0.1: {READ: 0.6}, 1.0: {READ: 0.7}, 10.0: {}, 2.0: {READ: 0.7}}
    first = next(rate for trial in trials(cell) if (rate := trial.config(0)["lr"]) in (1.0, 2.0))
    for trial in trials(cell):
        assert chosen(store, cell) is None
        worst = diverged(trial, 0, "training diverged")
        store.save(trial, replace(worst, figures=scores[trial.config(0)["lr"]]))
    assert chosen(store, cell) == f"lr={first}", "of two that are equally good, always the first"


def test_unwritable_results_end_the_run_before_it_trains(table, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(files, "tables", lambda: {table.name: table})
    monkeypatch.setattr(Runner, "run", lambda *_: pytest.fail("it trains"))
    (tmp_path / "taken").write_text("a file, not a folder")
    wanted = ["--results", str(tmp_path / "taken"), "run", "t", "--scale", "smoke"]
    assert runner.main(wanted) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"error: --results {tmp_path / 'taken'}: cannot be written: Not a directory"


@pytest.fixture
def mixed(table):
    """The table, with a row that names the worst two fifths of the clients of row `avg`."""
    worst = Worst("avg", 0.4, "fedcmd.other-clients")
    row = Row("mix", 'strategy="fedcmd"', READ, worst=worst)
    return replace(table, rows=(table.rows[0], row))


def ended(table, store, seed, **accuracies):
    """Store a run of row `avg` with the accuracy of each client, such as `c3=0.5`."""
    cell = table.cells("smoke", "avg")[0]
    clients = {"client": [int(name[1:]) for name in accuracies]}
    clients["accuracy_personalized"] = [*accuracies.values()]
    store.save(cell, run_of(cell, seed, clients=clients))


def test_a_row_names_the_worst_clients_of_another_row_seed_by_seed(mixed, store):
    ended(mixed, store, 0, c0=0.5, c1=0.2, c4=0.9, c7=0.1, c9=0.3)
    ended(mixed, store, 2, c0=0.2, c1=0.3, c2=0.2)
    cell = [*settled(store, mixed, "smoke")][1]
    assert cell.config(0)["fedcmd.other-clients"] == "1,7", "the two of five that are worst"
    assert cell.config(2)["fedcmd.other-clients"] == "0", "one of three, in a tie the first"
    assert [waits(cell, seed) for seed in (0, 1, 2)] == [False, True, False]
    assert cell.config(1)["fedcmd.other-clients"] == config.defaults()["fedcmd.other-clients"]
    store.save(cell, run_of(cell, 0))
    assert store.find(cell, 0) and not store.find(cell, 1)
    ended(mixed, store, 0, c0=0.0, c1=0.2, c4=0.9, c7=0.1, c9=0.3)
    cell = [*settled(store, mixed, "smoke")][1]
    assert not store.find(cell, 0), "another choice is another run"


def test_a_config_says_if_it_lacks_what_another_row_chooses(mixed, store, monkeypatch, capsys):
    monkeypatch.setattr(files, "tables", lambda: {mixed.name: mixed})
    ended(mixed, store, 0, c0=0.5, c1=0.2, c4=0.9, c7=0.1, c9=0.3)
    lacks = ", whose settings depend on runs that are not done"
    for seed, more, clients in ((0, "", "1,7"), (1, lacks, "")):
        words = ["config", "t", "mix", "--scale", "smoke", "--seed", str(seed)]
        assert runner.main(["--results", str(store.folder), *words]) == 0
        first, _, text = capsys.readouterr().out.partition("\n")
        assert first == f"# t mix@hot{more}"
        assert tomllib.loads(text)["fedcmd"].get("other-clients", "") == clients


def test_a_row_runs_after_the_one_that_it_needs(mixed, store, monkeypatch, capsys):
    monkeypatch.setattr(files, "tables", lambda: {mixed.name: mixed})
    called = []

    def pretend(self, jobs):
        called.append([job.name for job in jobs])
        for job in jobs:
            if job.cell.row.name == "avg" and job.seed == 0:
                ended(mixed, store, 0, c0=0.5, c1=0.2)
        return [job.name for job in jobs if job.seed == 1]

    monkeypatch.setattr(Runner, "run", pretend)
    wanted = ["--results", str(store.folder), "run", "t", "--scale", "smoke", "--only", "mix"]
    assert runner.main([*wanted, "--dry-run"]) == 0
    avg, _, mix, _, total = capsys.readouterr().out.splitlines()
    assert (avg, mix) == ("unknown   t avg@hot s0", "unknown   t mix@hot s0, after the others")
    assert total == "at least 0:00 with --jobs 1" and called == []
    assert runner.main(wanted) == 1
    assert called == [["t avg@hot s0", "t avg@hot s1"], ["t mix@hot s0"]]
    assert capsys.readouterr().err.splitlines() == [
        "t mix@hot s1: has not run, because it needs others", "error: t avg@hot s1 failed"
    ]  # fmt: skip


def test_what_ctrl_c_ends_has_not_failed(table, store, tmp_path, monkeypatch, capsys):
    began, ended, called = threading.Event(), threading.Event(), []

    def die(worker, flat, log, plots, at_once):
        called.append(log)
        began.set()
        assert ended.wait(60)
        raise RunError("the worker died (exit -15, out of memory?)")

    def interrupt(*arguments):
        assert began.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(Worker, "run", die)
    monkeypatch.setattr(workers, "stop", lambda _: ended.set())
    monkeypatch.setattr("experiments.run.runner.REFRESH", 0.01)
    monkeypatch.setattr("experiments.run.screen.Screen.refresh", interrupt)
    before, made = {*threading.enumerate()}, Runner(store, tmp_path / "runs", "~/fedapps-data")
    with pytest.raises(KeyboardInterrupt):
        made.run([Job(cell, 0) for cell in table.cells("smoke")])
    for thread in {*threading.enumerate()} - before:
        thread.join(60)
    assert len(called) == 1 and made.failed == []
    assert capsys.readouterr().err == ""


def test_what_cannot_be_reported_ends_the_command(table, store, tmp_path, monkeypatch):
    """Else the rest of the rows would be missing, and the status would be 0."""

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Worker, "run", full)
    monkeypatch.setattr("experiments.run.screen.Screen.say", full)
    with pytest.raises(OSError, match="No space left"):
        Runner(store, tmp_path, "~/fedapps-data").run([Job(table.cells("smoke")[0], 0)])


@pytest.mark.slow
def test_a_row_that_was_interrupted_goes_on(table, store, tmp_path, monkeypatch):
    """In the directory that it had, to the figures that it would have had."""
    job = Job(table.cells("smoke")[0], 0)
    write = Report.round

    def interrupt(report, row):
        if row.round == 2:
            raise KeyboardInterrupt
        write(report, row)

    with monkeypatch.context() as patch:
        patch.setattr(Report, "round", interrupt)
        places = {"runs-dir": str(tmp_path / "runs"), "run-name": "begun"}
        with pytest.raises(KeyboardInterrupt):
            run_serial(job.cell.config(0) | places, plots=False)
    made = Runner(store, tmp_path / "runs", "~/fedapps-data", jobs=1)
    assert made.run([job]) == []
    folders = [path.name for path in (tmp_path / "runs").iterdir() if path.is_dir()]
    assert folders == ["begun"]
    whole = run_serial(job.cell.config(0) | {"runs-dir": str(tmp_path / "whole")}, plots=False)
    assert store.find(job.cell, 0).figures == collect(job.cell, 0, whole).figures


def test_a_row_that_began_on_a_gpu_begins_anew_without_one(table, tmp_path, monkeypatch):
    flat = table.cells("smoke")[0].config(0) | {"runs-dir": str(tmp_path)}
    folder = tmp_path / "begun"
    (folder / directory.CHECKPOINTS).mkdir(parents=True)
    (folder / directory.CHECKPOINTS / "round-000001.fedapps").touch()
    directory.configure(folder, flat)
    for began in ("cpu", "cuda"):
        msgspec.structs.replace(About.new(), processor=began).write(folder)
        for here in (True, False):
            monkeypatch.setattr("torch.cuda.is_available", lambda here=here: here)
            assert interrupted(flat) == (folder if here or began == "cpu" else None)


def personalizing(table, strategy="fedbabu"):
    """Three jobs with the same training, and one with another."""
    row = Row("x", f'strategy="{strategy}"', also=(Reading("train_loss"),))
    cell = replace(table.cells("smoke")[0], row=row)
    tried = (
        "finetune-epochs=1",
        'finetune-epochs=2 finetune-part="head" score-without-head=true',
        "finetune-epochs=0 finetune-lr=0.3",
    )
    last = 'evaluate-rounds=""'  # the scale's config lies over the row's
    cells = [replace(cell, extra=f"{last} {t}", suffix=f"-{n}") for n, t in enumerate(tried)]
    other = replace(cell, extra=f"{last} finetune-epochs=1 lr=0.2", suffix="-other")
    return [Job(cell, 0) for cell in (cells[0], other, *cells[1:])]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["fedbabu", THOROUGH("fedavg")])
def test_rows_that_personalize_differently_are_trained_once(table, store, tmp_path, strategy):
    """To the figures, curves and clients that they have when each is run alone."""
    jobs = personalizing(table, strategy)
    assert Runner(store, tmp_path / "runs", "~/fedapps-data").run(jobs) == []
    assert len([*(tmp_path / "runs").glob("*/summary.json")]) == 2
    for job in (jobs[0], *jobs[2:]):
        own = {"runs-dir": str(tmp_path / job.cell.suffix)}
        alone = run_serial(job.cell.config(0) | own, plots=False)
        whole, found = collect(job.cell, 0, alone), store.find(job.cell, 0)
        for name in ("config", "figures", "costs", "rounds", "clients", "versions"):
            assert getattr(found, name) == getattr(whole, name), (job.name, name)
        assert bool(found.note) == (job is not jobs[0])
        assert "train_loss" in found.figures


def test_a_training_is_used_again_with_its_result_and_versions(table, store, tmp_path):
    first, other, later, _ = personalizing(table)
    store.save(first.cell, run_of(first.cell, 0))
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.toml").write_text(config.to_toml(first.cell.config(0)))

    def groups_with(found):
        (folder / "summary.json").write_text(json.dumps({"versions": found}))
        work = Runner(Store(store.folder), tmp_path, "~/fedapps-data")
        return [(group.jobs, group.base) for group in work.open_groups([first, other, later])]

    assert groups_with(versions()) == [([other], None), ([later], folder)]
    assert groups_with(versions() | {"torch": "1.0"}) == [([other], None), ([later], None)]
    store.path(first.cell, 0).unlink()
    assert groups_with(versions()) == [([first, later], None), ([other], None)]
    store.save(first.cell, diverged(first.cell, 0, "training diverged"))
    assert groups_with(versions()) == [([other], None), ([later], None)], "no model came of it"


def toy_training(monkeypatch, while_it_trains):
    """Training that takes no time; returns the names of what is trained and scored."""
    trained, scored = [], []

    def train(worker, flat, log, plots, at_once):
        folder = finished_run(flat)
        trained.append(folder.name[:-16])  # without the time
        while_it_trains(flat)
        return folder

    def rescored(cell, seed, base, clients):
        scored.append(f"t-{cell.name}-s{seed}")
        return run_of(cell, seed)

    monkeypatch.setattr(Worker, "run", train)
    monkeypatch.setattr(Worker, "call", lambda worker, log, score, base, flat: base)
    monkeypatch.setattr("experiments.run.runner.collect", lambda cell, seed, *_: run_of(cell, seed))
    monkeypatch.setattr("experiments.run.runner.RETRY", 0.01)
    monkeypatch.setattr(rescoring, "can_be_scored_again", lambda base, flat: True)
    monkeypatch.setattr(rescoring, "rescored", rescored)
    return trained, scored


def finished_run(flat):
    """Return a run directory with as much of a finished run as a later look needs."""
    folder = Path(flat["runs-dir"]) / flat["run-name"]
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config.to_toml(flat))
    (folder / "summary.json").write_text(json.dumps({"versions": versions()}))
    return folder


def test_two_runners_train_a_model_once(table, store, tmp_path, monkeypatch, capsys):
    """The second begins while the first one trains for three rows, and has a row of its own."""
    first, other, second, third = personalizing(table)

    def begin(flat):
        if len(trained) == 1:
            later = Runner(Store(store.folder), tmp_path, "~/fedapps-data", jobs=2)
            assert later.run([first, second, third, other]) == []

    trained, scored = toy_training(monkeypatch, begin)
    assert Runner(store, tmp_path, "~/fedapps-data").run([first, second, third]) == []
    assert trained == ["t-x@hot-0-s0", "t-x@hot-other-s0"]
    assert scored == ["t-x@hot-1-s0", "t-x@hot-2-s0"]
    assert capsys.readouterr().err.count("is running in another process") == 3


def test_what_another_process_holds_is_tried_again(table, store, tmp_path, monkeypatch):
    first, other, second, third = personalizing(table)
    elsewhere = ExitStack()

    def end(flat):  # the other process has trained, saved its row, and ended
        finished_run(first.cell.config(0) | {"runs-dir": str(tmp_path), "run-name": "elsewhere"})
        Store(store.folder).save(first.cell, run_of(first.cell, 0))
        elsewhere.close()

    trained, scored = toy_training(monkeypatch, end)
    (training,) = {group.training for group in groups([first, second, third])}
    assert elsewhere.enter_context(Store(store.folder).claimed(training))
    made = Runner(store, tmp_path, "~/fedapps-data")
    assert made.run([second, other, third]) == []
    assert trained == ["t-x@hot-other-s0"] and scored == ["t-x@hot-1-s0", "t-x@hot-2-s0"]


def test_a_row_that_was_repeated_and_interrupted_is_scored_by_its_own_training(table, tmp_path):
    job = personalizing(table)[0]
    flat = job.cell.config(0) | {"runs-dir": str(tmp_path)}
    first, again = (finished_run(flat | {"run-name": name}) for name in ("row", "again-row"))
    written = {"versions": versions(), "finished": False}
    (again / "summary.json").write_text(json.dumps(written))
    (group,) = groups([job])
    made = [Run("t", "row", "cpu", 0, numeric(flat))]
    assert rescoring.model(group.training, made, tmp_path) == first


@pytest.mark.parametrize("alone", [
    "evaluate-every=2", 'evaluate-rounds="1"', "evaluate-clients=2", "checkpoint-every=0",
    'unseen-clients="2"',
])  # fmt: skip
def test_runs_that_are_more_than_a_training_and_its_end_are_trained_each(table, alone):
    jobs = personalizing(table)
    assert [group.jobs for group in groups(jobs)] == [[jobs[0], *jobs[2:]], [jobs[1]]]
    key = alone.partition("=")[0]
    extras = [job.cell.extra.replace('evaluate-rounds=""', "") for job in jobs]
    rest = "" if key == "evaluate-rounds" else 'evaluate-rounds=""'
    pairs = zip(jobs, extras, strict=True)
    own = [Job(replace(job.cell, extra=f"{extra} {rest} {alone}"), 0) for job, extra in pairs]
    assert [len(group.jobs) for group in groups(own)] == [1] * 4


def test_a_run_with_a_row_beside_its_rounds_is_not_scored_again(tmp_path):
    (tmp_path / "rounds.csv").write_text("round\n1\n2\n3\n")
    assert can_be_scored_again(tmp_path, {"num-rounds": 3})
    (tmp_path / "rounds.csv").write_text("round\n1\n2\n3\n3\n")  # fine-tuning, of FedSeq
    assert not can_be_scored_again(tmp_path, {"num-rounds": 3})


def test_a_figure_has_students_interval_over_seeds():
    figure = Figure((10.0, 12.0, 14.0), published=13.0)
    assert figure.mean == 12.0 and figure.difference == -1.0
    assert figure.half == pytest.approx(4.302653 * 2 / 3**0.5, rel=1e-6)  # t(0.975, 2 degrees)
    assert Figure((10.0,), None).half is None


def test_a_chart_has_several_labels_even_where_few_round_numbers_fit():
    line = {"fedavg": [(1.0, 7.0), (2.0, 54.0)]}
    drawn = charts.over_x("accuracy", "round", "%", line)
    assert [tick.label for tick in drawn.y_ticks] == ["10", "20", "30", "40", "50"]
    once = charts.over_x("accuracy", "round", "%", {"fedavg": [(20.0, 7.0)]})
    assert [tick.label for tick in once.x_ticks] == ["20"]


def test_a_beginning_stands_for_all_tables_that_have_it(capsys):
    stems = sorted(path.stem for path in (HERE / "tables").glob("*.toml"))

    def names(*words):
        return sorted(table.name for table in files.pick(words))

    assert names("benchmark") == ["benchmark-cifar10", "benchmark-digits"]
    assert names("fedseq") == [name for name in stems if name.startswith("fedseq")]
    assert names("fedcmd-layers") == ["fedcmd-layers"] and names("all") == stems
    assert names("fedseq-bases", "fedseq", "fedseq") == names("fedseq")
    options = ["--scale", "smoke", "--only", "fedavg-ft", "--dry-run", "--seeds", "0"]
    assert runner.main(["run", "benchmark", *options]) == 0
    shown = capsys.readouterr().out
    assert "benchmark-cifar10 fedavg-ft" in shown and "benchmark-digits fedavg-ft" in shown


def test_unknown_tables_are_named():
    kinds = (
        "attacks, benchmark, fedbabu, fedcmd, fedfc, fedseq, heart, perfreezeclip, shakespeare, "
        "watch"
    )
    for unknown, hint in (("nope", "watch$"), ("fedsec", "watch, did you mean fedseq\\?$")):
        told = f"table {unknown}: must be all, the beginning of several names .{kinds}., or one of "
        with pytest.raises(RunError, match=f"{told}attacks-digits, .*{hint}"):
            files.pick([unknown])


def test_a_pattern_of_only_has_to_match_a_row_of_some_table(table):
    rows = (Row("ditto", 'strategy="ditto"'),)
    other = replace(table, name="other", rows=rows)
    both = [table, other]
    assert files.having(both, "smoke", "ditto") == [other]
    assert files.having(both, "smoke", "avg@hot, d*") == both
    with pytest.raises(RunError, match="row avg@cold: must match one of avg, per, ditto"):
        files.having(both, "smoke", "ditto,avg@cold")


def test_rows_have_what_their_table_or_the_one_that_it_is_like_says(written):
    made = written(
        toy="""
            title = "Toy"
            base = "fedavg"
            yardstick = "one"
            [scales.cpu]
            seeds = "0-4"
            [each_row]
            reads = "accuracy_initial"
            search = { lr = [0.1, 0.2], local-epochs = [1, 5] }
            [[rows]]
            name = "one"
            search = { momentum = [0.5] }
            [[rows]]
            name = "two"
            reads = "accuracy_personalized"
            search = { local-epochs = [2], momentum = [0.5], lr = [] }
            """,
        like="""
            title = "Alike"
            like = "toy"
            [each_row]
            search = { lr = [0.2] }
            [[rows]]
            name = "two"
            search = { alpha = [0.3] }
            [[rows]]
            name = "three"
            """,
    )
    like, toy = made["like"], made["toy"]
    assert (like.title, like.base, like.yardstick) == ("Alike", "fedavg", "one")
    assert like.scales == toy.scales
    assert [(row.name, row.reads, row.search) for row in (*toy.rows, *like.rows)] == [
        ("one", "accuracy_initial", {"lr": [0.1, 0.2], "local-epochs": [1, 5], "momentum": [0.5]}),
        ("two", "accuracy_personalized", {"local-epochs": [2], "momentum": [0.5]}),
        ("one", "accuracy_initial", {"lr": [0.2], "momentum": [0.5]}),
        ("two", "accuracy_personalized", {"lr": [0.2], "alpha": [0.3]}),
        ("three", "accuracy_initial", {"lr": [0.2]}),
    ]
    for other in ("like", "none"):
        with pytest.raises(RunError, match=f"^like.toml: like {other}: must be a table that is n"):
            written(like=f'title = "Alike"\nlike = "{other}"\n')


@pytest.mark.parametrize(("names", "told"), [
    ('rows = "avg,pre"', "scale cpu: row pre: must match one of avg, per, did you mean per?"),
    ('columns = "c*"', "scale cpu: column c*: must match one of hot"),
    ('[[rows]]\nname = "x"\ncolumns = "cold"', "row x: column cold: must match one of hot"),
    ('[[claims]]\nsays = ""\nbetter = "avg"\nthan = ["per", "peer"]',
     "a claim names row peer, which does not exist, did you mean per?"),
    ('[[claims]]\nsays = "Per wins"\nbetter = "per"\nthan = ["avg"]\ncolumns = "*hto,hot"',
     "claim Per wins: column *hto: must match one of hot"),
])  # fmt: skip
def test_what_a_table_names_and_does_not_have_is_refused(written, names, told):
    rows = "" if "[[rows]]" in names else 'rows = [{name = "avg"}, {name = "per"}]'
    head = f'title = "T"\nbase = "b"\nsource = "S"\n{rows}\ncolumns = {{hot = "lr=1.0"}}\n'
    with pytest.raises(RunError) as error:
        written(t=f"{head}[scales.cpu]\n{names}\n")
    assert str(error.value) == f"t.toml: {told}"


KIND = "--plot figure.jpg: must end in .png, .svg, .pdf\n"
SINGLE = "must be a single table, one of"


@pytest.mark.parametrize(("words", "told"), [
    ("costs --shape 28x28", "--shape 28x28: must be channels,height,width\n"),
    ("costs --csv nowhere/costs.csv", "cannot write nowhere/costs.csv: No such file"),
    ("communication fedcmd-cifar10 --plot figure.jpg", KIND),
    ("curves fedcmd-cifar10 --plot figure.jpg", KIND),
    ("config all fedavg", f"table all: {SINGLE} attacks-digits, "),
    ("config benchmark fedavg", f"table benchmark: {SINGLE} benchmark-cifar10, "),
    ("over heart --plot a.png", "table heart has no `over`"),
    ("over fedbabu-tuned", "no row of fedbabu-tuned has run at cpu"),
    ("leads fedseq-cifar100", "table fedseq-cifar100 has no yardstick; benchmark-cifar10, "),
    ("list fedcmd-mixed --only nope", "scale cpu: row nope: must match one of "),
    ("run benchmark-digits --scale smoke --seeds first", "--seeds first: must be numbers"),
])  # fmt: skip
def test_what_a_command_refuses_is_one_line(words, told, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Runner, "run", lambda *_: pytest.fail("something has run"))
    assert runner.main(["--results", str(tmp_path), *words.split()]) == 1
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {told}") and captured.err.count("\n") == 1
    assert captured.out == "" and [*tmp_path.iterdir()] == []


def test_what_has_run_is_listed(tmp_path, capsys):
    store, (table,) = Store(tmp_path), files.pick(["fedfc-extreme"])
    (cell,) = table.cells("cpu", "fedavg@*")
    store.save(cell, run_of(cell, 0))
    assert runner.main(["--results", str(tmp_path), "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    first = {line.split()[0]: line for line in lines if line}
    assert first.keys() >= files.tables().keys() and max(map(len, lines)) <= 100
    assert first["fedfc-extreme"].split()[1:3] == ["1/4", "0/18"]
    assert runner.main(["--results", str(tmp_path), "list", "fedfc-extreme"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert "scale cpu: 1 of 4 runs done; seeds 0" in lines
    done = {line.split()[0]: line.split()[1] for line in lines if "strategy=" in line}
    assert done.pop(cell.name) == "0" and [*done.values()] == ["-"] * 3


def test_packed_runs_are_found_and_a_newer_one_counts(table, store):
    avg, per = table.cells("smoke")
    for cell, seed in ((avg, 0), (avg, 1), (per, 0)):
        store.save(cell, run_of(cell, seed, seconds=10.0 + seed))
    other, before = Store(store.folder), store.runs()
    assert other.runs() == before
    store.pack()
    assert store.path(avg, 0).exists(), "another process may still be writing beside it"
    old = time.time() - 60
    for path in store.folder.glob("smoke/t/*.json"):
        os.utime(path, (old, old))
    store.pack()
    assert [path.name for path in store.folder.rglob("*.json*")] == ["t.jsonl"]
    lines = (store.folder / "smoke" / "t.jsonl").read_text().splitlines()
    assert [Run(**json.loads(line)) for line in lines] == before
    assert not any("seconds_at_work" in line for line in lines), "as earlier versions wrote them"
    assert store.runs() == other.runs() == Store(store.folder).runs() == before
    assert other.find(avg, 1) == store.find(avg, 1) == before[1]
    again = run_of(avg, 1, seconds=99.0)
    store.save(avg, again)
    assert other.find(avg, 1) == store.find(avg, 1) == again and len(other.runs()) == 3
    os.utime(store.path(avg, 1), (old, old))
    other.pack()
    assert not store.path(avg, 1).exists()
    assert store.find(avg, 1) == Store(store.folder).find(avg, 1) == again


def test_a_report_of_other_results_leaves_those_of_the_project(tmp_path, monkeypatch, capsys):
    project, own = tmp_path / "project" / "experiments", tmp_path / "own"
    (table,) = files.pick(["fedfc-extreme"])
    (project / "results" / "cpu").mkdir(parents=True)
    shutil.copy(HERE / "results" / "cpu" / "fedfc-classes.jsonl", project / "results" / "cpu")
    page = (HERE / "RESULTS.md").read_bytes()
    (project / "RESULTS.md").write_bytes(page)
    costs_of, docs = tmp_path / "project" / "docs" / "results" / "fedseq.md", HERE.parent / "docs"
    shutil.copytree(docs / "results", costs_of.parent)
    (costs_of.parents[1] / "images").mkdir()
    (costs_of.parents[1] / "images" / "leads.png").write_bytes(b"dots")
    monkeypatch.setattr(markdown_page, "HERE", project)
    few = {found.name: found for found in files.pick(["fedfc", "fedseq-datasets"])}
    for place in (files, html_page, markdown_page):  # to look at all takes long
        monkeypatch.setattr(place, "tables", lambda: few)
    (cell,) = table.cells("cpu", "fedavg@*")
    Store(own).save(cell, run_of(cell, 0))
    assert runner.main(["--results", str(own), "report"]) == 0
    assert (project / "RESULTS.md").read_bytes() == page and not (project / "results.html").exists()
    assert table.title in html.unescape((own / "results.html").read_text("utf-8"))
    assert capsys.readouterr().out.splitlines() == [f"{own}/results.html"]
    assert runner.main(["--results", str(project / "results"), "report"]) == 0
    assert (project / "RESULTS.md").read_bytes() != page, "fewer rows decide fewer claims"
    shown = html.unescape((project / "results.html").read_text("utf-8"))
    first = page.decode().partition("## In short")[2].partition("**")[2].partition("**")[0]
    assert shown.index(first) < shown.index("data:image/png;base64,ZG90cw==") < shown.index("<nav")
    assert shown.count("<li>") >= 5 and "ZG90cw" not in (own / "results.html").read_text("utf-8")
    written = costs_of.read_text("utf-8")
    line = "| cost of FedSeq anti | 0,100,200 | 838,880,000,000 | 838,880,000,000 | +0 |"
    assert line in written
    cells = "".join(f"<td>{cell}</td>" for cell in line.strip("| ").split(" | "))
    assert cells in (project / "results.html").read_text("utf-8").replace("\n", "")


def test_each_table_has_one_place_on_the_pages():
    pages = markdown_page.Pages()
    for table in files.tables().values():
        assert pages.of(table.name)
    claims = pages.texts[pages.main].partition("<!-- claims -->")[2].partition("<!-- end of")[0]
    rows = [re.sub(r"\]\(.*?\)", "", line) for line in claims.splitlines() if line[:3] == "| ["]
    assert len(rows) > 9 and max(map(len, rows)) <= 100, "it fits into a line"
    pages.texts[pages.main] += "<!-- watch -->\n<!-- end of watch -->\n"
    with pytest.raises(RunError, match=r"^<!-- watch --> stands in docs/results more than once"):
        pages.put("watch", ["new"])


def test_the_page_marks_code_and_emphasis_and_escapes_the_rest():
    marked = html_page.inline("*Rank* < `a*b*c` & **2** [or](x.md#y) * 3")
    assert marked == "<em>Rank</em> &lt; <code>a*b*c</code> &amp; <b>2</b> or * 3"


def test_the_page_has_the_notes_of_the_rows_that_have_run(table, store):
    avg, per = (msgspec.structs.replace(row, note=f"as {row.name}") for row in table.rows)
    noted = replace(table, rows=(avg, per), columns={"hot": "lr=0.1", "cold": "lr=0.01"})
    for cell in noted.cells("smoke", "avg"):
        store.save(cell, run_of(cell, 0, figures={READ: 0.5}))
    lines = [*markdown_page.markdown(sections.section(store, noted))]
    assert "| avg@cold |" in "".join(lines) and lines.count("- `avg`: as avg") == 1
    assert "as per" not in "".join(lines)


def test_the_page_says_how_long_the_trainings_took(table, store):
    """Two rows that score one training of an hour and a half, and one that was paused."""
    cell, other = table.cells("smoke")
    rounds = int(numeric(cell.config(0))["num-rounds"])
    long = {"seconds": 5400.0, "seconds_per_round": 5400.0 / rounds}

    def told():
        *_, last = markdown_page.markdown(sections.section(store, table))
        return last.partition("Its ")[2]

    for old in (rescoring.NOTE, "not trained: a run with the same training was scored again"):
        store.save(other, run_of(other, 0, note=old, **long))
        store.save(cell, run_of(cell, 0, note=rescoring.NOTE, **long))
        assert told() == "1 training took 1.5 hours together.", "it is of another table"
        store.save(cell, run_of(cell, 0, **long))
        assert told() == "1 training took 1.5 hours together."
    store.save(cell, run_of(cell, 1, seconds=1e6, seconds_per_round=900.0 / rounds))
    assert told() == "2 trainings took 2.0 hours together."
    store.save(other, run_of(other, 0, **long))
    assert told() == "3 trainings took 3.5 hours together.", "two can take equally long"


def test_a_plotted_curve_is_named_with_its_last_value():
    found = {("avg", "0"): {1: 0.1, 2: 0.7, 3: 0.6}, ("per", "0"): {1: 0.5, 2: 0.4}}
    (axes,) = curves.draw("T", "accuracy_initial", found).axes
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["per  40.0 (round 2)", "avg  60.0"]


def test_a_plotted_curve_of_several_seeds_is_their_mean_within_a_band():
    seeds = {("avg", "0"): {1: 0.1, 2: 0.7}, ("avg", "1"): {1: 0.3, 2: 0.5, 3: 0.9}}
    (axes,) = curves.draw("T", "accuracy_initial", seeds | {("per", "0"): {2: 0.4}}).axes
    lines = {tuple(line.get_xdata()): [*line.get_ydata()] for line in axes.lines}
    assert lines == {(1, 2): pytest.approx([20, 60]), (2,): [40]}
    (band,) = axes.collections
    corners = {tuple(map(round, corner)) for corner in band.get_paths()[0].vertices}
    assert corners == {(1, 10), (1, 30), (2, 50), (2, 70)}
    texts = [text.get_text() for text in axes.texts]
    assert texts == ["per  40.0 (1 seed)", "avg  60.0 (2 seeds)"]


def test_both_pages_say_when_a_curve_reached_the_thresholds(table, store):
    """Beside what the paper says of some of them."""
    known = {"avg": {"70": 114}, "per": {"70": "never"}}
    rows = [msgspec.structs.replace(row, reached=known[row.name]) for row in table.rows]
    followed = replace(table, rows=rows, follows="accuracy_initial", thresholds=(40, 70))
    curves_of = {"avg": [0.3, None, 0.65, 0.41], "per": [0.3, None, None, 0.71]}
    for cell in followed.cells("smoke"):
        rounds = {"round": [1, 5, 9, 13], "accuracy_initial": curves_of[cell.row.name]}
        store.save(cell, run_of(cell, 0, figures={READ: 0.5}, rounds=rounds))
    part = sections.section(store, followed)
    heads = ["row", "seed", "last", "best round"]
    heads += ["first round at 40 %", "first round at 70 %", "published, 70 %"]
    lines = [
        ["avg@hot", "0", "41.00", "65.00 (9)", "9", "never", "114"],
        ["per@hot", "0", "71.00", "71.00 (13)", "13", "13", "never"],
    ]
    assert part.reached_heads == heads and part.reached == lines
    page = [*markdown_page.markdown(part)]
    start = page.index(f"| {' | '.join(heads)} |")
    assert page[start + 2 : start + 4] == [f"| {' | '.join(line)} |" for line in lines]


def test_rows_are_plotted_over_the_numbers_of_the_columns(table, store):
    columns = {name: f'lr={lr} dataset="digits"' for name, lr in (("a-1", 0.1), ("a-2", 0.3))}
    columns |= {"b-1": 'lr=0.1 dataset="cifar10"'}
    scale = replace_scale(table, config=TINY.partition(" ")[2])
    known = replace(table, columns=columns, over="lr", scales=scale)
    for cell in known.cells("smoke"):
        for seed in (0, 1):
            right = cell.config(seed)["lr"] + 0.02 * seed
            figures = {READ: right, "accuracy_personalized": right}
            store.save(cell, run_of(cell, seed, figures=figures))
    figures = {chart.title: chart for chart in sections.section(store, known).figures}
    chart = figures['Mean over the seeds, by lr, % (dataset="digits")']
    # Student's t with one degree of freedom is 12.706; the standard error of 10 and 12 is 1.
    assert [hit.title for hit in chart.hits if hit.title.startswith("avg")] == [
        "avg, lr 0.1: 11.00 ± 12.71 %, published 50.00 %",
        "avg, lr 0.3: 31.00 ± 12.71 %, published 50.00 %",
    ]
    assert not any("cifar10" in caption for caption in figures), "a single number makes no line"
    groups = over_key(known, [*outcomes(store, known, "smoke")])
    (first,) = over.draw("lr", groups).axes  # nor a panel
    (line, _, (bars,)), _ = first.containers
    assert first.get_xlabel() == "lr" and line.get_ydata() == pytest.approx([11, 31])
    assert [*first.get_xticks()] == [0.1, 0.3]
    ends = [[low, high] for (_, low), (_, high) in bars.get_segments()]
    assert ends == [pytest.approx([x - 12.706, x + 12.706], abs=1e-3) for x in (11, 31)]
    names = {line.get_label(): line.get_ydata() for line in first.lines}
    assert [*names["avg, published"]] == [50, 50] and "per, published" not in names
    del groups['dataset="digits"']
    with pytest.raises(RunError, match="one value of lr only"):
        over.draw("lr", groups)


def test_curves_of_each_column_are_with_that_of_the_row_the_table_is_about(table, store):
    rows = [msgspec.structs.replace(table.rows[0], name=f"row-{n}") for n in range(9)]
    claim = Claim("it is best", "row-8", ("row-0",))
    columns = {"hot": "lr=0.1", "cold": "lr=0.01"}
    known = replace(table, rows=tuple(rows), columns=columns, claims=(claim,))
    known = replace(known, follows="accuracy_initial")
    rounds = {"round": [1, 2], "accuracy_initial": [0.3, 0.4]}
    for cell in known.cells("smoke"):
        store.save(cell, run_of(cell, 0, figures={READ: 0.5}, rounds=rounds))
    figures = {chart.title: chart for chart in sections.section(store, known).figures}
    for column in known.columns:
        for part, others in ((1, range(7)), (2, range(7, 8))):
            chart = figures[
                f"Initial accuracy over rounds, each row's first seed, % ({column}) ({part} of 2)"
            ]
            names = ["row-8", *(f"row-{n}" for n in others)]
            told = [hit.title for hit in chart.hits if "round 2" in hit.title]
            assert told == [f"{name}, round 2: 40.00 %" for name in names]


def test_communication_beside_fedavg(tmp_path, monkeypatch, capsys):
    rows = {
        "fedavg": {"bytes_down": 500000000, "bytes_up": 500000000},
        "local": {"bytes_down": 0, "bytes_up": 0},
        "fedfomo": {"bytes_down": 2500000000, "bytes_up": 500000001},
    }
    monkeypatch.setattr("experiments.figures.communication.results_of", lambda *arguments: rows)
    path = tmp_path / "bytes.png"
    assert runner.main(["communication", "fedcmd-cifar10", "--plot", str(path)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line and line[0] in ("local", "fedavg", "fedfomo")] == [
        ["local", "0.0", "0.0", "0.0%"],
        ["fedavg", "500.0", "500.0", "100.0%"],
        ["fedfomo", "2,500.0", "500.0", "300.0%"],
    ]
    assert path.read_bytes().startswith(b"\x89PNG")
    rows |= {f"{row}@small": {"bytes_down": 4, "bytes_up": 0} for row in ("fedavg", "fedper")}
    rows["fedper@large"] = {"bytes_down": 9, "bytes_up": 9}
    shares = communication.sent(rows)  # each with FedAvg of its own column, if there is one
    assert shares.keys() == rows.keys() - {"fedper@large"}
    assert shares["fedper@small"] == (1.0, 0.0)
    for name in ("fedavg", "fedavg@small"):
        del rows[name]
    assert runner.main(["communication", "fedcmd-cifar10"]) == 1
    assert "no result of fedavg" in capsys.readouterr().err


def test_a_finished_run_is_collected(table, tmp_path):
    cell = table.cells("smoke")[1]
    folder = tmp_path / "run"
    folder.mkdir()
    lines = ["1,1.0,0.9,0.5,0.6", "2,9.0,0.7,,", "3,2.0004,0.6,,"]  # a pause; the median counts
    lines += ["4,1.0,0.5,,", "4,20.0,2.5,0.75,0.8"]  # fine-tuning after round 4, with its own loss
    head = "round,seconds,train_loss,accuracy_initial,accuracy_personalized"
    (folder / "rounds.csv").write_text("\n".join([head, *lines]) + "\n")
    clients = ["round,client,num_train,num_test,accuracy_initial,accuracy_personalized"]
    clients += ["1,0,9,9,0.1,0.1", "4,0,9,8,0.5,0.625", "4,1,9,8,1.0,0.75"]
    (folder / "clients.csv").write_text("\n".join(clients) + "\n")
    events = ["round,client,kind,detail", "1,0,vote,fc2", "2,1,vote,fc2", "2,1,score,fc2 0.5"]
    (folder / "events.csv").write_text("\n".join(events) + "\n")
    summary = {
        "accuracy_initial": 0.75, "accuracy_personalized": 0.8, "accuracy_without_head": None,
    }  # fmt: skip
    summary |= {"best_accuracy_initial": 0.75, "best_accuracy_initial_round": 4, "seconds": 40.0}
    totals = ("bytes_up", "bytes_down", "bytes_eval", "train_macs", "cost_paper", "failures")
    summary |= {f"total_{name}": 7 for name in totals} | {"versions": {"torch": "1"}}
    (folder / "summary.json").write_text(json.dumps(summary))
    run = collect(cell, 4, folder, set())
    assert run.figures == {
        "accuracy_initial": 0.75, "accuracy_personalized": 0.8, "best accuracy_initial": 0.75,
    }  # fmt: skip
    assert run.seconds_at_work == at_work(run) == 35.0, "40 without the 5 above twice the median"
    assert run.seconds_per_round == 2.0 and run.costs["bytes_up"] == 7 and run.seed == 4
    assert run.rounds["round"] == [1, 4] and run.rounds["accuracy_initial"] == [0.5, 0.75]
    assert run.rounds["train_loss"] == [0.9, 0.5]
    assert run.clients["client"] == [0, 1] and run.clients["accuracy_initial"] == [0.5, 1.0]
    assert run.events == {"vote fc2": 2}
    assert config.resolved(cell.config(4))["lr"] == run.config["lr"] == 0.1


@pytest.mark.slow
@pytest.mark.parametrize("names", [
    ["fedbabu-heads", "fedseq-datasets"],
    THOROUGH(["benchmark-digits", "fedcmd-layers", "attacks-digits", "fedfc-timing"], id="some"),
    THOROUGH(["heart", "perfreezeclip-sweep"], id="others"),
    LONG(["all"], id="all"),
])  # fmt: skip
def test_every_table_runs_at_its_smallest_scale(names, tmp_path):
    """Each table, with trials of settings and readings, at `smoke`: all take four minutes."""
    results = str(tmp_path / "results")
    places = ["--runs-dir", str(tmp_path / "runs")]
    run = ["--results", results, "run", *names, "--scale", "smoke", "--jobs", "2", *places]
    assert runner.main(run) == 0
    store = Store(tmp_path / "results")
    for table in files.pick(names):
        chosen = read_seeds(table.scales["smoke"].seeds)
        for cell in settled(store, table, "smoke"):
            for seed in chosen:
                figures = store.find(cell, seed).figures
                for reads in (reading.reads for reading in cell.row.readings):
                    most = np.inf if reads == "virtual_seconds" else 1
                    least = -("difference" in reads)
                    assert least <= figures[reads] <= most, (cell.name, reads)
        assert len([*settled(store, table, "smoke")]) == len(table.cells("smoke"))
    html_page.write(store, tmp_path / "results.html")
