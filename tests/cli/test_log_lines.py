"""Lines that a run prints: those that tell something, once, and none that does not."""

import ast
import io
import logging
import os
import subprocess
import sys
import textwrap
import warnings
from types import SimpleNamespace

import pytest
from flwr.app import Error, Message, RecordDict

from fedapps.core import commands, log, quiet
from fedapps.core.errors import RunError
from fedapps.engine.failures import refuse_dead_workers
from fedapps.method.update import Failure
from fedapps.serial import main
from fedapps.wire.fleet import Fleet
from fedapps.wire.grid import StreamingGrid
from fedapps.wire.nodes import NodeRegistry
from fedapps.wire.replies import unpack_reply
from tests.support import ROOT
from tests.support.clock import passing
from tests.support.marks import FULL, FULL_DISK

# As Flower 1.41 gives it to the server when a process of Ray's was killed.
KILLED = (
    "<class 'ray.exceptions.ActorDiedError'>:<'The actor died unexpectedly before finishing this "
    "task.\n\tclass_name: ClientAppActor\nThe actor is dead because its worker process has died. "
    "Worker exit type: SYSTEM_ERROR Worker exit detail: Worker unexpectedly exits.'>"
)


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
@pytest.mark.parametrize("by", ["print", "log"])
def test_what_an_encoding_does_not_have_is_printed_as_an_escape(by, errors, monkeypatch, capsys):
    """Such as the path of a run directory, which comes after all the training."""
    written, path = io.BytesIO(), "/runs/ünï-語"
    stdout = io.TextIOWrapper(written, "ascii", errors)
    monkeypatch.setattr(sys, "stdout", stdout)
    if by == "log":
        log.info("%s", path)
    else:
        status = commands.execute("x", None, lambda _: None, lambda _: print(path) or 0, [])
        assert status == 0
    stdout.flush()
    assert written.getvalue() == rb"/runs/\xfcn\xef-\u8a9e" + os.linesep.encode()
    assert capsys.readouterr().err == ""


@pytest.fixture
def shown():
    """Return shown(text, error=None): whether Flower's log shows a line in this process."""
    lines = quiet._Telling()

    def show(text, error=None):
        exc_info = (type(error), error, None) if error else None
        record = logging.LogRecord("flwr", logging.ERROR, "x.py", 1, text, (), exc_info)
        return bool(lines.filter(record))

    return show


def test_a_mistake_in_the_settings_has_no_traceback(shown):
    assert shown("error: alpha = 0: must be float > 0")
    assert shown("Exit Code: 700\n\nAn unhandled exception occurred")
    assert not shown("Simulation raised an exception", RunError("alpha = 0"))
    assert not shown("Exit Code: 700\n\nAn unhandled exception occurred")


def test_a_mistake_in_the_code_keeps_its_traceback(shown):
    assert shown("Simulation raised an exception", KeyError("x"))
    assert shown("Exit Code: 700\n\nAn unhandled exception occurred")


@pytest.mark.parametrize(("text", "stays"), [
    ("", False),
    ("  \n", False),
    ("Manually terminating ClientAppActor", False),
    ("An exception was raised when processing a message by RayBackend", False),
    ("The actor died unexpectedly before finishing this task.\n\tclass_name: ClientApp", False),
    ("Traceback (most recent call last):\n  File x\nray.exceptions.ActorDiedError: The a", False),
    ("Traceback (most recent call last):\n  File x\nKeyError: 'x'", True),
    ("Starting Flower Simulation", True),
])  # fmt: skip
def test_lines_of_flower_that_tell_nothing_are_left_out(shown, text, stays):
    assert shown(text) == stays


@pytest.mark.parametrize("app", ["server_app", "client_app"])
def test_both_apps_keep_such_lines_out(app):
    """`quiet` works when it is imported, which both modules do before all else."""
    tree = ast.parse((ROOT / "fedapps" / f"{app}.py").read_text("utf-8"))
    first = next(node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom))
    assert ast.unparse(first) == "import fedapps.core.quiet"


def test_such_lines_are_kept_out_of_a_process_that_imports_quiet():
    assert any(isinstance(f, quiet._Telling) for f in logging.getLogger("flwr").filters)
    with warnings.catch_warnings(record=True) as seen:
        warnings.filterwarnings("ignore", quiet._OF_RAY, FutureWarning)
        warnings.warn("Tip: In future versions of Ray, Ray will no longer", FutureWarning, 1)
        warnings.warn("Tip of another kind", FutureWarning, 1)
    assert [str(warning.message) for warning in seen] == ["Tip of another kind"]


@pytest.mark.parametrize(("at_least", "ready", "starting", "line"), [
    (1, 0, 2, "2 SuperNodes starting, for 7 s now"),
    (3, 2, 1, "1 SuperNode starting, for 7 s now"),
    (3, 0, 0, "waiting for 3 SuperNodes: 0 of 3 are ready (min-available)"),
    (4, 2, 1, "waiting for 1 SuperNode: 2 of 4 are ready (min-available), 1 starting"),
])  # fmt: skip
def test_a_wait_says_who_starts_and_who_is_missing(at_least, ready, starting, line):
    registry = NodeRegistry(StreamingGrid(None), at_least, 60.0)
    assert registry._waiting(Fleet(list(range(ready))), starting, 7.4) == line


def test_a_long_wait_is_told_whenever_it_has_doubled(monkeypatch, capsys):
    from fedapps.wire import nodes

    class Empty:
        def get_node_ids(self):
            return []

        def pull_messages(self, ids):
            return []

    passing(monkeypatch, nodes)
    registry = NodeRegistry(StreamingGrid(Empty()), 2, timeout=100.0)
    with pytest.raises(RunError, match=r"^0 of 2 SuperNodes .* after 100 s \(round-timeout\)"):
        registry.wait_for_nodes()
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["waiting for 2 SuperNodes: 0 of 2 are ready (min-available)"] * 5  # 5 ... 80 s


def test_a_serial_run_that_diverges_has_no_traceback(tiny_npz, tmp_path, data_root, capsys):
    folders = f"runs-dir={tmp_path}/runs data-root={data_root}"
    run = f"strategy=fedavg lr=1e9 num-clients=4 num-rounds=2 fraction-train=1.0 {folders}"
    assert main(["-c", tiny_npz, "-c", run]) == 1
    captured = capsys.readouterr()
    (line,) = captured.err.splitlines()
    first = "client 0: training diverged: "
    assert line.startswith(f"error: round 1: 4 of 4 clients failed (all failed); {first}")
    advice = "warning: round 1: training diverged at 4 of 4 clients: lower lr = 1e+09, or limit "
    assert captured.out.count(advice) == 1


def test_a_dead_worker_is_a_line_with_what_to_do():
    message = Message(RecordDict(), 1, "train")
    reply = Message(Error(0, KILLED), reply_to=message)
    requests = [SimpleNamespace(client=client) for client in (0, 3)]
    _, failures = unpack_reply(requests, reply, layout=None)
    cause = "its worker process died (ActorDiedError)"
    assert failures == [Failure(0, cause, True), Failure(3, cause, True)]
    with pytest.raises(RunError) as caught:
        refuse_dead_workers(4, [Failure(1, "no luck"), *failures])
    assert str(caught.value).startswith("round 4: the worker process of clients 0, 3 died, usually")
    assert "client-resources-num-cpus=2" in str(caught.value)
    refuse_dead_workers(4, [Failure(1, "no luck")])


WAYS = {  # of printing what is of no use without a reader, and lasts elsewhere
    "log": "from fedapps.core.log import info as tell\n",
    "launch": "from fedapps.launch import _echo as tell\n",
    "serial": """
        from fedapps import serial
        serial.run_serial = lambda *_, **how: Path("runs") / ("x" * 100)
        tell = lambda _: serial.main([])
    """,
    "sweep": """
        from fedapps.compare.progress import Progress
        progress = Progress(Path("x"), []).__enter__()
        tell = lambda line: progress._print(line)
    """,
    "summary": """
        from fedapps.core.config import parse, read
        from fedapps.report import summary
        settings = read(parse([]))
        summary._table_rows = lambda line, *_: [(line, "x" * 70)] * 50
        tell = lambda line: summary.print_summary(line, settings, None)
    """,
}
PIPED = {"stderr": subprocess.PIPE, "text": True}


def python(program, stdout, *words, unbuffered=""):
    """Start a program, whose lines can be indented, in a process of its own."""
    command = [sys.executable, "-c", textwrap.dedent(program), *words]
    env = os.environ | {"PYTHONUNBUFFERED": unbuffered}  # with it, print itself fails
    return subprocess.Popen(command, cwd=ROOT, env=env, stdout=stdout, **PIPED)


@pytest.mark.parametrize("way", WAYS)
def test_lines_whose_reader_has_gone_are_dropped_without_a_word(way):
    """As in `fedapps serial | head -1`: the run goes on, and log.txt has all lines."""
    times = 50 if way == "summary" else 1000  # more than the 64 KiB that a pipe takes
    program = (
        "import sys\nfrom pathlib import Path\n"
        + textwrap.dedent(WAYS[way])
        + textwrap.dedent(f"""
        for number in range({times}): tell(f'line {{number:100}}')
        print('the end'); sys.stdout.flush(); print('done', file=sys.stderr)
    """)
    )
    with python(program, subprocess.PIPE, unbuffered="1") as process:
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == "done\n"
    assert process.returncode == 0


@FULL_DISK
@pytest.mark.parametrize("way", WAYS)
def test_lines_that_a_full_disk_does_not_take_are_dropped_without_a_word(way):
    program = "import sys\nfrom pathlib import Path\n" + textwrap.dedent(WAYS[way])
    program += "tell('a'); tell('b')\nsys.exit(7)"
    with FULL.open("w") as full, python(program, full, unbuffered="1") as process:
        assert process.stderr.read() == ""
    assert process.returncode == 7


PRINTS = """
    import os, sys
    from fedapps.core import commands
    def run(_):
        assert os.open(os.devnull, os.O_RDONLY) > 2, "a file in the place of a stream"
        print("what was asked for")
        return 0
    sys.exit(commands.execute("x", None, lambda _: None, run, []))
"""


@FULL_DISK
def test_a_result_that_a_full_disk_does_not_take_is_an_error():
    with FULL.open("w") as full, python(PRINTS, full) as process:
        assert process.stderr.read() == "error: standard output: No space left on device\n"
    assert process.returncode == 1


def test_a_result_that_nobody_reads_is_none():
    with python(PRINTS, subprocess.PIPE) as process:
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize("closed", ["0", "1", "0 1", "0 1 2"])
def test_streams_can_be_closed(closed):
    """As in `fedapps serial >&-`, or in a service that closes them."""
    program = """
        import os, sys
        for stream in sys.argv[2].split(): os.close(int(stream))
        os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
    """
    with python(program, subprocess.PIPE, textwrap.dedent(PRINTS), closed) as process:
        assert process.stdout.read() == ("" if "1" in closed else "what was asked for\n")
        assert process.stderr.read() == ""
    assert process.returncode == 0
