"""Shows a run in a notebook: its log as one line that changes, with every warning; its figures."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console

from fedapps.core import log
from fedapps.core.errors import without_lines
from fedapps.drawing import html
from fedapps.report import directory
from fedapps.report.page import facts
from fedapps.report.page.reading import RunFiles

FIGURES = """\
<b>{{ title }}</b>, {{ state.word }} {{ state.text }}<br>{{ subtitle }}
<table>{% for tile in tiles %}
<tr><th>{{ tile.label }}</th><td>{{ tile.value }}</td><td>{{ tile.note }}</td></tr>{% endfor %}
</table><code>{{ folder }}</code>{{ best }}"""


class InPlace(logging.Handler):
    """Shows the newest line in place of the one before it; warnings are printed and stay."""

    def __init__(self) -> None:
        super().__init__()
        self._place: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        """Show a line."""
        text = self.format(record)
        if record.levelno >= logging.WARNING:
            print(text, flush=True)
        elif self._place is None:
            from IPython.display import display

            self._place = display({"text/plain": text}, raw=True, display_id=True)
        else:
            self._place.update({"text/plain": text}, raw=True)


@contextmanager
def telling(progress: bool) -> Iterator[None]:
    """Print the lines of a run, show them in place, or neither; of Flower's lines only warnings."""

    def unwanted(record: logging.LogRecord) -> bool:
        return not progress or record.levelno < logging.WARNING

    with ExitStack() as stack:
        stack.enter_context(without_lines("flwr", unwanted))
        if not progress or Console().is_jupyter:
            shown = InPlace() if progress else logging.NullHandler()
            stack.enter_context(log.shown_by(shown))
        yield


def shown(folder: Path, rounds: Callable[[], Sequence[int]]) -> str:
    """Return the most important figures of a run as HTML, also of that of a best round.

    `rounds` returns those with a checkpoint in the folder, which others may not look for.
    """
    run = directory.whole(folder)
    files = RunFiles.read(run)
    best = f", best round {max(rounds(), default=0)}" if run != folder else ""
    made: str = html.environment().from_string(FIGURES).render(
        title=facts.title_of(files), subtitle=facts.subtitle_of(files), folder=folder,
        state=facts.state_of(files, None), tiles=facts.tiles_of(files),
        best=best,
    )  # fmt: skip
    return made
