"""Runs with given figures, what a comparison leaves behind, and sweeps that start at once."""

import json
import subprocess
import sys

import pandas as pd
import pytest

from fedapps import cli
from fedapps.compare import workers
from fedapps.drawing import pictures
from tests.support import ROOT
from tests.support.made_runs import scored_run


class Compared:
    """What `fedapps compare` or a sweep has printed and written."""

    def __init__(self, out, folder):
        self.out = out
        self.runs = pd.read_csv(folder / "runs.csv")
        self.groups = pd.read_csv(folder / "groups.csv").set_index("group")

    def cells(self, heading):
        """Return the cells of a printed table by the first one of their row, and `""`: the head."""
        lines = iter(self.out.splitlines())
        next(line for line in lines if line.startswith(heading))
        next(lines)
        found, rules = {}, 1
        for line in lines:
            if line.startswith(" ──"):
                rules += 1
                if rules == 3:
                    return found
                continue
            first, *rest = (line if line[2] != " " else "  -" + line[3:]).split("   ")
            found[first.strip().lstrip("-")] = [cell.strip() for cell in rest if cell.strip()]
        raise AssertionError(f"{heading}: no end of the table")


@pytest.fixture
def made(tmp_path):
    """Return make(name, *run_config, scores=, ...) -> run directory; see `scored_run`."""
    return lambda name, *keys, **options: scored_run(tmp_path / "runs", name, *keys, **options)


@pytest.fixture
def compare(tmp_path, capsys, monkeypatch):
    """Return compare(*words, drawn=False) -> what `fedapps compare` has made of them.

    The picture takes longer than all the rest: it is there only if it is asked for.
    """

    def call(*words, drawn=False):
        if not drawn:
            monkeypatch.setattr(pictures, "write", lambda draw, path: None)
        capsys.readouterr()
        output = tmp_path / "comparison"
        status = cli.main(["compare", *map(str, words), "--output", str(output)])
        captured = capsys.readouterr()
        assert (status, captured.err) == (0, ""), captured.err
        assert max(map(len, captured.out.splitlines()[:-3])) <= 100  # the last are paths
        return Compared(captured.out, output)

    return call


@pytest.fixture
def refused(tmp_path, capsys, monkeypatch):
    """Return refused(command, *words) -> the one line of its error; nothing is run or written."""
    monkeypatch.setattr(workers, "SPAWN", None)

    def call(command, *words):
        capsys.readouterr()
        output = tmp_path / "refused"
        assert cli.main([command, *map(str, words), "--output", str(output)]) == 1
        captured = capsys.readouterr()
        assert captured.out == "" and not output.exists()
        (line,) = captured.err.splitlines()
        assert line.startswith("error: ")
        return line.removeprefix("error: ")

    return call


class Swept(dict):
    """Status, output and errors of a sweep."""

    def compared(self, folder):
        """Return its comparison."""
        return Compared(self["out"], folder / "comparison")


@pytest.fixture(scope="module")
def sweep():
    """Return sweep(words, journal, ...) -> `Swept`; see `tests.support.sweeps`."""
    command = [sys.executable, "-m", "tests.support.sweeps"]
    with subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:

        def ask(words, journal, **options):
            request = {"words": [*map(str, words)], "journal": str(journal), **options}
            print(json.dumps(request), file=process.stdin, flush=True)
            return Swept(json.loads(process.stdout.readline()))

        yield ask
        process.stdin.close()
