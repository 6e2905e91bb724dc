"""Make a run for each combination of values and seeds, and compare the runs.

Several runs work at the same time, each in its own process. If you interrupt a sweep, the same
command goes on with it: finished runs are skipped.

    fedapps sweep strategy=fedavg,fedper --seeds 0-2
    fedapps sweep lr=0.01,0.03,0.1 --validation 0.2 -c strategy=fedper
    fedapps sweep 'sizes="0.6,0.4","0.5,0.5"' -c 'partitioner=sizes num-clients=2'
    fedapps sweep strategy=fedavg,fedper --seeds 0-4 --part 1/2    # on one of two machines
"""

import argparse
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING

from fedapps import serial
from fedapps.cli.plot import add_format
from fedapps.core.errors import RunError
from fedapps.core.options import Flat, add_run_config, parse_options
from fedapps.core.paths import expanded
from fedapps.core.stopping import Stopped
from fedapps.core.words import number, spans

if TYPE_CHECKING:
    from fedapps.compare.comparison import Comparison
    from fedapps.compare.groups import Group
    from fedapps.compare.runs import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "axes", nargs="*", metavar="AXIS", help="a key and its values, for example lr=0.01,0.1"
    )
    add_run_config(parser)
    parser.add_argument(
        "--seeds", default="", metavar="0-2", help="seeds of each combination: 0-2 or 0,3,7"
    )
    parser.add_argument(
        "--jobs", type=int, default=2, metavar="N", help="number of runs at the same time [2]"
    )
    parser.add_argument(
        "--validation",
        type=float,
        metavar="0.2",
        help="hold out this share of each client's training samples and score on it, to choose "
        "settings without the test samples",
    )
    parser.add_argument(
        "--output",
        type=expanded,
        metavar="DIR",
        help="folder for the runs and their comparison [sweep in runs-dir]",
    )
    parser.add_argument(
        "--part",
        default="1/1",
        metavar="K/N",
        help="make the Kth of N parts of the runs only, and no comparison: for one of N machines "
        "that share the folder",
    )
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Run the grid, or a part of it, and compare; 1 if a run failed.

    Raises `RunError`; Ctrl-C says how far it is.
    """
    # each import takes a second or more: that of tables and pictures can wait for the runs
    from fedapps.compare.grid import Axis, common, points, read_seeds, without_effect

    if options.jobs < 1:
        raise RunError(f"--jobs {options.jobs}: must be at least 1")
    part, scored = _part(options.part), _scored_on(options.validation)
    base = serial.absolute(common(options.run_config)) | scored
    axes = [Axis.read(text) for text in options.axes]
    _check_scored(scored, parse_options(options.run_config), [axis.key for axis in axes])
    grid = points(axes, base, read_seeds(options.seeds) if options.seeds else [])
    for line in without_effect(grid):
        print(line)
    if part[1] > 1 and part[0] > len(grid):
        raise RunError(f"--part {options.part}: the sweep has only {number(len(grid), 'run')}")
    folder = (options.output or Path(str(base["runs-dir"])) / "sweep").absolute()

    from fedapps.compare.sweep import Sweep

    sweep = Sweep(folder, grid, options.jobs, part)
    try:
        sweep.run()
    except (KeyboardInterrupt, Stopped):
        done = f"{len(sweep.finished)} of {len(grid)} runs are finished"
        others = "the others of its part" if part[1] > 1 else "the others"
        raise KeyboardInterrupt(f"stopped: {done}; the same command runs {others}") from None
    try:
        if part[1] > 1:
            print(_after_part(len(sweep.finished), len(grid), len(sweep.failed)))
        elif sweep.finished:
            _compare(sweep.finished, options, str(base["metric"]), [axis.key for axis in axes])
    finally:
        for name, error in sweep.failed.items():
            print(f"failed: {name}: {error}")
    return 1 if sweep.failed else 0


def _compare(
    runs: Sequence[Path], options: argparse.Namespace, metric: str, axes: Sequence[str]
) -> None:
    """Print and write the comparison of finished runs, and what to do with the best."""
    from fedapps.compare import files, table
    from fedapps.compare.comparison import compared
    from fedapps.compare.runs import read

    comparison = compared([read(run, metric) for run in runs])
    table.show(comparison)
    place = files.free(runs[0].parent / "comparison", comparison)
    for file in files.write(comparison, place, options.format):
        print(file)
    if options.validation is not None:
        print(_next(options, comparison, axes))


def _part(text: str) -> tuple[int, int]:
    try:
        first, count = map(int, text.split("/"))
    except ValueError:
        first, count = 0, 0
    if not 1 <= first <= count:
        raise RunError(f"--part {text}: must be K/N with K from 1 to N, such as 1/4")
    return first, count


def _after_part(finished: int, total: int, failed: int) -> str:
    """Say how far the whole sweep is after a part of it, of which some runs have failed."""
    done = f"{finished} of {total} runs of the whole sweep are finished"
    done += f", {failed} of this part failed" * bool(failed)
    rest = "runs the others, and compares all" if finished < total else "compares them"
    return f"{done}; without --part, the same command {rest}"


def _scored_on(validation: float | None) -> Flat:
    if validation is None:
        return {}
    if not 0 < validation < 1:
        raise RunError(f"--validation {validation}: must be a share between 0 and 1, such as 0.2")
    return {"validation-fraction": validation, "evaluate-on": "validation"}


def _check_scored(scored: Flat, given: Flat, axes: Sequence[str]) -> None:
    """Refuse the keys of `--validation` as axes, or with other values, also in a method's table.

    Defaults, which a file can have, are not refused.
    """
    from fedapps.core import config

    known = config.defaults()
    for key in axes:
        if key.rpartition(".")[2] in scored:
            raise RunError(f"axis {key}: --validation sets this key, too; leave one out")
    for key, value in given.items():
        wanted = scored.get(key.rpartition(".")[2], value)
        if value not in (wanted, known[key]):
            raise RunError(
                f"-c: {key} = {value}: --validation sets this key, too ({wanted}); leave one out"
            )


def _next(options: argparse.Namespace, comparison: "Comparison", keys: Sequence[str]) -> str:
    """Say how the best settings are scored on test samples; only whole ones can be it.

    Settings are whole with all seeds, and with as many scored clients as others of the same data.
    """
    from fedapps.compare.runs import SEED
    from fedapps.core import changes
    from fedapps.core.schema import literal

    seeds = {seed for group in comparison.groups for seed in group.seeds}
    all_seeds = [group for group in comparison.groups if set(group.seeds) == seeds]
    if not all_seeds:
        return "best on validation samples: none, because no settings have finished with all seeds"
    whole = _most_clients(all_seeds)
    known, metric = [_validation_score(group) for group in whole], comparison.metric
    best = whole[known.index(metric.best(known))]
    fewer = {
        "seeds are missing": [group for group in comparison.groups if group not in all_seeds],
        "fewer clients were scored": [group for group in all_seeds if group not in whole],
    }
    out = [f"{why}: {', '.join(g.name for g in those)}" for why, those in fewer.items() if those]
    which = f"{best.name} (left out, because {'; '.join(out)})" if out else best.name
    told = f"best on validation samples: {which}; score it once on test samples:"
    if looks := [*_looks(best)]:
        return "\n".join([told, *looks])
    words = ["fedapps", "sweep"]
    values = {key: changes.value_of(key, best.settings) for key in keys}
    words += [f"{key}={literal(value)}" for key, value in values.items() if value is not None]
    undone = _undone(options, str(best.settings["strategy"]))
    words += [word for text in [*options.run_config, *undone] for word in ("-c", text)]
    words += ["--seeds", spans(seeds)] if options.seeds or SEED in keys else []
    return f"{told} {join(words)}"


def _undone(options: argparse.Namespace, strategy: str) -> Iterator[str]:
    """Yield the text of a `-c` after which test samples are scored, if it needs one.

    A method with a validation-fraction of its own also trains by it, and keeps that of the sweep.
    """
    from fedapps.core import config
    from fedapps.core.schema import literal

    given, known = parse_options(options.run_config), config.defaults()
    scored = _scored_on(options.validation)
    wanted = known | {"strategy": strategy}
    wanted |= {key: value for key, value in scored.items() if f"{strategy}.{key}" in known}
    then, now = map(config.effective, (wanted, known | given | {"strategy": strategy}))
    if other := [key for key in scored if now[key] != then[key]]:
        yield " ".join(f"{key}={literal(wanted[key])}" for key in other)


def _most_clients(groups: Sequence["Group"]) -> list["Group"]:
    """Return the groups that scored the most clients, over all seeds, of those with the same data.

    The mean of the others leaves out clients that failed, often those with the worst scores.
    """
    from fedapps.compare.pairs import data_of

    counts = {g.name: sum(len(run.evaluated(at)) for run, at in _scored_at(g)) for g in groups}

    def less(group: "Group", other: "Group") -> bool:
        return data_of(group) == data_of(other) and counts[group.name] < counts[other.name]

    return [group for group in groups if not any(less(group, other) for other in groups)]


def _validation_score(group: "Group") -> float:
    """Return the mean over seeds of the round that is kept."""
    name, at = group.runs[0].metric.personalized, [*_scored_at(group)]
    return sum(float(run.scored[name][round_]) for run, round_ in at) / len(at)


def _scored_at(group: "Group") -> Iterator[tuple["Run", int]]:
    """Yield each run, and its round that is kept: the best one, or the last."""
    from fedapps.engine import checkpoint

    for run, last in zip(group.runs, group.rounds, strict=True):
        kept = _kept(run)
        yield run, last if kept == run.folder else checkpoint.rounds(kept)[-1]


def _looks(group: "Group") -> Iterator[str]:
    """Yield what scores runs that have chosen a round: on test samples, they could not be made."""
    from fedapps.engine import best

    folders = [_kept(run) for run in group.runs]
    if not group.settings["patience"] and folders == [run.folder for run in group.runs]:
        return
    yield from map(best.look, folders)
    if len(folders) > 1:
        yield join(["fedapps", "compare", *map(_next_table, folders)])


def _next_table(folder: Path) -> str:
    """Return the table that the next `fedapps evaluate` of a run writes."""
    from fedapps.report import directory

    tables = (directory.evaluation(folder, number) for number in count(1))
    return next(str(table) for table in tables if not table.exists())


def _kept(run: "Run") -> Path:
    """Return the run directory of the round that a run has kept beside its last one, or its own."""
    from fedapps.report import directory

    best = run.folder / directory.BEST
    return best if best.exists() else run.folder
