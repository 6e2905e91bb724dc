"""Repeat the papers' experiments: list their tables, run the rows, and write the results.

    fedapps experiments list
    fedapps experiments list fedcmd-cifar10
    fedapps experiments run fedcmd-cifar10 --jobs 2 --seeds 0-2 --only 'fedavg,fedcmd*'
    fedapps experiments run benchmark
    fedapps experiments run all --scale smoke
    fedapps experiments config fedcmd-cifar10 fedavg --seed 1 > fedavg.toml
    fedapps experiments repeat all --jobs 2
    fedapps experiments report
    fedapps experiments costs --plot costs.png
    fedapps experiments times
    fedapps experiments communication fedcmd-cifar10 --plot bytes.png
    fedapps experiments leads --plot leads.png
    fedapps experiments curves fedfc-classes --plot rounds.png
    fedapps experiments over fedbabu-tuned --plot epochs.png
    fedapps experiments gaussians RUN --clients 0 3 --plot gaussians.png
    fedapps experiments classes RUN RUN --plot classes.png

Each table is a TOML file in experiments/tables; experiments/papers/table.py describes its fields.
Where a command takes several tables, `benchmark` stands for all tables whose names begin with
`benchmark-`, and `all` for all tables.

`run` runs several rows at the same time, each in its own process. As soon as a row has finished,
its result and its config are in experiments/results, and the row is not run again until its config
changes. Rows that differ only in how clients are personalized are trained once, as long as the run
directory of the first of them exists. Several terminals, or machines that share the folder
experiments/results, can run the same tables: none runs a row that another one is running.

`repeat` makes one finished row of each table again from the config in its file, the quickest unless
--only or --seeds choose, and says whether the same figures came out, to the last digit; if not, its
exit status is 1. On another kind of processor the last digits can differ.

`report` writes the pages of results, and moves the results of each table into one file. With
--results DIR before the command, finished rows are in DIR, and `report` writes its HTML page there,
but does not change RESULTS.md and docs/results, which hold the project's own results.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from experiments import HERE
from experiments.figures import (
    classes,
    communication,
    costs,
    curves,
    gaussians,
    leads,
    over,
    times,
)
from experiments.figures.output import add_table
from experiments.outcomes.tidy import write_csv
from experiments.papers import readings
from experiments.papers.files import having, pick, single, tables
from experiments.papers.table import SCALES, Job
from experiments.run import listing
from experiments.run.dependent import settled, split, waits
from experiments.run.estimate import Estimate
from experiments.run.repeat import again, quickest
from experiments.run.runner import Runner, check
from experiments.run.store import Store
from fedapps.compare.grid import read_seeds
from fedapps.core.commands import execute
from fedapps.core.config import to_toml
from fedapps.core.errors import RunError
from fedapps.core.log import drop_output
from fedapps.report.columns import columns_of
from fedapps.report.units import clock
from fedapps.tasks import CLASSIFICATION

RESULTS = HERE / "results"
TABLES = "names of tables, their beginnings (fedseq), or all"
FIGURES: dict[str, tuple[ModuleType, str]] = {
    "costs": (costs, "FedSeq's Tables 5 and 6, and Fig. 8: cost per round"),
    "times": (times, "FedFC's Section 4.4, and Fig. 9: virtual seconds per round"),
    "communication": (communication, "FedCMD's Fig. 8: the bytes of methods beside FedAvg's"),
    "leads": (leads, "how far methods are ahead of the yardstick, in several tables"),
    "gaussians": (gaussians, "FedCMD's Fig. 4: the features of each layer"),
    "classes": (classes, "FedCMD's Fig. 6: the accuracies of the classes"),
    "curves": (curves, "plot the accuracy of a table's rows over rounds"),
    "over": (over, "plot the accuracy of a table's rows over the key that its columns set"),
}


def run(options: argparse.Namespace) -> int:
    """Run the rows that are not done yet; return the exit status."""
    store, named = Store(options.results), pick(options.tables)
    known = [t for t in named if options.scale in t.scales or t.name in options.tables]
    known = having(known, options.scale, options.only)
    cells = [cell for table in known for cell in table.cells(options.scale, options.only)]
    columns = columns_of(CLASSIFICATION).rounds
    check([Job(cell, 0) for cell in cells], columns)
    seeds = {t.name: read_seeds(options.seeds or t.scales[options.scale].seeds) for t in known}
    work = Runner(
        store,
        runs_dir=options.runs_dir.expanduser().resolve(),
        data_root=options.data_root,
        jobs=options.jobs,
        reads=readings.wanted(tables().values()),
    )
    parts = [(table, seeds[table.name]) for table in known]
    if options.dry_run:
        return _announce(work, *split(store, parts, options.scale, options.only))
    store.check_writable()
    failed, tried = list[str](), set[str]()
    while True:  # again when rows have run whose results other rows need
        ready, waiting = split(store, parts, options.scale, options.only)
        jobs = [job for job in ready if job.name not in tried]
        if not jobs:
            break
        check(jobs, columns)
        failed += work.run(jobs)
        tried |= {job.name for job in jobs}
    write_csv(store)
    for job in waiting:
        print(f"{job.name}: has not run, because it needs others", file=sys.stderr)
    for name in failed:
        print(f"error: {name} failed", file=sys.stderr)
    return 1 if failed else 0


def _announce(work: Runner, jobs: list[Job], later: list[Job]) -> int:
    """Print the rows that would run and how long they would take."""
    estimate, total, known = Estimate(work.store.runs()), 0.0, True
    undone = work.open_groups(jobs)
    trains = {group.trains for group in undone}
    scored = {job for group in undone for job in group.jobs} - trains
    for job in jobs + later:
        if job in scored:  # another job trains its model
            print(f"scored    {job.name}")
        elif job not in trains and job not in later:
            print(f"done      {job.name}")
        else:
            seconds = estimate.seconds(job.cell, job.seed)
            total, known = total + (seconds or 0.0), known and seconds is not None
            after = ", after the others" if job in later else ""
            print(f"{'unknown' if seconds is None else clock(seconds):9} {job.name}{after}")
    least = "" if known else "at least "
    print(f"{least}{clock(total / work.jobs)} with --jobs {work.jobs}")
    return 0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands and their options."""
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder for finished rows")
    commands = parser.add_subparsers(dest="command", required=True)
    listed = commands.add_parser("list", help="list all tables, or the rows of some tables")
    listed.add_argument("tables", nargs="*", metavar="TABLE", help=TABLES)
    _add_rows(listed)
    report = commands.add_parser("report", help="write the pages of results")
    report.add_argument(
        "tables", nargs="*", default=["all"], metavar="TABLE", help=f"{TABLES} [all]"
    )
    _add_run(commands.add_parser("run", help="run the rows of tables that are not finished yet"))
    again = "make a finished row of each table again, and compare its figures"
    _add_run(commands.add_parser("repeat", help=again))
    config = commands.add_parser("config", help="print the run-config of a row, to run it alone")
    config.add_argument("--seed", type=int, default=0)
    add_table(config)
    config.add_argument("row", help="a row, or row@column")
    for name, (module, text) in FIGURES.items():
        module.add_arguments(commands.add_parser(name, help=text))


def _add_rows(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only",
        "--rows",
        default="*",
        metavar="ROWS",
        help="rows, or row@column; * is allowed: 'fedavg,fedcmd*' [all rows]",
    )
    parser.add_argument(
        "--scale", choices=SCALES, default="cpu", help="how large the runs are [cpu]"
    )


def _add_run(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("tables", nargs="+", metavar="TABLE", help=TABLES)
    _add_rows(parser)
    parser.add_argument("--seeds", "--seed", default="", help="0-4 or 0,2 [the table's seeds]")
    parser.add_argument("--jobs", type=int, default=1, help="rows that run at the same time [1]")
    parser.add_argument("--dry-run", action="store_true", help="only print what would run")
    parser.add_argument(
        "--data-root", default="~/fedapps-data", help="folder of the data sets [~/fedapps-data]"
    )
    parser.add_argument(
        "--runs-dir",
        type=Path,
        default=Path("~/fedapps-runs/experiments"),
        help="folder for run directories and logs [~/fedapps-runs/experiments]",
    )


def repeat(options: argparse.Namespace) -> int:
    """Make a finished row of each table again; return 1 if one did not come out the same."""
    store, seeds = Store(options.results), read_seeds(options.seeds) if options.seeds else []
    found = [
        run
        for table in having(pick(options.tables), options.scale, options.only)
        if (run := quickest(store, table, options.scale, options.only, seeds))
    ]
    if not found:
        raise RunError("none of these rows is finished")
    if options.dry_run:
        for run in found:
            print(f"{clock(run.seconds):9} {run.table} {run.cell} s{run.seed}")
        return 0
    runs_dir = options.runs_dir.expanduser().resolve()
    same = True
    for one in again(found, runs_dir, options.data_root, options.jobs):
        name = f"{one.run.table} {one.run.cell} s{one.run.seed}"
        print(f"{name}: {one.told()} in {clock(one.seconds)}", flush=True)
        same &= one.same
    return 0 if same else 1


def _do(options: argparse.Namespace) -> int:
    if options.command in ("run", "repeat"):
        if options.jobs < 1:
            raise RunError(f"--jobs {options.jobs}: must be at least 1")
        return run(options) if options.command == "run" else repeat(options)
    store = Store(options.results)
    if options.command in FIGURES:
        module, _ = FIGURES[options.command]
        module.show(store, options)
    elif options.command == "config":
        table = single(options.table)
        cells = {cell.name: cell for cell in settled(store, table, options.scale, options.row)}
        having([table], options.scale, options.row)  # else it is refused
        for cell in table.cells(options.scale, options.row):
            told, now = "", cells.get(cell.name, cell)
            if cell.name not in cells or waits(now, options.seed):
                told = ", whose settings depend on runs that are not done"
            flat = now.config(options.seed)
            print(f"# {table.name} {cell.name}{told}\n{to_toml(flat)}")
    elif options.command == "list" and not options.tables:
        listing.overview(store, tables().values())
    elif options.command == "list":
        for table in having(pick(options.tables), options.scale, options.only):
            listing.rows_of(store, table, options.scale, options.only)
    else:
        from experiments.publish.markdown_page import report

        report(store, pick(options.tables))
    return 0


def _work(options: argparse.Namespace) -> int:
    try:
        return _do(options)
    except BrokenPipeError:  # `... | head` has read enough
        drop_output()
        return 0
    except KeyboardInterrupt:
        told = "stopped; finished rows are kept; run the same command again to continue"
        raise KeyboardInterrupt(told) from None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the given command; return the exit status."""
    return execute("fedapps experiments", __doc__, add_arguments, _work, arguments)


if __name__ == "__main__":
    sys.exit(main())
