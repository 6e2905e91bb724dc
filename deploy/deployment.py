"""SuperLink with TLS, proxy and SuperNodes with keys on one machine, all of them real processes.

The folder of a deployment holds certificates/, keys/, homes/ (each process is a machine of its own
to Flower), logs/, and devices/: the state-dir of the first device is devices/device-0. Devices
reach the proxy only. Two deployments on a machine share nothing but its ports, which are drawn.
"""

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from fedapps.core.errors import RunError, one_line
from fedapps.core.options import quoted
from fedapps.launch import launch
from fedapps.launcher.flwr import Flwr
from fedapps.launcher.outcome import LaunchResult
from fedapps.launcher.processes import end
from fedapps.launcher.superlink import environment

HERE = Path(__file__).parent
NAME = "local"  # the SuperLink's name in the operator's config.toml
SUPERLINK = (sys.executable, "-m", "fedapps", "superlink")
SUPERNODE = (sys.executable, "-m", "fedapps.device.supernode")
_REFERENCE = "For more information, visit"  # Flower's last line, below the one that says why
READY = 300.0  # seconds for a process to be there; on a busy machine a start takes minutes
PORTS = range(12_000, 32_000)
QUICK = {
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",  # Flower's is 1 s; 0.05 s takes 7 % of a core
    "NO_PROXY": "127.0.0.1",
}


class Deployment:
    """The processes of a deployment in `folder`; a context manager that ends them all.

    In the main thread also at SIGTERM and SIGHUP, which would otherwise leave them to run on.
    `nginx` are further lines for the proxy's http block, `program` is what a SuperNode is, and
    `server` what the SuperLink is.
    """

    def __init__(
        self,
        folder: Path,
        nginx: str = "",
        program: Sequence[str] = SUPERNODE,
        server: Sequence[str] = SUPERLINK,
    ) -> None:
        self.folder, self.nginx, self.program = folder.resolve(), nginx, program
        self.server = server
        self.port, self.proxy_port = free_port(), 0
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._begins: dict[str, int] = {}  # where the log of each process begins
        self._handlers: dict[int, Any] = {}  # what they were before, and
        self._umask = 0o077  # what that was
        self._operator = self._new_flwr()

    def __enter__(self) -> "Deployment":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGHUP):
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                    self._handlers[number] = signal.signal(number, _leave)
        self._umask = os.umask(0o077)  # keys, state and logs, also of what is started, are private
        try:
            self._prepare()
            self.start_superlink()
            self.proxy_port = self.start_proxy("proxy", self.certificates)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.close()
        finally:
            os.umask(self._umask)
            for number, handler in self._handlers.items():
                signal.signal(number, handler)

    def close(self) -> None:
        """End all processes and what they started."""
        self._operator.close()
        end({process.pid for process in self.processes.values() if process.poll() is None})
        for process in self.processes.values():
            process.wait()

    def start_superlink(self) -> None:
        """Start the SuperLink, on the loopback address: nobody but this machine reaches it."""
        files = self.certificates
        options = _options(
            host="127.0.0.1",
            port=self.port,
            ssl_certfile=files / "server.crt",
            ssl_keyfile=files / "server.key",
            ssl_ca_certfile=files / "ca.crt",
        )
        flags = ("--enable-supernode-auth", "--disable-runtime-dependency-installation")
        self.start("superlink", [*self.server, *options, *flags])
        self._wait_for("superlink", self.port)

    def start_proxy(self, name: str, certificates: Path) -> int:
        """Start a proxy in front of the SuperLink and return its port, which devices are to use."""
        folder, port = self.folder / name, free_port()
        (folder / "extra").mkdir(parents=True, exist_ok=True)
        (folder / "extra" / "more.conf").write_text(self.nginx)
        listen, superlink = f"127.0.0.1:{port}", f"127.0.0.1:{self.port}"
        words = map(str, (HERE / "proxy.sh", folder, certificates, listen, superlink))
        self.start(name, ["sh", *words])
        self._wait_for(name, port)
        return port

    def register(self, *names: str) -> None:
        """Make keys for SuperNodes, unless they have one, and tell the SuperLink of them.

        The SuperLink keeps nothing: each one has to be told.
        """
        keys = self.folder / "keys"
        for name in names:
            if not (keys / f"{name}.key").exists():
                self.script("device-key.sh", keys, name)
            self.flwr("supernode", "register", str(keys / f"{name}.pub"), NAME)

    def supernode(
        self, name: str, node_config: str = "", port: int = 0, **env: str
    ) -> subprocess.Popen[bytes]:
        """Start a SuperNode with the key of its name.

        A device whose node-config names no `state-dir` keeps its state in a folder here.
        """
        state = self.folder / "devices" / name
        device = "client-id" in node_config and "state-dir" not in node_config
        own = f'state-dir="{state}"' if device else ""
        options = _options(
            superlink=f"127.0.0.1:{port or self.proxy_port}",
            root_certificates=self.certificates / "ca.crt",
            auth_supernode_private_key=self.folder / "keys" / f"{name}.key",
            node_config=quoted(f"{node_config} {own}".strip()),
            port=free_port(),
        )
        return self.start(name, [*self.program, *options], **env)

    def joined(self, name: str) -> None:
        """Wait until the SuperLink has let a SuperNode in; raises `RunError` if it does not."""
        start = time.monotonic()
        while "SuperNode ID" not in self._printed(name):
            if self.processes[name].poll() is not None or time.monotonic() > start + READY:
                raise RunError(f"{name} did not start: {self._last_line(name)}")
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """End a SuperNode and all that it started as a power cut does: SIGKILL, no goodbye."""
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        """End a process and what it started; a SuperNode says goodbye."""
        process = self.processes.pop(name)
        end({process.pid})
        process.wait()

    def run(
        self, *run_config: str, app: Path = HERE.parent, echo: Callable[[str], None] = print
    ) -> LaunchResult:
        """Run an app on the SuperLink, as the operator does, and wait for its end."""
        with self._new_flwr() as flwr:
            return launch(app, run_config, home=self.home, echo=echo, connection=NAME, flwr=flwr)

    def stop_run(self) -> None:
        """Stop the newest run, as the operator does."""
        newest = self._operator.answer("ls", NAME)["runs"][0]
        self.flwr("stop", str(newest["run-id"]), NAME)

    def flwr(self, *words: str) -> str:
        """Run an operator's `flwr` command and return what it printed; raises `RunError`."""
        said = "\n".join(self._operator.lines(*words))
        if self._operator.status:
            raise RunError(f"flwr {words[0]}: {' '.join(said.split())}")
        return said

    def script(self, name: str, *words: object) -> None:
        """Run one of the scripts beside this file; raises `RunError` with what it said."""
        command = ["sh", str(HERE / name), *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise RunError(f"{name}: {(done.stderr.strip() or done.stdout.strip())}")

    def start(self, name: str, command: Sequence[str], **env: str) -> subprocess.Popen[bytes]:
        """Start a process in a session and with a Flower home of its own; its lines go to a log."""
        home = self.folder / "homes" / name
        home.mkdir(parents=True, exist_ok=True)
        settings = environment(home, own=False) | QUICK | env
        settings.pop("PYTHONDONTWRITEBYTECODE", None)  # else each process compiles the app anew
        program = shutil.which(command[0], path=settings["PATH"]) or command[0]
        self._begins[name] = self.log(name).stat().st_size if self.log(name).exists() else 0
        with self.log(name).open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [program, *command[1:]], env=settings, cwd=home, stdin=subprocess.DEVNULL,
                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        return self.processes[name]

    def log(self, name: str) -> Path:
        """Return the file with what a process printed."""
        return self.folder / "logs" / f"{name}.log"

    @property
    def certificates(self) -> Path:
        """Folder of the CA's and the server's certificates and keys."""
        return self.folder / "certificates"

    @property
    def home(self) -> Path:
        """The operator's FLWR_HOME."""
        return self.folder / "homes" / "operator"

    # Inside -------------------------------------------------------------------------------

    def _new_flwr(self) -> Flwr:
        return Flwr(environment(self.home, own=False) | QUICK)

    def _prepare(self) -> None:
        for name in ("logs", "keys", "homes", "homes/operator", "devices"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
            (self.folder / name).chmod(0o700)
        self.script("certificates.sh", self.certificates, "127.0.0.1", "localhost")
        (self.home / "config.toml").write_text(
            f'[superlink]\ndefault = "{NAME}"\n\n[superlink.{NAME}]\n'
            f'address = "127.0.0.1:{self.port}"\n'
            f'root-certificates = "{self.certificates / "ca.crt"}"\n'
        )

    def _wait_for(self, name: str, port: int) -> None:
        start = time.monotonic()
        while time.monotonic() < start + READY and self.processes[name].poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            time.sleep(0.05)
        raise RunError(f"{name} did not start: {self._last_line(name)}")

    def _last_line(self, name: str) -> str:
        lines = self._printed(name).splitlines()
        return one_line("\n".join(line for line in lines if not line.startswith(_REFERENCE)))

    def _printed(self, name: str) -> str:
        return self.log(name).read_bytes()[self._begins[name] :].decode(errors="replace")


def _leave(number: int, frame: object) -> None:
    sys.exit(128 + number)


def _options(**options: object) -> list[str]:
    """Return keyword arguments as the words of a command line."""
    named = ((f"--{key.replace('_', '-')}", str(value)) for key, value in options.items())
    return list(chain.from_iterable(named))


def free_port() -> int:
    """Return a port of this machine that nobody listens at; raises `RunError` if none is found.

    It is below those that a system gives to outgoing connections, and drawn at random: another
    program, or another deployment that starts now, hardly takes it before its process does.
    """
    draws = random.SystemRandom()
    for _ in range(100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", draws.choice(PORTS)))
            return int(probe.getsockname()[1])
    raise RunError(f"no free port was found in {PORTS.start} to {PORTS.stop - 1}")
