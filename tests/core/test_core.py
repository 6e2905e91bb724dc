"""Files in full or not at all, the one log, pyproject.toml, words of messages."""

import errno
import fcntl
import logging
import os
import platform
import stat
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedapps.core import log, project, words
from fedapps.core.errors import RunError
from fedapps.core.files import stamp, write_whole
from fedapps.core.ids import without
from fedapps.report import directory
from tests.support import ROOT


@pytest.fixture(autouse=True)
def level():
    """Tests that change the level leave it as it was."""
    yield
    log.set_level("info")


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("content", [b"new", lambda path: path.write_bytes(b"new")])
def test_a_file_is_replaced_and_nothing_else_stays(content, durable, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")
    with path.open("rb") as reader:
        write_whole(path, content, durable)
        assert reader.read() == b"old"  # who reads the old file has all of it
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["x"]


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EIO])
@pytest.mark.parametrize("of_folder", [True, False])
def test_a_file_system_need_not_know_how_a_folder_is_forced_to_disk(
    number, of_folder, tmp_path, monkeypatch
):
    """As a shared folder of VirtualBox; all else that fails has to be told."""
    fsync, path = os.fsync, tmp_path / "x"

    def refuse(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode) == of_folder:
            raise OSError(number, os.strerror(number))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", refuse)
    if of_folder and number != errno.EIO:
        write_whole(path, b"new", durable=True)
        assert path.read_bytes() == b"new"
    else:
        with pytest.raises(RunError, match=f"^cannot write {path}: {os.strerror(number)}$"):
            write_whole(path, b"new", durable=True)


@pytest.mark.parametrize("can", [True, False])
def test_on_macos_files_get_further_than_into_the_cache_of_the_drive(can, tmp_path, monkeypatch):
    """There `fsync` stops at the cache; not all file systems know the call that goes on."""
    full, called = 51, []  # F_FULLFSYNC of macOS

    def inode(handle):
        return os.fstat(handle).st_ino

    def fcntl_(handle, command):
        called.append((command, inode(handle)))
        if not can:
            raise OSError(errno.ENOTSUP, "Operation not supported")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", full, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", fcntl_)
    monkeypatch.setattr(os, "fsync", lambda handle: called.append(("fsync", inode(handle))))
    path = tmp_path / "rounds.csv"
    write_whole(path, b"a\n1\n", durable=True)
    assert directory.sync(path) == 4
    synced = [each.stat().st_ino for each in (path, tmp_path, path)]
    ways = [full] if can else [full, "fsync"]
    assert called == [(way, number) for number in synced for way in ways]


@pytest.mark.parametrize(
    ("error", "expected"),
    [(OSError(28, "No space left on device"), RunError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_what_is_interrupted_leaves_the_old_file(error, expected, tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"old")

    def write(temporary):
        assert temporary.parent == tmp_path  # a rename between file systems is a copy
        temporary.write_bytes(b"ne")
        raise error

    with pytest.raises(expected) as caught:
        write_whole(path, write)
    if expected is RunError:
        assert str(caught.value) == f"cannot write {path}: No space left on device"
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_text_that_the_locale_cannot_name_is_no_path():
    code = "from fedapps.core.paths import expanded; expanded('M\\u00fcller', 'run-name')"
    env = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0", "PYTHONPATH": str(ROOT)}
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env)
    told = b"this system's locale has not all of these characters; set LC_ALL=C.UTF-8"
    assert said.stderr.rstrip().endswith(told) and b"RunError: run-name = " in said.stderr


def test_lines_are_what_print_would_print(capsys):
    log.info("round %d of %d", 1, 2)
    log.info("100 % of it")  # without arguments nothing is filled in
    log.warning("slow")
    log.error("alpha = -1: must be float > 0")
    log.debug("not shown")
    out, err = capsys.readouterr()
    lines = ["round 1 of 2", "100 % of it", "warning: slow", "error: alpha = -1: must be float > 0"]
    assert (out.splitlines(), err) == (lines, "")


def test_no_line_steers_a_terminal(tmp_path, capsys):
    """A name in a file of data can hold what would; lines and tabs of a traceback stay."""
    told = "note: the classes are 0 = \x1b]0;owned\x07\x1b[2J\x9b1mé, 1 = b\r\n\tend"
    with log.to_file(tmp_path / "run.log"):
        log.info("%s", told)
    harmless = "note: the classes are 0 = ?]0;owned??[2J?1mé, 1 = b?\n\tend\n"
    assert capsys.readouterr().out == harmless
    assert (tmp_path / "run.log").read_text("utf-8").endswith(f" INFO {harmless}")


def test_no_other_logger_says_it_again(capsys):
    root = logging.StreamHandler(sys.stdout)
    logging.getLogger().addHandler(root)
    try:
        log.info("once")
    finally:
        logging.getLogger().removeHandler(root)
    assert capsys.readouterr().out == "once\n"


@pytest.mark.parametrize(
    ("level", "shown"),
    [("debug", "diwe"), ("info", "iwe"), ("warning", "we"), ("error", "e")],
)
def test_the_level_is_that_of_the_environment(level, shown):
    code = "from fedapps.core import log; log.debug('d'); log.info('i'); log.warning('w'); "
    code += "log.error('e')"
    env = dict(os.environ, FEDAPPS_LOG=level)
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True)
    words_ = {"d": "d", "i": "i", "w": "warning: w", "e": "error: e"}
    assert done.stdout.decode().splitlines() == [words_[letter] for letter in shown]


def test_an_unknown_level_is_warned_of(capsys):
    log.set_level("loud")
    log.info("shown")
    text = 'warning: FEDAPPS_LOG = "loud": must be one of debug, info, warning, error; info is used'
    assert capsys.readouterr().out.splitlines() == [text, "shown"]


def fail():
    try:
        raise ValueError("deep down")
    except ValueError:
        log.exception("client 3 failed")


def test_a_traceback_is_for_the_file_and_for_debugging(tmp_path, capsys):
    path = tmp_path / "run.log"
    with log.to_file(path):
        fail()
        log.debug("a detail")
    log.info("afterwards")
    assert capsys.readouterr().out == "error: client 3 failed\nafterwards\n"
    text = path.read_text("utf-8")
    assert "ERROR client 3 failed\nTraceback" in text and "ValueError: deep down" in text
    assert text.endswith("DEBUG a detail\n")
    log.set_level("debug")
    fail()
    assert "ValueError: deep down" in capsys.readouterr().out


def test_a_log_file_that_cannot_be_written_is_one_line(tmp_path):
    with (
        pytest.raises(RunError, match=r"^cannot write .*run\.log: No such file"),
        log.to_file(tmp_path / "none" / "run.log"),
    ):
        pass


@pytest.fixture
def fresh():
    """pyproject.toml is read once; tests that move it need it read anew."""
    project.pyproject.cache_clear()
    yield
    project.pyproject.cache_clear()


@pytest.mark.parametrize(
    ("there", "found"),
    [({"beside"}, "beside"), ({"inside"}, "inside"), ({"inside", "beside"}, "inside")],
)
def test_pyproject_is_in_the_wheel_or_the_checkout(there, found, fresh, tmp_path, monkeypatch):
    package = tmp_path / "fedapps"
    places = {"inside": package, "beside": tmp_path}
    package.mkdir()
    monkeypatch.setattr(project, "__file__", str(package / "core" / "project.py"))
    for place in there:
        (places[place] / "pyproject.toml").write_text(f'[project]\nversion = "{place}"\n')
    assert project.version() == found


def test_what_flower_sends_is_also_in_the_wheel():
    """A device needs the files of own methods and models for `predict`."""
    tool = project.pyproject()["tool"]
    sent = {part.partition("/")[0] for part in tool["flwr"]["app"]["fab-include"] if "/" in part}
    assert sent <= {*tool["hatch"]["build"]["targets"]["wheel"]["packages"]}


def test_without_pyproject_there_are_no_defaults(fresh, tmp_path, monkeypatch):
    monkeypatch.setattr(project, "__file__", str(tmp_path / "fedapps" / "core" / "project.py"))
    with pytest.raises(RunError, match=rf"^pyproject\.toml: not at {tmp_path}/fedapps/pyproject"):
        project.defaults()


def test_the_nearest_word():
    known = ["fedavg", "fedbabu"]
    assert words.nearest("fedbab", known) == "fedbabu"
    assert words.nearest("xyz", known) == ""
    assert words.nearest("xyz", known, least=0.0) in known
    assert words.nearest("x", []) == words.nearest("x", [], least=0.0) == ""
    assert words.did_you_mean("fedbab", known) == ", did you mean fedbabu?"
    assert words.did_you_mean("xyz", known) == ""


def test_consecutive_numbers_are_one_span():
    assert words.spans({7, 2, 0, 1}) == "0-2,7"
    assert words.spans(iter([11, 4, 9, 10, 5]), ", ") == "4-5, 9-11"
    assert words.spans([]) == ""


def test_a_number_has_its_noun():
    assert [words.number(n, "client") for n in (0, 1, 2)] == ["0 clients", "1 client", "2 clients"]


# Memory -------------------------------------------------------------------------------------------

FAULTS = """
import resource, numpy as np
from fedapps.core.memory import keep_freed
if {kept}:
    keep_freed()
def work():
    kept = [np.ones(6_000_000) for _ in range(3)]  # 48 MB each, more than glibc keeps
work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's allocator (2026-11-22)")
def test_memory_that_is_freed_is_used_again():
    """Else each of its pages, at most 2 MiB, is cleared and counted as a fault."""
    given_back, kept = (
        int(subprocess.check_output([sys.executable, "-c", FAULTS.format(kept=kept)], cwd=ROOT))
        for kept in (False, True)
    )
    assert given_back >= 3 * 48e6 / 2**21 > 10 > kept


@given(count=st.integers(1, 40), out=st.sets(st.integers(0, 39)))
def test_ids_are_those_of_a_list(count, out):
    gone = sorted(client for client in out if client < count)
    found, listed = without(count, gone), [c for c in range(count) if c not in gone]
    assert [*found] == listed and len(found) == len(listed)
    assert [client in found for client in range(-1, 42)] == [c in listed for c in range(-1, 42)]
    assert [*found[1::3]] == listed[1::3] and [found[i] for i in range(len(found))] == listed
    assert all(type(client) is int for client in found)


def test_a_stamp_is_of_all_files_in_a_folder(tmp_path):
    for name in ("b/x", "a/y", "a/B", "c"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_text(name)
    (tmp_path / "data" / "link").symlink_to("a")
    (tmp_path / "data" / "gone").symlink_to("nowhere")

    def told(path, *inside):
        about = path.stat()
        return path.name, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns, *inside

    data = tmp_path / "data"
    a, link = (told(data / n, told(data / n / "B"), told(data / n / "y")) for n in ("a", "link"))
    inside = a, told(data / "b", told(data / "b" / "x")), told(data / "c"), (), link
    assert stamp(data) == told(data, *inside)
    assert stamp(tmp_path / "nothing") == ()
