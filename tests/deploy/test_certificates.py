"""What an operator makes first: certificates and the keys of devices."""

import os
import re
import shutil
import stat
import subprocess

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from tests.deploy.helpers import DEPLOY, make, script


def openssl(*arguments):
    done = subprocess.run(["openssl", *map(str, arguments)], capture_output=True, text=True)
    return done.stdout + done.stderr


NO_DAYS = '--days "{}": must be a whole number up to 9999, without zeros in front'


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_certificate_holds_for_what_was_asked_and_for_the_machine_itself(pki):
    names = openssl("x509", "-in", pki / "server.crt", "-noout", "-ext", "subjectAltName")
    found = re.findall(r"(?:DNS|IP Address):([^,\s]+)", names)
    own = ["localhost", "127.0.0.1", "0:0:0:0:0:0:0:1"]
    assert found == [*own, "superlink.example", "192.0.2.7", "2001:DB8:0:0:0:0:0:7"]
    strict = ["-x509_strict", "-purpose", "sslserver", "-verify_hostname", "superlink.example"]
    assert openssl("verify", "-CAfile", pki / "ca.crt", *strict, pki / "server.crt")[-3:] == "OK\n"


def test_nobody_else_may_read_a_key(pki):
    modes = {path.name: mode(path) for path in pki.iterdir()}
    assert modes == {"ca.key": 0o600, "server.key": 0o600, "ca.crt": 0o644, "server.crt": 0o644}
    assert mode(pki) == 0o700


def test_a_renewal_keeps_the_ca(tmp_path):
    make("certificates.sh", "--days", -1, tmp_path, "old.example")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    verify = ("verify", "-CAfile", tmp_path / "ca.crt", tmp_path / "server.crt")
    assert "certificate has expired" in openssl(*verify)
    assert "new.example" in make("certificates.sh", tmp_path, "new.example")
    changed = {path.name for path in tmp_path.iterdir() if before[path.name] != path.read_bytes()}
    assert changed == {"server.crt", "server.key"}
    assert openssl(*verify).endswith("OK\n")


@pytest.mark.parametrize(("arguments", "line"), [
    (["made"], "too few arguments; use: certificates.sh [--days N] DIR NAME-OR-IP..."),
    *(
        (["--days", days, "made", "a"], NO_DAYS.format(days))
        for days in ("soon", "08", "99999999999999999999")
    ),
    (["--days"], NO_DAYS.format("")),
    (["file", "a"], "file: cannot be made; name a folder that can"),
    *(
        (
            ["made", name],
            f'"{name}": is no host name or IP address; give it without port and scheme',
        )
        for name in ("https://a", "a:443", "a,DNS:b", "192.0.2.256", "192.0.2", "-a", "", "::g")
    ),
])  # fmt: skip
def test_a_wrong_argument_is_one_line_and_makes_nothing(arguments, line, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    done = script("certificates.sh", *arguments)
    assert (done.status, done.error) == (1, f"certificates.sh: {line}\n")
    assert not (tmp_path / "made").exists()


def test_a_ca_that_cannot_be_used_is_named(tmp_path, strangers):
    make("certificates.sh", tmp_path, "a")
    served = (tmp_path / "server.crt").read_bytes()
    done = script("certificates.sh", "--days", 4000, tmp_path, "a")
    assert "ca.crt ends before 4000 days are over; give --days less" in done.error
    (tmp_path / "ca.key").write_bytes((strangers / "ca.key").read_bytes())
    done = script("certificates.sh", tmp_path, "a")
    assert done.error.endswith(
        f"ca.key does not belong to {tmp_path}/ca.crt; put the right one back\n"
    )
    (tmp_path / "ca.key").unlink()
    done = script("certificates.sh", tmp_path, "a")
    assert done.error.endswith("ca.key is missing; put it back, or name a new folder\n")
    assert (tmp_path / "server.crt").read_bytes() == served
    assert len(list(tmp_path.iterdir())) == 3


def test_a_ca_is_made_without_the_extensions_of_a_configuration(tmp_path):
    """LibreSSL and OpenSSL 1.1.1 keep them beside those of `-addext`: one is there twice."""
    stub = tmp_path / "bin" / "openssl"
    stub.parent.mkdir()
    real = shutil.which("openssl")
    stub.write_text(f'#!/bin/sh\ncase "$*" in *-x509*) exit 1; esac\nexec {real} "$@"\n')
    stub.chmod(0o755)
    path = f"{stub.parent}:{os.environ['PATH']}"
    assert script("certificates.sh", tmp_path / "made", "a", PATH=path).status == 0
    text = openssl("x509", "-in", tmp_path / "made/ca.crt", "-noout", "-text")
    assert sorted(re.findall(r"X509v3 ([^:]+): (?:critical)?\n +(.+)", text))[:2] == [
        ("Basic Constraints", "CA:TRUE, pathlen:0"), ("Key Usage", "Certificate Sign, CRL Sign")
    ]  # fmt: skip


def test_a_ca_that_clients_refuse_is_named(tmp_path):
    """As those were that an earlier version made with LibreSSL."""
    make("certificates.sh", tmp_path, "a")
    key = load_pem_private_key((tmp_path / "ca.key").read_bytes(), None)
    old = x509.load_pem_x509_certificate((tmp_path / "ca.crt").read_bytes())
    twice = [old.extensions.get_extension_for_class(x509.BasicConstraints)] * 2
    span = old.serial_number, old.not_valid_before_utc, old.not_valid_after_utc
    builder = x509.CertificateBuilder(old.subject, old.subject, key.public_key(), *span, twice)
    bad = builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM)
    (tmp_path / "ca.crt").write_bytes(bad)
    done = script("certificates.sh", tmp_path, "a")
    told = "ca.crt: clients would refuse this CA; make a new one in a new folder\n"
    assert done.status == 1 and done.error.endswith(told)


def test_a_device_key_is_one_that_flower_reads(tmp_path):
    make("device-key.sh", tmp_path, "ward-3.a")
    private, public = tmp_path / "ward-3.a.key", tmp_path / "ward-3.a.pub"
    key = load_ssh_private_key(private.read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert isinstance(key.curve, ec.SECP384R1)
    assert key.public_key() == load_ssh_public_key(public.read_bytes())
    assert (mode(private), mode(public)) == (0o600, 0o644)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("there", ["key", "pub"])
def test_a_device_key_is_never_overwritten(tmp_path, there):
    (tmp_path / f"one.{there}").write_text("old")
    done = script("device-key.sh", tmp_path, "one")
    text = (
        f"device-key.sh: {tmp_path}/one.{there} is there already; remove it, or give another name\n"
    )
    assert (done.status, done.error) == (1, text)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("folders", [("pki", "keys"), ("new", "new"), ("site/ca", "site/wards")])
def test_git_ignores_what_is_made_in_the_projects_folder(tmp_path, folders):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)
    shutil.copy(DEPLOY.parent / ".gitignore", tmp_path)
    make("certificates.sh", tmp_path / folders[0], "superlink.example")
    make("device-key.sh", tmp_path / folders[1], "ward-1")
    listing = ["git", "-C", tmp_path, "status", "--porcelain", "--untracked-files=all"]
    status = subprocess.run(listing, capture_output=True, text=True, check=True)
    assert [line for line in status.stdout.splitlines() if line.endswith(".key")] == []
    assert [*tmp_path.rglob("ca.key"), *tmp_path.rglob("ward-1.key")]


def test_the_page_on_devices_makes_them_elsewhere(tmp_path):
    page = (DEPLOY.parent / "docs" / "devices.md").read_text("utf-8")
    part = page.partition("## Before the first device")[2]
    commands = re.search(r"^```sh\n(.*?)^```", part, re.M | re.S)[1]
    env = os.environ | {"HOME": str(tmp_path)}
    subprocess.run(["sh", "-ec", commands], cwd=DEPLOY.parent, env=env, check=True)
    named = re.search(r'root-certificates = "/home/me/(.*)"', part)[1]
    assert (tmp_path / named).is_file()
    keys = {str(path.relative_to(tmp_path / "fedapps-site")) for path in tmp_path.rglob("*.key")}
    assert keys == {"pki/ca.key", "pki/server.key", "keys/ward-1.key"}


@pytest.mark.parametrize("name", ["../a", "a b", "-a", ".a", "", "a/b"])
def test_a_device_name_is_checked(tmp_path, name):
    done = script("device-key.sh", tmp_path / "keys", name)
    line = f'name "{name}": must be letters, digits, dots, hyphens and underscores'
    assert (done.status, done.error) == (1, f"device-key.sh: {line}\n")
    assert not (tmp_path / "keys").exists()


@pytest.mark.parametrize(
    ("name", "arguments", "tool"),
    [("certificates.sh", ["made", "a"], "openssl"), ("device-key.sh", ["made", "a"], "ssh-keygen")],
)
def test_a_missing_tool_is_named(name, arguments, tool, tmp_path):
    done = script(name, *arguments, PATH=str(tmp_path))
    # without PATH the interpreter of the first line is still found, it is absolute
    assert done.status == 1
    assert f"{tool} was not found; install it" in done.error
