"""`fedapps sweep AXIS...`: a grid of runs, and their comparison."""

import argparse
from pathlib import Path

from fedapps.cli.plot import add_format

EXAMPLE = """fedapps sweep 'lr=0.01,0.1' 'strategy="fedper","fedbabu"' --seeds 0-2"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what can be given."""
    parser.add_argument(
        "axes",
        nargs="*",
        metavar="AXIS",
        help=f"a key and the values that it takes, texts in double quotes: {EXAMPLE}",
    )
    parser.add_argument(
        "-c",
        "--run-config",
        action="append",
        default=[],
        metavar="'KEY=VALUE ...'|FILE",
        help="what all runs have in common; may be given several times",
    )
    parser.add_argument("--seeds", default="", metavar="0-2", help="each setting with each seed")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time [2]")
    parser.add_argument(
        "--validation",
        type=float,
        metavar="0.2",
        help="score on this share of each client's training samples, to choose settings by",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="DIR",
        help="where runs are made, and their comparison; what is finished there is not run again "
        "[sweep in runs-dir]",
    )
    add_format(parser)


def run(options: argparse.Namespace) -> int:
    """Run the grid and compare; return 1 if a run failed, 130 on Ctrl-C. Raises `RunError`."""
    from fedapps.compare import files, table
    from fedapps.compare.comparison import compared
    from fedapps.compare.grid import Axis, points, read_seeds
    from fedapps.compare.runs import read
    from fedapps.compare.sweep import Sweep
    from fedapps.core import config
    from fedapps.core.errors import RunError

    if options.jobs < 1:
        raise RunError(f"--jobs {options.jobs}: must be at least 1")
    base = config.parse(["threads=1", *options.run_config]) | _scored(options.validation)
    seeds = read_seeds(options.seeds) if options.seeds else []
    grid = points([Axis.read(text) for text in options.axes], base, seeds)
    folder = (options.output or Path(str(base["runs-dir"]), "sweep")).expanduser().absolute()
    sweep = Sweep(folder, grid, options.jobs)
    try:
        sweep.run()
    except KeyboardInterrupt:
        done = f"{len(sweep.finished)} of {len(grid)} runs are finished"
        print(f"stopped; {done}; the same command goes on with the others")
        return 130
    if runs := [read(path) for path in sweep.finished]:
        comparison = compared(runs)
        table.show(comparison)
        for path in files.write(comparison, folder / "comparison", options.format):
            print(path)
    for name, error in sweep.failed.items():
        print(f"failed: {name}: {error}")
    return 1 if sweep.failed else 0


def _scored(validation: float | None) -> dict[str, bool | int | float | str]:
    """Return what has runs scored on validation samples; raises `RunError`."""
    from fedapps.core.errors import RunError

    if validation is None:
        return {}
    if not 0 < validation < 1:
        raise RunError(f"--validation {validation}: must be a share between 0 and 1, as 0.2")
    return {"validation-fraction": validation, "evaluate-on": "validation"}
