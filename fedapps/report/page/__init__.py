"""The page of a run, `report.html`: self-contained, made from the run directory."""

import math
import time
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

from fedapps.core import registry
from fedapps.core.errors import RunError
from fedapps.core.files import write_whole
from fedapps.drawing import html
from fedapps.report import directory
from fedapps.report.page import event_charts, facts, run_charts
from fedapps.report.page.reading import RunFiles
from fedapps.report.page.template import SECTIONS, STYLE, TEMPLATE

PAGE = "report.html"
SHARE = 100  # the page is written again after this many times the seconds that writing it took
FIRST = 20.0  # seconds before the first writing, which takes longer than the others: 0.2 s


def write(folder: Path, left: float | None = None) -> Path:
    """Write the page of a run directory; return its path.

    The run can be of any version of fedapps, and unfinished. `left` are the expected seconds left
    (infinite: unknown), or None if the run is over. Raises `RunError` if the page cannot be
    written.
    """
    page = render(RunFiles.read(folder), left)
    write_whole(folder / PAGE, page.encode("utf-8", errors="replace"))
    return folder / PAGE


def again(folder: Path) -> Path:
    """Write the page of a run again, as `write`; raises `RunError` if the folder is no run."""
    if not (folder / directory.ROUNDS).is_file():
        raise RunError(f"{folder}: is not a run directory, because it has no rounds.csv")
    return write(folder)


class LivePage:
    """The page of a running run, written so rarely that it takes less than 1 % of the time."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._due = time.monotonic() + FIRST

    def is_due(self) -> bool:
        """Tell whether it is time to write the page again."""
        return time.monotonic() >= self._due

    def write(self, left: float | None) -> None:
        """Write the page now, due or not; if that fails, it is never due again."""
        began, self._due = time.monotonic(), math.inf
        write(self.folder, left)
        now = time.monotonic()
        self._due = now + SHARE * (now - began)


def render(run: RunFiles, left: float | None = None) -> str:
    """Return the page as HTML."""
    plots = registry.plots(run.config.get("strategy"))
    drawn = run_charts.events(run, plots)
    kinds = event_charts.kinds_in(drawn, plots)
    devices = facts.devices_of(run, time.time())
    different = facts.differences(run.config) if run.config else []
    empty = {"devices": not devices.rows, "data": not run.notes}
    text: str = _template().render(
        sections=[one for one in SECTIONS if not empty.get(one[0])],
        title=facts.title_of(run),
        subtitle=facts.subtitle_of(run),
        layers=run.summary.get("layers"),
        state=facts.state_of(run, left),
        tiles=facts.tiles_of(run),
        curves=run_charts.curves(run),
        rounds=facts.rounds_of(run),
        clients=run_charts.clients(run),
        client_table=facts.evaluation_of(run.clients, "client", run.columns),
        devices=devices,
        classes=run_charts.classes(run),
        class_table=facts.evaluation_of(run.classes, "class", run.columns),
        no_class=facts.no_class(run),
        costs=run_charts.costs(run),
        cost_table=facts.costs_of(run),
        events=drawn,
        kinds=Counter(event.get("kind", "") for event in run.events).most_common(),
        event_table=facts.events_of(run, kinds),
        notes=run.notes,
        differences=facts.Table("differences", ("key", "value", "default"), different, 3),
        settings=facts.Table("settings", ("key", "value"), facts.settings_of(run.config), 2),
        commands=facts.commands(run),
        versions=facts.versions(run),
        files=[name for name in facts.FILES if (run.folder / name).exists()],
        folder=run.folder,
        written=time.strftime("%Y-%m-%d %H:%M:%S"),
    )
    return text


@cache
def _template() -> Any:
    from markupsafe import Markup

    given = {"style": Markup(html.STYLE + STYLE), "head": Markup(html.HEAD)}
    return html.environment().from_string(TEMPLATE, given)
