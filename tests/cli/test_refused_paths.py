"""Paths that the system refuses: each command says so in one line."""

import errno
import os

import pytest

import fedapps
from fedapps import cli
from fedapps.core.errors import RunError, refused

LONG = "n" * 300  # a name has at most 255 bytes
KEYS = ["runs-dir", "run-name", "dataset=mnist data-root", "dataset", "model", "initial-model"]


@pytest.mark.parametrize("words", [
    ["predict", LONG, "--input", "x.npz"],
    ["export", LONG, "--output", "x.safetensors"],
    ["evaluate", LONG],
    ["report", LONG],
    ["plot", LONG],
    ["compare", LONG, "runs"],
    ["status", LONG],
    ["adopt", "--model", LONG, "--data", "x.npz", "--state-dir", "s"],
    ["sweep", "seed=0,1", "--output", LONG],
    ["serial", "-c", f"./{LONG}.toml"],
    ["serial", "--resume", LONG],
    *(["serial", "-c", f"{key}={LONG}/x.npz"] for key in KEYS),
    ["serial", "--node-config", f"data={LONG}/x.npz state-dir=s client-id=0"],
], ids=lambda words: " ".join(words).replace(LONG, "LONG"))  # fmt: skip
def test_a_name_that_is_too_long_is_one_line(words, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    status, err = cli.main(words), capsys.readouterr().err
    assert status == 1 and err.startswith("error: ") and err.count("\n") == 1, err
    assert LONG in err


def of(number, path=None):
    return OSError(number, os.strerror(number), path)


def test_what_the_system_refuses_is_told_and_mistakes_are_not():
    told = {refused(of(number, "a/b")) for number in (errno.EACCES, errno.EROFS, errno.ENOSPC)}
    assert told == {
        "a/b: Permission denied",
        "a/b: Read-only file system",
        "a/b: No space left on device",
    }
    assert refused(of(errno.ENOSPC)) == "No space left on device"  # in the middle of a file
    assert refused(of(errno.EACCES, b"a\xff")) == r"a\udcff: Permission denied"
    assert refused(OSError(errno.ENOENT, "No usable temporary directory found in ['/tmp']"))
    for mistake in (of(errno.EACCES), of(errno.ENOENT, "a"), of(errno.EBADF), TimeoutError()):
        assert refused(mistake) == ""


@pytest.mark.parametrize("ask", [
    lambda: fedapps.load(LONG),
    lambda: fedapps.compare([LONG, "runs"]),
    lambda: fedapps.run(model=f"{LONG}/x.py"),
], ids=["load", "compare", "run"])  # fmt: skip
def test_python_gets_an_error_of_one_line(ask, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RunError, match=f"^[^\n]*{LONG}[^\n]*$"):
        ask()
