"""Sweeps that start at once: this process imports what they need, and each of them is a fork of it.

    python -m tests.support.sweeps

A line of JSON on standard input are the arguments of `sweep`, a line on standard output is what it
returns. The workers of a sweep are forks, too, which draw no pictures of a run.
"""

import json
import os
import signal
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

from flwr.supercore.task_identity import TaskIdentity

from fedapps import cli, client_app, serial, server_app
from fedapps.compare import curves, files, workers
from fedapps.compare import sweep as sweeps
from fedapps.drawing import pictures
from fedapps.report.report import Report

LOADED = cli, client_app, curves, files, server_app, sweeps
FORK = get_context("fork")
INHERITED = []  # streams that are kept: whoever flushes them at last waits, too
MEET = 120.0  # seconds for two runs to be there at the same time


def sweep(words, journal, hold="", die="", until="", number=9, meet=False, drawn=False):
    """Do `fedapps sweep WORDS` in a process group of its own; return status, output and errors.

    The lines of `journal` say which run begins and ends. A run whose name has `hold` stands still
    between two rounds for ever, one with `die` is killed there. After a line that begins with
    `until`, and with a run of `hold` standing still (with `meet` two), the whole group gets a
    signal, by its number. With `meet` two runs begin when both are there. Without `drawn` the
    comparison has no picture.
    """
    said, says = os.pipe()
    held, holds = os.pipe()
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if not child:
            os.setsid()
            os.dup2(says, 1)
            os.dup2(errors.fileno(), 2)
            os.close(says)
            sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
            arrange(Path(journal), hold, die, holds, FORK.Barrier(2) if meet else None)
            if not drawn:
                pictures.write = lambda draw, path: None
            status = 99
            try:
                status = cli.main(["sweep", *words])
            finally:
                sys.stdout.flush()
                os._exit(status)
        os.close(says)
        os.close(holds)
        lines = []
        with os.fdopen(said, encoding="utf-8") as out:
            for line in out:
                lines.append(line)
                if until and line.startswith(until):
                    for _ in range(bool(hold) * (1 + meet)):
                        assert os.read(held, 1), "no run was held"
                    os.killpg(child, number)
        os.close(held)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        errors.seek(0)
        return {"status": status, "out": "".join(lines), "err": errors.read()}


def serve(pipe, command, serve_=workers._serve):
    """Serve as a worker that is a fork of this process and not spawned."""
    # A fork finds the streams locked for ever if another thread was just printing.
    INHERITED.extend((sys.stdout, sys.stderr))
    sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding="utf8", closefd=False) for n in (1, 2))
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # as in a process that was spawned
    serve_(pipe, command)


def arrange(journal, hold, die, holds, barrier):
    """Have the runs of this process's workers do what `sweep` says."""
    run, write = serial.run_serial, Report.round

    def note(what, flat):
        name = flat["run-name"] or Path(str(flat["resume"])).name
        with journal.open("a") as file:
            file.write(f"{what} {name}\n")

    def run_noted(flat, **options):
        if barrier:
            barrier.wait(MEET)
        note("begin", flat)
        try:
            return run(flat, **options)
        finally:
            note("end", flat)

    def round_(report, row):
        if row.round == 2 and hold and hold in report.folder.name:
            os.write(holds, b"h")
            signal.pause()
        if row.round == 2 and die and die in report.folder.name:
            os.kill(os.getpid(), signal.SIGKILL)
        write(report, row)

    serial.run_serial, Report.round = run_noted, round_
    workers._serve, workers.SPAWN = serve, FORK


if __name__ == "__main__":
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0
    Report._plot = lambda report: None
    Report.draw_page = lambda report, left=None: None
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for request in sys.stdin:
        print(json.dumps(sweep(**json.loads(request))), file=replies, flush=True)
    os._exit(0)  # tearing down all that was imported takes seconds
