"""Until when certificates are valid, and which ones a process above this one was given."""

import ssl
import subprocess
import sys

import pytest

from fedapps.core.certificates import end_of, given_above, value_of
from tests.support import ROOT
from tests.support.tls import make_tls


def test_the_certificate_that_ends_first_counts(tmp_path):
    short = make_tls(tmp_path / "short") / "ca.crt"
    long = make_tls(tmp_path / "long", days=2) / "ca.crt"
    command = ["openssl", "x509", "-noout", "-enddate", "-in", str(short)]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    expected = ssl.cert_time_to_seconds(told.strip().removeprefix("notAfter="))
    assert end_of(short) == expected < end_of(long)
    for one, two in ((short, long), (long, short)):
        (tmp_path / "both.crt").write_bytes(one.read_bytes() + two.read_bytes())
        assert end_of(tmp_path / "both.crt") == expected


@pytest.mark.parametrize("content", [None, b"", b"-----BEGIN CERTIFICATE-----\nAAAA\n", b"\xff"])
def test_what_is_no_certificate_ends_at_an_unknown_time(content, tmp_path):
    if content is not None:
        (tmp_path / "ca.crt").write_bytes(content)
    assert end_of(tmp_path / "ca.crt") == end_of(None) == 0.0


@pytest.mark.parametrize("words", [["x", "--a", "b"], ["x", "--a=b"], ["--other=1", "--a", "b"]])
def test_the_value_of_an_option(words):
    assert value_of(words, "--a") == "b"
    assert value_of(words, "--b") == value_of([], "--a") == value_of(["--a"], "--a") == ""


CHILD = "from fedapps.core.certificates import given_above as g; print(g('--ca', '--link'))"
PARENT = f'import subprocess, sys; subprocess.run([sys.executable, "-c", {CHILD!r}], check=True)'


@pytest.mark.parametrize("link", ["--link=a:1", "--other"])
def test_a_process_finds_the_file_that_one_above_it_was_given(link, tmp_path):
    """A relative path is one of that process."""
    command = [sys.executable, "-c", PARENT, "--ca", "ca.crt", link]
    env = {"PYTHONPATH": str(ROOT), "PATH": ""}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.strip() == (str(tmp_path / "ca.crt") if "=" in link else "None"), done.stderr
    assert given_above("--no-such-option") is None
