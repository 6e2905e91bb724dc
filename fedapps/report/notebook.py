"""Shows the log of a run in a notebook: one line that changes, and every warning."""

import logging
from typing import Any


def in_notebook() -> bool:
    """Tell whether the output of this process is that of a Jupyter notebook."""
    from rich.console import Console

    return Console().is_jupyter


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
