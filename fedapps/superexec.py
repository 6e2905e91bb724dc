"""Flower's SuperExec for a SuperNode, with processes that have the libraries loaded already.

Flower starts a process for each message, and most of what it does is to load torch: 2.8 s of a
core on the machine of README's figures, more on a small device. Here one process loads the
libraries when the SuperNode starts, and each message gets a fork of it. The app is not in it: each
message loads the one that was sent.
"""

import contextlib
import multiprocessing
from logging import WARNING
from multiprocessing import forkserver

from flwr.supercore import log
from flwr.supercore.cli import flower_superexec
from flwr.supercore.constant import TaskType
from flwr.supercore.superexec import run_superexec as loop
from flwr.supercore.superexec.executor import ExecutionSpec, LaunchResult, SubprocessExecutor
from flwr.supercore.tls import validate_and_resolve_root_certificates
from flwr.supernode.runtime.run_clientapp import run_clientapp

from fedapps.errors import one_line

# Not numpy.random: all messages would begin with the same state of its global generator.
LIBRARIES = (
    "flwr.clientapp",
    "flwr.supernode.runtime.run_clientapp",
    "msgspec",
    "safetensors.torch",
    "torch",
)


class ForkingExecutor(SubprocessExecutor):
    """Starts ClientApps as forks; whatever needs an environment of its own, as Flower does."""

    def __init__(self) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([*LIBRARIES])
        with contextlib.suppress(OSError):  # tried again for each message, which says so
            forkserver.ensure_running()

    def launch(self, spec: ExecutionSpec) -> LaunchResult:
        """Start the process of a message."""
        if spec.task_type is not TaskType.CLIENT_APP or spec.runtime_dependency_install:
            return super().launch(spec)
        certificates = validate_and_resolve_root_certificates(
            spec.root_certificates_path, spec.insecure
        )
        process = self.context.Process(
            target=run_clientapp,
            args=(spec.runtime_api_address, spec.token, spec.insecure, certificates),
            kwargs={"parent_pid": spec.parent_pid, "runtime_dependency_install": False},
        )
        try:
            process.start()
        except (OSError, EOFError) as error:  # EOFError: it was killed just now
            log(WARNING, "no fork (%s), starting the process as Flower does", one_line(str(error)))
            return super().launch(spec)
        return LaunchResult.accepted()

    def close(self) -> None:
        """End those that still run; at its end Python would wait for them."""
        for process in multiprocessing.active_children():
            process.terminate()


def main() -> None:
    """Run a SuperExec with the options of `flower-superexec`; never returns."""
    vars(loop)["get_executor"] = lambda *_, **__: ForkingExecutor()
    flower_superexec()
