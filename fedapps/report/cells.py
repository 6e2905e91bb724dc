"""The text of tables: floats keep all their digits, and no cell acts as a formula."""

import csv
import io
import re
from collections.abc import Iterable

from fedapps.core.words import in_a_cell

Rows = Iterable[Iterable[object]]

# The start of a formula: in a cell, or after a semicolon, which separates cells in countries with a
# decimal comma; if cells are separated there, quotes before it can be those of a cell. Apostrophes
# before it are the text's own: `original` takes away one of them only.
_FORMULA = r"(['\"\s]*[=+\-@＝＋－＠])"  # noqa: RUF001
_HARMFUL = re.compile(f"(^|;){_FORMULA}")
_HARMLESS = re.compile(f"(^|;)'{_FORMULA}")


def csv_text(rows: Rows) -> str:
    """Return rows as CSV: floats keep all their digits, and no text can act as a formula."""
    text = io.StringIO()
    lines = ([harmless(c) if isinstance(c, str) else c for c in row] for row in rows)
    csv.writer(text, lineterminator="\n").writerows(lines)  # csv writes floats with repr
    return text.getvalue()


def harmless(cell: str) -> str:
    """Return a text that no spreadsheet runs: an apostrophe stands before the start of a formula.

    This is needed because clients can influence the details of events, for example error texts.
    """
    return _HARMFUL.sub(r"\1'\2", in_a_cell(cell))


def original(cell: str) -> str:
    """Return the text that `harmless` made a cell of, but for tabs and ends of lines."""
    return _HARMLESS.sub(r"\1\2", cell)
