"""The devices of a run as rows of a table, for the screen and the page."""

from collections.abc import Mapping

from fedapps.core.words import number
from fedapps.report.units import ago, human_bytes
from fedapps.wire.contacts import Contacts
from fedapps.wire.health import PACKAGES, Health

HEADS = ("client", "there", "last contact", "failures", "clock", "disk free", "certificate",
         "versions")  # fmt: skip


def rows_of(known: Contacts, failures: Mapping[str, int], now: float) -> list[list[str]]:
    """Return a row of texts for each device; `failures` counts by client."""
    return [
        [
            str(device.client),
            "yes" if device.there else "no",
            ago(now - device.seen) if device.seen else "never",
            str(failures.get(str(device.client), 0)),
            "-" if device.ahead is None else f"{device.ahead:+.1f} ± {device.within or 0:.1f} s",
            *_machine(device.health, known.server, now),
        ]
        for device in known.devices
    ]


def days_left(about: Health, now: float) -> str:
    """Say for how long the certificates of a machine are still valid."""
    days = about.days(now)
    return "-" if days is None else "expired" if days <= 0 else number(int(days), "day")


def _machine(about: Health | None, server: Health | None, now: float) -> list[str]:
    if about is None:
        return ["-", "-", "-"]
    other = [
        f"{name} {theirs or '?'}"
        for name in PACKAGES
        if (theirs := getattr(about, name)) != getattr(server, name, "")
    ]
    free = human_bytes(about.disk) if about.disk >= 0 else "-"
    return [free, days_left(about, now), ", ".join(other) or "the server's"]
