"""The SuperLink that `flwr run` starts for a home: find it, choose its port, end it."""

import contextlib
import fcntl
import itertools
import os
import re
import secrets
import shlex
import socket
import sys
import time
import tomllib
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import getproxies_environment

import psutil

from fedapps.core import flower, log
from fedapps.core.errors import RunError, one_line
from fedapps.core.files import writing
from fedapps.core.flower import bin_dir
from fedapps.core.paths import expanded
from fedapps.launcher.processes import elsewhere, end, has_another, living

PORT = "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT"
FIXED = 39091  # what Flower takes without it
LOCAL = (":local:", ":local-in-memory:")  # the addresses of a SuperLink that Flower starts
STARTED = 90.0  # seconds after which a SuperLink has made its database, or never will
# What a user may set for a run; all processes of a run have the variables of their SuperLink.
INHERITED = ("CUDA_VISIBLE_DEVICES", "RAY_ADDRESS", "RAY_TMPDIR", log.LEVEL)
# Of Slurm, PBS, LSF and SGE: what a batch job, or a task of an array, has started ends with it.
JOBS = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "LSB_JOBINDEX", "JOB_ID", "SGE_TASK_ID")
READ = {"mlflow": "MLFLOW_", "wandb": "WANDB_"}  # what the variables of a logger begin with
STORE = "MLFLOW_TRACKING_URI"
RELATIVE = re.compile(r"(sqlite(\+\w+)?:///|file:)?(?!/|databricks|uc$)[^:]+")  # in a folder
NO_PROXY = (("no_proxy", "NO_PROXY"), ("NO_PROXY", "no_proxy"))  # programs read either of them


@dataclass(frozen=True)
class SuperLink:
    """A running SuperLink of one home."""

    pid: int
    port: int
    bin_dir: Path
    python: str = ""  # what its command line begins with
    in_memory: bool = False  # it has no database

    @property
    def age(self) -> float:
        """Seconds since it was started; 0 if it is gone."""
        try:
            return time.time() - psutil.Process(self.pid).create_time()
        except psutil.NoSuchProcess:
            return 0.0

    @property
    def start(self) -> tuple[Path, dict[str, str]] | None:
        """The folder and the environment in which it works; None if it is gone, or not readable."""
        try:
            process = psutil.Process(self.pid)
            return Path(process.cwd()), process.environ()
        except psutil.Error:
            return None

    @property
    def version(self) -> str:
        """The version of Flower in the SuperLink's environment, or "?" if it is unknown."""
        from importlib import metadata  # imported here, because it would delay the help text

        places = [str(path) for path in self.bin_dir.parent.glob("lib/python*/site-packages")]
        found = metadata.distributions(name="flwr", path=places)
        return next((package.version for package in found), "?")


def superlink(home: Path | None) -> SuperLink | None:
    """Return the SuperLink that `flwr run` started for `home`, if it is running.

    It must be of this user, or of the owner of `home`: anybody else could give any process its
    words, and get this user's runs.
    """
    log_file, place, owners = log_of(home), flower_home(home), {os.getuid()}
    with contextlib.suppress(OSError):  # there is none, or it is out of reach
        owners.add(log_file.stat().st_uid)
    for process in living():
        words = process.info["cmdline"]
        scripts = [word for word in words[:2] if Path(word).name == "flower-superlink"]
        if scripts and "--log-file" in words and "--port" in words:
            options = dict(itertools.pairwise(words))
            same = os.path.realpath(options["--log-file"]) == os.path.realpath(log_file)
            with contextlib.suppress(psutil.Error):  # it is gone
                if same and process.uids().real in owners and not elsewhere(process.pid, place):
                    port, held = int(options["--port"]), "--database" not in words
                    return SuperLink(process.pid, port, Path(scripts[0]).parent, words[0], held)
    return None


def stop(home: Path | None = None) -> bool:
    """End the SuperLink of `home` and all that it started; return False if there was none.

    Runs that are going on are lost. Flower does not record the process id, so the SuperLink is
    found by its command line, which names the home. Processes that a killed SuperLink left behind
    are found by their environment.
    """
    link = superlink(home)
    return end({*_orphans(flower_home(home)), *([link.pid] if link else [])})


def flower_home(home: Path | None) -> Path:
    """Return the absolute path of a home; None stands for Flower's default home."""
    return expanded(str(home or os.environ.get("FLWR_HOME") or "~/.flwr")).resolve()


def connections(home: Path | None) -> dict[str, bool]:
    """Tell of each SuperLink in a home's config.toml whether it is the one that Flower starts.

    The name "" stands for the default. Raises `RunError` for a file that cannot be read.
    """
    path = flower_home(home) / "config.toml"
    try:
        found = tomllib.loads(path.read_text("utf-8")).get("superlink", {})
        if not isinstance(found, dict):
            raise ValueError("superlink is no table")
    except FileNotFoundError:
        found = {"default": "local", "local": {}}  # as Flower would make it
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read ({one_line(str(error))})") from error
    tables = {name: about for name, about in found.items() if isinstance(about, dict)}
    own = {name: about.get("address", LOCAL[0]) in LOCAL for name, about in tables.items()}
    return {"": own.get(str(found.get("default")), False), **own}


def not_running(home: Path | None) -> str:
    """Say that a home has no SuperLink of ours; one that config.toml names may still run."""
    return f"no SuperLink that `fedapps run` started in {flower_home(home)} is running"


def log_of(home: Path | None) -> Path:
    """Return the path of the log of a home's SuperLink, which is in the SuperLink's folder."""
    return flower_home(home) / "local-superlink" / "superlink.log"


def database_of(home: Path | None) -> Path:
    """Return the path of the database of a home's SuperLink."""
    return log_of(home).with_name("state.db")


def in_use(database: Path) -> bool:
    """Tell whether a process, on whatever machine, has opened a database.

    SQLite then has a lock on it, which is seen over NFS, too, and does not outlive the process.
    """
    with contextlib.suppress(OSError), database.open("r+b") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def environment(
    home: Path | None, port: int | None = None, own: bool = True, loggers: str = ""
) -> dict[str, str]:
    """Return the environment for `flwr`: home, port, and this interpreter's programs first in PATH.

    With `own`, it is for the SuperLink that `flwr` itself starts for the home. Runs use the
    installed packages; otherwise Flower would install the app's dependencies for each run. Ray gets
    a token: it listens on all addresses, and whoever may connect to it can run code. Raises
    `RunError` if that SuperLink's port or database is another one's, or it runs in another way, as
    with other variables that the `loggers` of the run read; or if the store of one is relative.
    """
    if own:
        _check_database(home)
        _check_running(home, loggers)
        _check_store(loggers)
    env = dict(flower.environment(), PYTHONUNBUFFERED="1")
    warnings = [env.get("PYTHONWARNINGS", ""), "ignore:Tip:FutureWarning:ray._private.worker"]
    env["PYTHONWARNINGS"] = ",".join(filter(None, warnings))  # hides a tip for Ray programmers
    env.setdefault("FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION", "1")
    # Otherwise, the user has chosen a login or runs a Ray of their own.
    if "RAY_AUTH_MODE" not in env and env.get("RAY_ADDRESS", "local") == "local":
        env |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    if getproxies_environment():  # else, macOS has its own proxy, which `no_proxy` would replace
        env |= {name: _direct(env.get(name) or env.get(other, "")) for name, other in NO_PROXY}
    env["FLWR_HOME"] = str(flower_home(home))  # absolute: `flwr` works in another folder
    if own:
        with writing(log_of(home)):
            log_of(home).parent.mkdir(parents=True, exist_ok=True)
        env[PORT] = str(choose_port(home, port))
    return env


def _direct(hosts: str) -> str:
    """Add this machine, where Flower's programs reach each other, to the hosts without a proxy."""
    return hosts if hosts == "*" else ",".join(filter(None, [hosts, "127.0.0.1,localhost"]))


def _check_database(home: Path | None) -> None:
    """Raise `RunError` if the SuperLink of another machine uses the database of a home."""
    database = database_of(home)
    if superlink(home) is None and in_use(database) and superlink(home) is None:  # nor since then
        raise RunError(
            f"{database} is in use, but not by a SuperLink of this machine or container; end it "
            "where it runs (fedapps stop), or use --home with a folder on a local disk"
        )


def _check_running(home: Path | None, loggers: str) -> None:
    """Raise `RunError` if a SuperLink runs for a home, but not as one started here would."""
    if (link := superlink(home)) is None:
        return
    own, now, problem = log_of(home).parent, dict(os.environ), ""
    folder, then = link.start or (own, now)
    then = then or now  # some systems show none of another process; ours has at least a PATH
    for variables in (now, then):  # as the log reads it
        variables[log.LEVEL] = variables.get(log.LEVEL, "").lower() or "info"
    counts = (*INHERITED, *JOBS, *(READ[name] for name in READ if name in loggers))
    names = [name for name in sorted(now | then) if name.startswith(counts)]
    other = [name for name in names if now.get(name) != then.get(name)]
    if link.bin_dir.resolve() != bin_dir().resolve():
        problem = f"runs in {link.bin_dir.parent}, not in {sys.prefix}"
    elif has_another(link.pid, bin_dir()):
        problem = f"runs in a container that has another {bin_dir()}"
    elif not link.in_memory and link.age > STARTED and not database_of(home).exists():
        problem = "has lost its database: its folder was deleted"
    elif folder != own and not _same(folder, own):  # by `flwr run`, in a checkout
        problem = f"was started in {folder}, and modules there come before those of the app"
    elif other:
        problem = f"was started with another {', '.join(other)}, which would still count"
    if problem:
        how = f"fedapps stop --home {shlex.quote(str(home))}" if home else "fedapps stop"
        how = f"end it and its runs ({how}), or use another --home"
        raise RunError(f"the SuperLink of {flower_home(home)} {problem}; {how}")


def _check_store(loggers: str) -> None:
    """Raise `RunError` if MLflow would look for its store in the folder of the SuperLink."""
    uri = os.environ.get(STORE, "")
    if "mlflow" in loggers and RELATIVE.fullmatch(uri):
        there = f"sqlite:///{Path.cwd()}/mlflow.db"
        raise RunError(f'{STORE} = "{uri}": must be absolute, for example {there}')


def _same(one: Path, other: Path) -> bool:
    """Tell whether two paths lead to the same folder, as through a link; False if one is gone."""
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return False


def choose_port(home: Path | None, port: int | None = None) -> int:
    """Return the port of the home's SuperLink.

    It is the port of a running SuperLink, or else `port`, or else one derived from the home's path;
    for None, Flower's fixed one. Raises `RunError` if a running one has another port than `port`,
    or the port cannot be, or is in use: Flower would send the run to any SuperLink that answers.
    """
    link, whose = superlink(home), f"SuperLink of {flower_home(home)}"
    if link is not None:
        if port not in (None, link.port):
            raise RunError(f"the {whose} has port {link.port}, not {port}; stop it")
        return link.port
    given, name = "" if port is None else str(port), "--port "
    if home is None and port is None:
        given, name = os.environ.get(PORT) or str(FIXED), f"{PORT}="
    if given:
        if not re.fullmatch("[0-9]{1,5}", given) or not 0 < int(given) < 2**16:
            raise RunError(f"{name}{given}: must be a whole number from 1 to 65535")
        if not _free(port := int(given)):
            raise RunError(f"port {port} is in use, and not by a {whose}; use --home or --port")
        return port
    first = 20000 + zlib.crc32(str(flower_home(home)).encode()) % 10000
    return next(candidate for candidate in range(first, 32768) if _free(candidate))


def _orphans(home: Path) -> Iterator[int]:
    """Yield Flower's processes of this home that a killed SuperLink has left behind."""
    for process in living():
        programs = {Path(word).name for word in process.info["cmdline"][:2]}
        if programs & {"flower-superexec", "flwr-simulation"}:
            with contextlib.suppress(psutil.Error):  # gone, or another user's
                own = process.environ().get("FLWR_HOME") == str(home)
                if own and not elsewhere(process.pid, home):
                    yield process.pid


def _free(port: int) -> bool:
    """Tell whether a port can be taken; raises `RunError` if this user may not open it."""
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except PermissionError as error:
        told = "this user may not open it; use another --port, such as one above 1023"
        raise RunError(f"port {port}: {told}") from error
    except OSError:
        return False
