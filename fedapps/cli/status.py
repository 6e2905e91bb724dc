"""Show the SuperLink that `fedapps run` uses in the background, and its runs, newest first.

`flwr stop RUN_ID` ends one of the runs; `fedapps stop` ends the SuperLink. For a SuperLink that
config.toml names, for example that of devices, `flwr ls NAME` shows the runs.
"""

import argparse
import os
import subprocess
import textwrap

from fedapps.core.options import add_home


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_home(parser)
    parser.add_argument(
        "--limit", type=int, default=10, metavar="N", help="show at most N runs [10]"
    )


def run(options: argparse.Namespace) -> int:
    """Print a line about the SuperLink and a line for each run; raises `RunError`."""
    from fedapps.launcher.outcome import answer_of, details_of
    from fedapps.launcher.superlink import PORT, flower_home, not_running, superlink

    home, link = flower_home(options.home), superlink(options.home)
    if link is None:
        print(f"{not_running(home)}; for one that config.toml names, use flwr ls NAME")
        return 0
    print(f"SuperLink of {home}: port {link.port}, process {link.pid}, Flower {link.version}")
    answer = subprocess.run(
        [str(link.bin_dir / "flwr"), "ls", "--format", "json", "--limit", str(options.limit)],
        env={**os.environ, "FLWR_HOME": str(home), PORT: str(link.port)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    runs = answer_of(answer.stdout)["runs"]
    if not runs:
        print("no runs yet")
    for run in runs:
        since, seconds = run["pending-at"], float(run["elapsed"])
        print(f"run {run['run-id']}  {run['status']}  since {since}  {seconds:.0f} s")
        if error := details_of(run):
            print("   ", textwrap.shorten(error, 95, placeholder=" ..."))
    return 0
