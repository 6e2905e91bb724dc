"""Serves figures to Prometheus, on this machine only, while a process runs."""

import importlib.util
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from fedapps.core.errors import RunError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

ADDRESS = "127.0.0.1"  # the figures are for this machine, and who may log in to it
PORTS = 2**16
KEY = "metrics-port"
Values = Mapping[Any, float]  # by a tuple with the values of the labels


def gauge(name: str, meaning: str, values: Values, *labels: str) -> "Metric":
    """Return a figure that can go up and down."""
    from prometheus_client.core import GaugeMetricFamily

    return _filled(GaugeMetricFamily(f"fedapps_{name}", meaning, labels=labels), values)


def counter(name: str, meaning: str, values: Values, *labels: str) -> "Metric":
    """Return a figure that only grows; Prometheus appends `_total` to its name."""
    from prometheus_client.core import CounterMetricFamily

    return _filled(CounterMetricFamily(f"fedapps_{name}", meaning, labels=labels), values)


def _filled(family: Any, values: Values) -> "Metric":
    for key, value in values.items():
        family.add_metric(key, value)
    return family


def check_installed(port: int, name: str = KEY) -> None:
    """Raise `RunError` if the package is needed and not there."""
    if port and importlib.util.find_spec("prometheus_client") is None:
        raise RunError(
            f"{name} = {port}: prometheus-client is not installed; "
            "pip install prometheus-client, or use 0"
        )


@contextmanager
def serving(
    port: int, collect: "Callable[[], Iterable[Metric]]", name: str = KEY
) -> Iterator[None]:
    """Serve http://127.0.0.1:PORT/metrics in this context; 0: do not.

    `name` is the key or option of the port. Raises `RunError`.
    """
    if not port:
        yield
        return
    check_installed(port, name)
    from prometheus_client import CollectorRegistry, start_http_server
    from prometheus_client.registry import Collector

    class Figures(Collector):
        """What Prometheus gets: it is made at each of its visits."""

        def collect(self) -> "Iterable[Metric]":
            return collect()

    registry = CollectorRegistry()
    registry.register(Figures())
    try:
        server, thread = start_http_server(port, ADDRESS, registry)
    except OSError as error:
        raise RunError(
            f"{name} = {port}: cannot be opened on {ADDRESS} ({error.strerror or error}); "
            "each run, and each device, needs another one"
        ) from error
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
