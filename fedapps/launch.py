"""Train with Flower: in a simulation on this machine (Ray), or on another SuperLink.

This does the same as `flwr run . --stream`, with three differences. If the run fails, it prints the
run's error in its last line and exits with 1; `flwr run` exits with 0. It uses the packages that
are installed here; `flwr run` installs the app's dependencies once more. And clients use the app's
code; with `flwr run`, that of the folder in which the SuperLink was started comes first.

The first run starts a SuperLink in the background, which later runs use, too. `fedapps status`
shows it, and `fedapps stop` ends it. Ctrl-C ends the log, but not the run.

Each home folder (`--home`, Flower's FLWR_HOME) has one SuperLink with its own port, so SuperLinks
of different homes can run side by side. Without `--home`, Flower's defaults apply: the folder is
FLWR_HOME or ~/.flwr, and the port is FLWR_LOCAL_SUPERLINK_HTTP_API_PORT or 39091. A SuperLink that
runs in the folder is used with the port that it has.

    fedapps run -c 'strategy=fedper dataset=cifar10'
    fedapps run -c experiments/configs/fedrep.toml -c 'seed=1 num-rounds=50'
    fedapps run --federation-config 'num-supernodes=4 client-resources-num-cpus=1'
"""

import argparse
import contextlib
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedapps.core import log
from fedapps.core.errors import RunError
from fedapps.core.options import add_home, add_resume, add_run_config, chosen
from fedapps.launcher import superlink
from fedapps.launcher.flwr import Flwr
from fedapps.launcher.inputs import FEDERATION, loggers, merged, refusal, simulation, staged
from fedapps.launcher.outcome import NOT_BEGUN, LaunchResult, status_of
from fedapps.launcher.superlink import NO_PROXY, PORT, database_of, environment

PATIENCE = 180.0  # seconds to wait for an answer about a run's status
LONG_START = 60.0  # seconds without a line of the run's process, after which this is explained
STARTS = 2  # attempts; a second one is quicker, as the system has read the files

_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_STARTED = re.compile(r"Successfully started run (\d+)")
_LOG = re.compile(r"Starting logstream")  # the last line before those of the run's process
_FOLDER = re.compile(r"run directory: (.+?)(?:, goes on after round \d+)?$")
_START_FAILED = re.compile(r"Failed to start local SuperLink")


def launch(
    app_dir: Path,
    run_config: Sequence[str] = (),
    federation_config: str = "",
    home: Path | None = None,
    port: int | None = None,
    echo: Callable[[str], None] = print,
    connection: str = "",
    flwr: Flwr | None = None,
) -> LaunchResult:
    """Run the app like `flwr run`, pass each line of its log to `echo`, and return its outcome.

    `connection` names a SuperLink of the home's config.toml; without it, the default there is used.
    The home's own is started if necessary. Each `run_config` option is key=value pairs or the path
    of a TOML file; a later option overrides single keys of earlier ones. `flwr` is one of the same
    home that has run no other app; without it, one is made. Raises `RunError` if the options are
    not valid or the SuperLink cannot be used, and `KeyboardInterrupt` on Ctrl-C, after printing how
    to stop the run, which goes on.
    """
    if refused := refusal(app_dir, run_config):  # sooner than Flower, and with a clearer message
        return LaunchResult(0, "not started", [], refused)
    own = superlink.connections(home).get(connection, False)
    with contextlib.ExitStack() as stack:
        if flwr is None:
            logged = loggers(app_dir, run_config)
            env = environment(home, port, own=own, loggers=logged)
            # The SuperLink that `flwr run` starts keeps the working directory, which comes before
            # the app on its workers' path, so it must be a folder without code.
            local = superlink.log_of(home).parent
            flwr = stack.enter_context(Flwr(env, cwd=local if local.is_dir() else None))
        named = [connection] if connection else []
        target = _Target(flwr, home, own, named, echo, app_dir, port, federation_config)
        options = stack.enter_context(merged(run_config))
        words = [word for option in options for word in ("--run-config", option)]
        if federation_config:
            words += [FEDERATION, simulation(federation_config)]
        app = stack.enter_context(staged(app_dir))
        run_id, lines = _start(target, app, words)
        if not run_id:
            return LaunchResult(0, "not started", lines)
        try:
            status, details = _outcome(target, run_id, lines)
        except KeyboardInterrupt:
            echo(target.goes_on(run_id))
            raise
    return LaunchResult(run_id, status, lines, details)


@dataclass(frozen=True)
class _Target:
    """Where to run: `flwr`, its home, and the `named` SuperLink (empty: the default); and what."""

    flwr: Flwr
    home: Path | None
    own: bool  # it is the SuperLink that Flower starts for the home
    named: list[str]
    echo: Callable[[str], None]
    app: Path
    port: int | None
    federation: str

    def goes_on(self, run_id: int) -> str:
        """Say that a run goes on, and with which shell command to stop it."""
        env = self.flwr.env
        direct = [name for name, _ in NO_PROXY if env.get(name) != os.environ.get(name)]
        keys = [key for key in ("FLWR_HOME", PORT, *direct) if key in env]
        own = [f"{key}={shlex.quote(env[key])}" for key in keys]
        words = [str(self.flwr.program), "stop", str(run_id), *self.named]
        by_hand = " ".join([*own, shlex.join(words)])
        return f"run {run_id} goes on in the background; stop it with: {by_hand}"

    def resume(self, lines: Sequence[str]) -> str:
        """Return the command that resumes the run with these lines, if they name its directory."""
        found = next(filter(None, map(_FOLDER.match, reversed(lines))), None)
        app = [str(self.app)] if self.app != Path() else []
        home = ["--home", str(self.home)] if self.home else []
        port = ["--port", str(self.port)] if self.port else []
        named = ["--connection", *self.named] if self.named else []
        nodes = [FEDERATION, self.federation] if self.federation else []
        last = ["--resume", found[1] if found else "DIR"]
        return shlex.join(["fedapps", "run", *app, *home, *port, *named, *nodes, *last])

    def lost(self) -> bool:
        """Tell whether the home's own SuperLink was used and is gone; `flwr ls` would start one."""
        return self.own and superlink.superlink(self.home) is None


def _start(target: _Target, app: Path, words: Sequence[str]) -> tuple[int, list[str]]:
    """Run `flwr run`, again if the SuperLink was too slow; return the run id and the lines."""
    database = database_of(target.home)
    new = not database.exists()
    for attempt in range(1, STARTS + 1):
        run_id, lines = _stream(target, app, words)
        failed = any(map(_START_FAILED.search, lines))
        # Flower killed the SuperLink while it created this database, and no SuperLink would start
        # with an incomplete one. If a SuperLink is alive, here or on another machine, it belongs to
        # another `fedapps run` that started in the new home at the same time.
        ended = failed and new and superlink.superlink(target.home) is None
        if ended and not superlink.in_use(database):
            database.unlink(missing_ok=True)
        if run_id or attempt == STARTS or not failed:
            break
        target.echo("the SuperLink took too long to start; trying again")
    return run_id, lines


def _stream(target: _Target, app: Path, words: Sequence[str]) -> tuple[int, list[str]]:
    """Run `flwr run` and pass on its lines; return the run id (0: no run) and the lines."""
    run_id, lines, begun = 0, [], contextlib.ExitStack()
    try:
        for line in target.flwr.lines("run", str(app), *target.named, "--stream", *words):
            begun.close()
            lines.append(_ANSI.sub("", line))
            if not run_id and (match := _STARTED.search(lines[-1])):
                run_id = int(match[1])
            target.echo(line)
            if _LOG.search(line):
                late = threading.Timer(
                    LONG_START, partial(target.echo, f"run {run_id} {NOT_BEGUN}")
                )
                begun.callback(late.cancel)
                late.daemon = True
                late.start()
    except KeyboardInterrupt:
        target.echo(target.goes_on(run_id) if run_id else "no run was started")
        raise
    finally:
        begun.close()
    return run_id, lines


def _outcome(target: _Target, run_id: int, lines: Sequence[str]) -> tuple[str, str]:
    """Ask for the run's status until the run has ended; return status and details.

    The log, of which `lines` came, ends early if the connection is lost, so answers can be missing
    for a while, too. Raises `RunError` if there is none for `PATIENCE` seconds.
    """
    pause, answered, status = 1.0, time.monotonic(), "unknown"
    while True:
        if target.lost():
            log_file = superlink.log_of(target.home)
            told = f"the SuperLink ended during the run; see {log_file}"
            return "lost", f"{told}; resume it: {target.resume(lines)}"
        try:
            answer = target.flwr.answer("ls", *target.named, "--run-id", str(run_id))
            status, details = status_of(answer)
            answered = time.monotonic()
        except RunError as error:
            if time.monotonic() - answered > PATIENCE:
                raise RunError(
                    f"{error}; run {run_id} may still be going on: ask again with flwr ls;"
                    f" if the SuperLink was killed, start it again and {target.resume(lines)}"
                ) from error
            details = ""
        if status.startswith("finished"):
            return status, details
        if pause == 1.0:
            target.echo(f"the log was cut off; run {run_id} is {status}, waiting for its end")
        time.sleep(pause)
        pause = min(2 * pause, 15.0)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `fedapps run`."""
    parser.add_argument(
        "app", nargs="?", type=Path, default=Path(), help="folder of the Flower app [.]"
    )
    add_run_config(parser)
    add_resume(parser)
    parser.add_argument(
        FEDERATION,
        default="",
        metavar="KEYS",
        help="settings of the simulation: the number of SuperNodes (num-supernodes) and the "
        "resources of each (client-resources-num-cpus, client-resources-num-gpus)",
    )
    add_home(parser)
    parser.add_argument(
        "--port", type=int, help="port of the SuperLink [computed from the path of --home]"
    )
    parser.add_argument(
        "--connection",
        default="",
        metavar="NAME",
        help="run on the SuperLink with this name in the home's config.toml [its default]",
    )


def run(options: argparse.Namespace) -> int:
    """Run as the options say; return the exit status. Raises `RunError`."""
    result = launch(
        options.app,
        chosen(options),
        options.federation_config,
        options.home,
        options.port,
        _echo,
        options.connection,
    )
    if result.completed:
        return 0
    log.error(result.error)
    return 1


def _echo(line: str) -> None:
    with log.expendable():
        print(line if sys.stdout.isatty() else _ANSI.sub("", line), flush=True)
