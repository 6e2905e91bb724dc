"""Calls of `flwr` that share a process."""

import os
import signal
import sys

import pytest

from fedapps.core.errors import RunError
from fedapps.launcher.flwr import PATIENCE, Flwr, program

PID = "import os; print(os.getpid())"


@pytest.fixture
def called(flwr):
    """Return called(script) -> a `Flwr` that runs a script; all of them end with the test."""
    made: list[Flwr] = []

    def call(script, **options):
        flwr(script)
        made.append(Flwr({}, **options))
        return made[-1]

    yield call
    for one in made:
        one.close()


def test_calls_share_a_process_until_it_is_ended(called):
    flwr = called(PID)
    first, second = ([*flwr.lines("ls")] for _ in range(2))
    flwr.close()
    assert first == second != [*flwr.lines("ls")]


def test_each_call_has_words_and_a_status_of_its_own(called):
    flwr = called("print(sys.argv[1:]); sys.exit({'three': 3, 'text': 'why'}.get(sys.argv[1]))")
    for word, status in [("none", 0), ("three", 3), ("text", 1), ("none", 0)]:
        lines = [*flwr.lines(word, "x y")]
        assert lines[0] == str([word, "x y"]) and flwr.status == status
        assert lines[1:] == ["why"] * (word == "text"), "as of a process"


def test_errors_are_among_the_lines_and_the_next_call_works(called):
    flwr = called("print('so far'); sys.stderr.write('oh'); 1 / len(sys.argv[2:])")
    lines = [*flwr.lines("run")]
    assert lines[0] == "so far" and lines[-1] == "ZeroDivisionError: division by zero"
    assert flwr.status == 1
    assert [*flwr.lines("run", "x")] == ["so far", "oh"] and flwr.status == 0


def test_a_line_comes_when_it_is_printed(called):
    flwr = called("print('first', flush=True); time.sleep(600)")
    lines = flwr.lines("run")
    assert next(lines) == "first"
    lines.close()  # ends the process, too


def test_a_process_that_is_killed_ends_the_lines_and_another_takes_its_place(called):
    flwr = called(PID)
    (pid,) = flwr.lines("ls")
    os.kill(int(pid), signal.SIGKILL)
    while [*flwr.lines("ls")] == []:
        assert flwr.status == 1
    assert flwr.status == 0


def test_nobody_answers_its_questions(called):
    """Else it would take the next call's words for an answer."""
    flwr = called("print(repr(sys.stdin.read()))")
    assert [*flwr.lines("run"), *flwr.lines("run")] == ["''", "''"]


def test_modules_of_the_folder_are_not_taken(called, tmp_path):
    (tmp_path / "colorsys.py").write_text("print('mine')")
    flwr = called("import colorsys, os; print(os.getcwd())", cwd=tmp_path)
    assert [*flwr.lines("run")] == [str(tmp_path)]


def test_what_is_no_answer_is_a_line(called):
    flwr = called("print({'a': 'nothing', 'b': '{\"success\": true, \"runs\": []}'}[sys.argv[1]])")
    with pytest.raises(RunError, match="flwr ls: nothing"):
        flwr.answer("a")
    assert flwr.answer("b")["runs"] == []


def test_a_folder_without_flwr_is_a_line(tmp_path):
    with pytest.raises(RunError, match="has no flwr program; install this project there"):
        program(tmp_path)


def test_programs_without_a_python_beside_them_need_that_of_the_superlink(flwr, tmp_path):
    """As those in ~/.local/bin, of `pip install --user`."""
    flwr("print('here')")
    with Flwr({}, tmp_path / "bin", python=sys.executable) as found:
        assert [*found.lines("ls")] == ["here"]
    with pytest.raises(RunError, match=f"{tmp_path}/bin has no python for its flwr"):
        Flwr({}, tmp_path / "bin", python=f"{tmp_path}/gone")


def test_flower_waits_longer_for_the_superlink_that_it_starts(called):
    """15 seconds, which Flower would wait, are too few on a busy machine."""
    flwr = called(
        "from flwr.cli import local_superlink as l; print(l.LOCAL_SUPERLINK_STARTUP_TIMEOUT)"
    )
    assert [*flwr.lines("run")] == [str(PATIENCE)] and PATIENCE > 15
