"""Signed models: a manifest says what a model is, and an Ed25519 signature vouches for it.

Beside `model.safetensors` are `model.manifest.json` and, if the model is signed, its signature
`model.manifest.sig`: 64 bytes, of the bytes of the manifest. OpenSSL can check it, too:

    openssl pkeyutl -verify -pubin -inkey model.pub -rawin \\
        -in model.manifest.json -sigfile model.manifest.sig
"""

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from msgspec import Meta

from fedapps.core.errors import RunError
from fedapps.core.files import write_json, write_whole, writing

MAKE = "fedapps nightly --make-key makes one"
PRIVATE = b"PRIVATE KEY"  # in the file of each private key
PUBLIC = ".pub"  # suffix of the public key's file, beside the private one
MANIFEST, SIGNATURE = ".manifest.json", ".manifest.sig"  # instead of the model's suffix


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is. `epsilon` is that of all runs so far; None if it has no limit, or no noise.

    Noise from the seed counts as none. If one of these runs began with weights from elsewhere, the
    model is `pretrained`: epsilon does not cover what these were trained on. Of a model that comes
    from elsewhere itself, nothing but the `sha256` is known.
    """

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    run: str = ""
    strategy: str = ""
    round: int = 0
    epsilon: float | None = None
    delta: float | None = None
    pretrained: bool = False
    fingerprints: dict[str, str] = {}
    versions: dict[str, str] = {}


@dataclass(frozen=True)
class SignedModel:
    """The bytes of a model's file, of its manifest and of its signature; these two can be empty."""

    content: bytes
    manifest: bytes = b""
    signature: bytes = b""


def digest(content: bytes) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal digits."""
    return hashlib.sha256(content).hexdigest()


def read(path: Path) -> SignedModel:
    """Read a model with what lies beside it; raises `RunError` if the model cannot be read."""
    try:
        content = path.read_bytes()
        others = [path.with_suffix(suffix) for suffix in (MANIFEST, SIGNATURE)]
        return SignedModel(content, *(o.read_bytes() if o.exists() else b"" for o in others))
    except OSError as error:
        what = error.filename or path
        raise RunError(f"cannot read {what}: {error.strerror or error}") from error


def check(model: SignedModel, key: Path | None, what: str) -> None:
    """Raise `RunError`, beginning with `what`, if a model is not what its manifest says.

    With a `key`, public or private, the manifest has to be there, and to be signed with it.
    """
    if key is not None:
        if not model.signature:
            raise RunError(f"{what}: it is not signed, but must be, with the key of {key}")
        try:
            public_key(key).verify(model.signature, model.manifest)
        except InvalidSignature as error:
            raise RunError(
                f"{what}: its manifest was altered, or not signed with the key of {key}"
            ) from error
    if not model.manifest:
        return
    try:
        expected = msgspec.json.decode(model.manifest, type=Manifest).sha256
    except msgspec.DecodeError as error:
        raise RunError(f"{what}: its manifest cannot be read ({error})") from error
    if (found := digest(model.content)) != expected:
        raise RunError(
            f"{what}: it was altered; its SHA-256 is {found[:16]}..., and its manifest says"
            f" {expected[:16]}..."
        )


def write_manifest(path: Path, manifest: Manifest) -> None:
    """Write the manifest of the model at `path`, whose signature is void from now on."""
    with writing(path.with_suffix(SIGNATURE)):
        path.with_suffix(SIGNATURE).unlink(missing_ok=True)
    write_json(path.with_suffix(MANIFEST), manifest)
    _let_all_read(path.with_suffix(MANIFEST))


def sign(path: Path, key: Path) -> None:
    """Sign the model at `path` with a private key; one without a manifest gets one.

    Raises `RunError` if the model has been altered since its manifest was written.
    """
    private = private_key(key)
    if not path.with_suffix(MANIFEST).exists():
        write_manifest(path, Manifest(sha256=digest(read(path).content)))
    model = read(path)
    check(model, None, str(path))
    write_whole(path.with_suffix(SIGNATURE), private.sign(model.manifest), durable=True)
    _let_all_read(path.with_suffix(SIGNATURE))


def _let_all_read(path: Path) -> None:
    """Let the model's owner read what another user has written beside it, whatever its umask."""
    with suppress(OSError):  # of a disk whose files all have the same rights
        path.chmod(0o644)


def make_key(path: Path) -> Path:
    """Write a new private key, which only this user can read; return the file of its public key.

    Raises `RunError` if one of the two files exists, or cannot be written.
    """
    public = path.parent / f"{path.stem}{PUBLIC}"
    with writing(path):
        if public == path or public.exists():
            raise RunError(
                f"{path}: its public key would be {public}, which is taken; give another name"
            )
    private, pem, raw = Ed25519PrivateKey.generate(), serialization.Encoding.PEM, os.O_EXCL
    secret = private.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    with writing(path), open(os.open(path, os.O_WRONLY | os.O_CREAT | raw, 0o600), "wb") as file:
        file.write(secret)
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    write_whole(public, private.public_key().public_bytes(pem, form))
    return public


def private_key(path: Path) -> Ed25519PrivateKey:
    """Read a private key; raises `RunError`."""
    key: Ed25519PrivateKey = _key(path, "a private key", Ed25519PrivateKey, _load_private)
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """Read a public key, or the public part of a private one; raises `RunError`."""

    def load(pem: bytes) -> Any:
        if PRIVATE in pem:
            return _load_private(pem).public_key()
        return serialization.load_pem_public_key(pem)

    key: Ed25519PublicKey = _key(path, "a public key", Ed25519PublicKey, load)
    return key


def is_private(path: Path) -> bool:
    """Tell whether the file of a key, which can be read, holds a private one."""
    return PRIVATE in path.read_bytes()


def _load_private(pem: bytes) -> Any:
    return serialization.load_pem_private_key(pem, None)


def _key(path: Path, what: str, kind: Any, load: Callable[[bytes], Any]) -> Any:
    try:
        key = load(path.read_bytes())
    except OSError as error:
        raise RunError(f"{path}: cannot be read as {what} ({error.strerror})") from error
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        reason = "has a password" if isinstance(error, TypeError) else "is none in PEM format"
        raise RunError(f"{path}: cannot be read as {what} (it {reason}); {MAKE}") from error
    if not isinstance(key, kind):
        raise RunError(f"{path}: must be an Ed25519 key; {MAKE}")
    return key
