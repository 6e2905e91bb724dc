"""Signed models, checked independently: with `cryptography` itself, and with OpenSSL."""

import errno
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from fedapps.core import signing
from fedapps.core.errors import RunError
from fedapps.core.signing import Manifest


@pytest.fixture
def key(tmp_path):
    path = tmp_path / "model.key"
    signing.make_key(path)
    return path


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights")
    return path


@pytest.fixture
def umasked():
    """Return umask(mask): new files have this mask until the end of the test."""
    before = os.umask(0o022)
    yield os.umask
    os.umask(before)


def other_key(tmp_path):
    signing.make_key(tmp_path / "other.key")
    return tmp_path / "other.pub"


def test_a_signature_is_ed25519_of_the_manifest(key, model, tmp_path):
    digest = hashlib.sha256(b"weights").hexdigest()
    signing.write_manifest(model, Manifest(sha256=digest, run="a", strategy="fedper", round=3))
    signing.sign(model, key)
    manifest, signature = tmp_path / "model.manifest.json", tmp_path / "model.manifest.sig"
    public = serialization.load_pem_public_key((tmp_path / "model.pub").read_bytes())
    public.verify(signature.read_bytes(), manifest.read_bytes())  # raises if it does not hold
    found = json.loads(manifest.read_bytes())
    assert (found["sha256"], found["run"], found["round"]) == (digest, "a", 3)
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    if shutil.which("openssl"):
        command = ["openssl", "pkeyutl", "-verify", "-pubin", "-inkey", tmp_path / "model.pub"]
        command += ["-rawin", "-in", manifest, "-sigfile", signature]
        assert subprocess.run(command, capture_output=True).returncode == 0
    for whose in (key, tmp_path / "model.pub"):
        signing.check(signing.read(model), whose, "it")


@pytest.mark.parametrize(("change", "line"), [
    ("none", "is not signed, but must be, with the key of"),
    ("model", "was altered; its SHA-256 is "),
    ("manifest", "its manifest was altered, or not signed with the key"),
    ("both", "its manifest was altered, or not signed with the key"),
    ("key", "its manifest was altered, or not signed with the key"),
    ("short", "its manifest was altered, or not signed with the key"),
])  # fmt: skip
def test_what_is_not_signed_is_refused_in_one_line(key, model, tmp_path, change, line):
    public = tmp_path / "model.pub"
    if change != "none":
        signing.sign(model, key)
    if change in ("model", "both"):
        model.write_bytes(b"Weights")
    manifest, signature = tmp_path / "model.manifest.json", tmp_path / "model.manifest.sig"
    if change in ("manifest", "both"):
        found = json.loads(manifest.read_bytes())
        manifest.write_text(json.dumps(found | {"sha256": signing.digest(model.read_bytes())}))
    if change == "key":
        public = other_key(tmp_path)
    if change == "short":
        signature.write_bytes(signature.read_bytes()[:-1])
    with pytest.raises(RunError, match=f"^it: .*{line}"):
        signing.check(signing.read(model), public, "it")


def test_without_a_key_only_a_false_manifest_is_refused(key, model):
    signing.check(signing.read(model), None, "it")  # it has none
    signing.sign(model, key)
    signing.check(signing.read(model), None, "it")
    model.write_bytes(b"Weights")
    with pytest.raises(RunError, match=r"^it: it was altered"):
        signing.check(signing.read(model), None, "it")
    with pytest.raises(RunError, match="it was altered"):
        signing.sign(model, key)


@pytest.mark.parametrize("text", [b"no JSON", b"{}", b'{"sha256": "x"}'])
def test_a_manifest_that_cannot_be_read(key, model, tmp_path, text):
    (tmp_path / "model.manifest.json").write_bytes(text)
    with pytest.raises(RunError, match=r"^it: its manifest cannot be read"):
        signing.check(signing.read(model), None, "it")


def test_the_owner_of_a_model_may_read_what_vouches_for_it(key, model, umasked):
    """Also if another user has signed it, whose files are private; the folder protects both."""
    umasked(0o077)
    signing.sign(model, key)
    signing.sign(model, key)
    for kind in ("json", "sig"):
        assert stat.S_IMODE(model.with_suffix(f".manifest.{kind}").stat().st_mode) == 0o644


def test_a_disk_without_permissions_ends_no_night(key, model, tmp_path, monkeypatch):
    """It has rights of its own (exFAT, FUSE), and refuses to change them after all rounds."""

    def refused(path, mode):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM), str(path))

    monkeypatch.setattr(Path, "chmod", refused)
    signing.sign(model, key)
    signing.check(signing.read(model), tmp_path / "model.pub", "it")


def test_what_cannot_be_read_of_a_signed_model_is_named(key, model):
    signing.sign(model, key)
    signature = model.with_suffix(".manifest.sig")
    signature.unlink()
    signature.mkdir()
    with pytest.raises(RunError, match=rf"^cannot read {signature}: Is a directory$"):
        signing.read(model)


def test_a_new_manifest_voids_the_signature(key, model, tmp_path):
    signing.sign(model, key)
    signing.write_manifest(model, Manifest(sha256=signing.digest(b"weights")))
    with pytest.raises(RunError, match="is not signed"):
        signing.check(signing.read(model), tmp_path / "model.pub", "it")


def test_no_key_is_overwritten_and_no_other_file_is_one(key, model, tmp_path):
    before = key.read_bytes()
    (tmp_path / "model.pub").rename(tmp_path / "old.pub")
    with pytest.raises(RunError, match="File exists"):
        signing.make_key(key)
    (tmp_path / "old.pub").rename(tmp_path / "model.pub")
    assert key.read_bytes() == before
    signing.sign(model, key)
    for path, reason in ((model, "cannot be read as a public key"), (tmp_path / "no", "No such")):
        with pytest.raises(RunError, match=reason):
            signing.check(signing.read(model), path, "it")
    with pytest.raises(RunError, match="cannot be read as a private key"):
        signing.sign(model, tmp_path / "model.pub")


@pytest.mark.parametrize("name", ["model.2027", "model.key", "model.pub", "other.pub"])
def test_a_key_whose_public_key_has_no_file_of_its_own_is_not_made(key, tmp_path, name):
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    public = (tmp_path / name).with_suffix(".pub")
    line = f"{tmp_path / name}: its public key would be {public}, which is taken; give another name"
    with pytest.raises(RunError, match=f"^{re.escape(line)}$"):
        signing.make_key(tmp_path / name)
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
