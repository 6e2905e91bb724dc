"""Tables on the screen, at most 100 columns wide, and the same in Markdown."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Column(NamedTuple):
    """A column's title and width (None: what is left)."""

    title: str
    width: int | None = None


def show(columns: Sequence[Column], rows: Iterable[Sequence[str]], markdown: bool = False) -> None:
    """Print a table; a long cell goes on in the lines below, in Markdown it stays one line."""
    if markdown:
        titles = [column.title for column in columns]
        for cells in (titles, ["---"] * len(titles), *rows):
            line = " | ".join(cell.replace("|", r"\|") for cell in cells)
            print("|---" * len(titles) + "|" if cells[0] == "---" else f"| {line} |")
        return
    from rich.console import Console
    from rich.table import Table

    from fedapps.report.units import LINE_WIDTH

    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, width=LINE_WIDTH)
    for column in columns:
        table.add_column(column.title, width=column.width, overflow="fold")
    for cells in rows:
        table.add_row(*cells)
    Console(width=LINE_WIDTH, highlight=False, markup=False).print(table)
