"""Show how a run is and how its devices are, or the runs of a SuperLink, newest first.

    fedapps status                      # the SuperLink that `fedapps run` uses in the background
    fedapps status site                 # the runs and SuperNodes of a SuperLink in config.toml
    fedapps status ~/fedapps-runs/RUN   # a run: round, devices, failures, what needs attention
    fedapps status ~/fedapps-runs       # the newest run there
    fedapps status ~/fedapps-runs --every 5

A run is read from its run directory, so this works on the server, during the run and afterwards.

`flwr stop RUN_ID` ends one of the runs; `fedapps stop` ends the SuperLink in the background.
"""

import argparse
import json
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from fedapps.core.errors import RunError
from fedapps.core.options import add_home
from fedapps.core.paths import expanded

if TYPE_CHECKING:
    from rich.console import RenderableType

Seen = tuple[object, "list[RenderableType]"]  # what --json prints, and what is shown otherwise

LONGEST = 24 * 60 * 60  # seconds between two looks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "place",
        nargs="?",
        default="",
        metavar="CONNECTION|RUN",
        help="name of a SuperLink in config.toml, a run directory, or a folder of them [the "
        "SuperLink in the background]",
    )
    add_home(parser)
    parser.add_argument(
        "--limit", type=int, default=10, metavar="N", help="show at most N runs [10]"
    )
    parser.add_argument("--every", type=float, metavar="SECONDS", help="show it again and again")
    parser.add_argument("--json", action="store_true", help="print it as JSON, in one line")


def run(options: argparse.Namespace) -> int:
    """Print what is asked for; raises `RunError`."""
    if options.every is not None and not 0 < options.every <= LONGEST:  # nan is not, either
        raise RunError(f"--every {options.every:g}: must be seconds, above 0 and at most {LONGEST}")
    if options.json or options.every is None or not sys.stdout.isatty():
        _print(options)
        while options.every:
            time.sleep(options.every)
            _print(options)
        return 0
    from rich.console import Group
    from rich.live import Live

    from fedapps.report.console import console

    with suppress(KeyboardInterrupt), Live(console=console(), auto_refresh=False) as live:
        while True:
            live.update(Group(*_look(options)[1]), refresh=True)
            time.sleep(options.every)
    return 0


def _print(options: argparse.Namespace) -> None:
    """Show it once."""
    content, shown = _look(options)
    if options.json:
        print(json.dumps(content), flush=True)
        return
    from fedapps.report.console import console

    screen = console()
    for part in shown:
        screen.print(part, soft_wrap=isinstance(part, str))


def _look(options: argparse.Namespace) -> Seen:
    """Find out about the place that is meant."""
    place = options.place
    if not place:
        return _background(options)
    import msgspec

    from fedapps.cli.run_status import shown
    from fedapps.report import status

    if folder := status.find(expanded(place)):
        found = status.read(folder)
        return msgspec.to_builtins(found), [*shown(found)]
    if "/" in place:
        raise RunError(f"{place}: is no run directory, and there is none in it")
    return _named(options)


def _background(options: argparse.Namespace) -> Seen:
    """Return the SuperLink in the background and its runs."""
    from fedapps.launcher import superlink
    from fedapps.launcher.flwr import Flwr

    home, link = superlink.flower_home(options.home), superlink.superlink(options.home)
    if link is None:
        told = superlink.not_running(home)
        if not options.place:
            told += "; for one that config.toml names, use fedapps status NAME"
        return {"superlink": None, "runs": []}, [told]
    names = [name for name, own in superlink.connections(home).items() if own]
    if not names:
        raise RunError(
            f"{home}/config.toml: names no local SuperLink, so the runs of process {link.pid} "
            'cannot be listed; add [superlink.local] with address = ":local:"'
        )
    named = filter(None, [options.place or names[0]])  # "", for the default, comes first
    told = f"SuperLink of {home}: port {link.port}, process {link.pid}, Flower {link.version}"
    env = superlink.environment(options.home, own=False) | {superlink.PORT: str(link.port)}
    with Flwr(env, link.bin_dir, python=link.python) as flwr:
        runs = flwr.answer("ls", *named, "--limit", str(options.limit))["runs"]
    about = {"port": link.port, "process": link.pid, "version": link.version}
    return {"superlink": about, "runs": runs}, [told, *_runs(runs)]


def _named(options: argparse.Namespace) -> Seen:
    """Return the runs and SuperNodes of a SuperLink that config.toml names."""
    from fedapps.launcher.flwr import Flwr
    from fedapps.launcher.superlink import connections, environment

    name = options.place
    if (own := connections(options.home).get(name)) is None:
        raise RunError(f"{name}: no run directory, and no SuperLink in config.toml")
    if own:
        return _background(options)
    with Flwr(environment(options.home, own=False)) as flwr:
        runs = flwr.answer("ls", name, "--limit", str(options.limit))["runs"]
        nodes = flwr.answer("supernode", "list", name)["nodes"]
    lines = [f"SuperLink {name}", *_runs(runs), *_supernodes(nodes)]
    return {"superlink": {"name": name}, "runs": runs, "supernodes": nodes}, [*lines]


def _runs(runs: list[dict[str, Any]]) -> Iterator[str]:
    from datetime import UTC, datetime

    from fedapps.launcher.outcome import NOT_BEGUN, reason_of

    if not runs:
        yield "no runs yet"
    for run in runs:
        since, seconds = run["pending-at"], float(run["elapsed"])
        yield f"run {run['run-id']}  {run['status']}  since {since}  {seconds:.0f} s"
        if error := reason_of(run["status-details"]):
            yield f"    {textwrap.shorten(error, 95, placeholder=' ...')}"
        if run["status"] == "starting":  # and again, if a process has not begun in time
            waited = datetime.now(UTC) - datetime.fromisoformat(since)
            yield from [f"    {NOT_BEGUN}"] * (waited.total_seconds() > 60)


def _supernodes(nodes: list[dict[str, Any]]) -> Iterator[str]:
    """Say of each registered SuperNode since when it is online or offline."""
    since = {"online": "online-at", "offline": "offline-at", "registered": "created-at"}
    there = [node for node in nodes if node["status"] in since]
    online = sum(node["status"] == "online" for node in there)
    yield f"{online} of {len(there)} SuperNodes are online"
    for node in there:
        at = node[since[node["status"]]]  # N/A for one that was lost without a goodbye
        told = f"since {at}" if at != "N/A" else "not heard of for a minute"
        yield f"SuperNode {node['node-id']:<20}  {node['status']:<10}  {told}"
