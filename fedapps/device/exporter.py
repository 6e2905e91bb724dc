"""The figures of a device for Prometheus, which its SuperNode serves (`--metrics-port`).

Nothing here may need PyTorch: a SuperNode does not load it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from fedapps.core.certificates import value_of
from fedapps.core.errors import RunError
from fedapps.core.log import FILE
from fedapps.core.options import parse_option
from fedapps.core.paths import expanded
from fedapps.core.prometheus import PORTS, counter, gauge
from fedapps.wire import health
from fedapps.wire.health import PACKAGES

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PORT, NODE_CONFIG = "--metrics-port", "--node-config"
_FAILED = re.compile(rb"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d ", re.M)  # first line of each traceback


def without_port(words: Sequence[str]) -> tuple[int, list[str]]:
    """Return the port in a command line (0: none), and the words for Flower; raises `RunError`."""
    port, rest = 0, list[str]()
    left = iter(words)
    for word in left:
        if word != PORT and not word.startswith(f"{PORT}="):
            rest.append(word)
            continue
        text = next(left, "") if word == PORT else word.partition("=")[2]
        if not text.isdecimal() or int(text) >= PORTS:
            raise RunError(f"{PORT} {text}: must be a port from 1 to {PORTS - 1}, or 0 for none")
        port = int(text)
    return port, rest


def of_device(words: list[str]) -> "Callable[[], Iterable[Metric]]":
    """Return what collects the figures of a SuperNode with this command line.

    Raises `RunError` if it is no device: it has no state folder.
    """
    config = parse_option(value_of(words, NODE_CONFIG), NODE_CONFIG)
    if "state-dir" not in config:
        raise RunError(f"{PORT}: only a device has figures; {NODE_CONFIG} names no state-dir")
    state_dir = expanded(str(config["state-dir"]), "state-dir")
    certificate = value_of(words, "--root-certificates")
    client = str(config.get("client-id", ""))
    return lambda: figures(client, state_dir, Path(certificate) if certificate else None)


def figures(client: str, state_dir: Path, certificate: Path | None) -> "Iterator[Metric]":
    """Yield the figures of a device."""
    about = health.of_this_machine(state_dir, (certificate,))
    labels = {"client": client, **{name: getattr(about, name) for name in PACKAGES}}
    yield gauge("supernode_info", "the device's versions", {tuple(labels.values()): 1}, *labels)
    if about.disk >= 0:
        yield gauge("supernode_disk_free_bytes", "free where its state is", {(): about.disk})
    if about.certificate:
        name = "supernode_certificate_expiry_timestamp_seconds"
        yield gauge(name, "when its CA's certificate expires", {(): about.certificate})
    states = state_dir.glob("*/round-*.safetensors")
    written = max(map(_written, [*states, state_dir / "personalized.safetensors"]))
    if written:
        name = "supernode_state_timestamp_seconds"
        yield gauge(name, "when it last wrote its state or its model", {(): written})
    log = state_dir / FILE
    failures = len(_FAILED.findall(log.read_bytes())) if log.exists() else 0
    yield counter("supernode_failures", "tracebacks in the device's log.txt", {(): failures})


def _written(path: Path) -> float:
    """Return when a file was written; 0 if there is none, as the device deletes old versions."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
