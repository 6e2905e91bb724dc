"""A column of texts as tokens: the bytes of UTF-8, which all devices number alike."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError
from fedapps.core.words import composed, number
from fedapps.data.forms.columns import Column, parsed
from fedapps.data.forms.form import File, Form
from fedapps.data.forms.frames import MISSING, Rows, frames_of, holds_texts


def read(rows: Rows, chosen: Sequence[Column], form: Form) -> tuple[np.ndarray, Rows, list[str]]:
    """Return the tokens of the `chosen` column, uint8 [N, T], their rows, and what to tell.

    If texts go on (`next_token`), they are cut into pieces of T + 1 tokens. Raises `RunError` if
    more than one column is chosen, or a text is missing.
    """
    length, path = form.text_length, rows.files[0].path
    if form.window or len(chosen) > 1 or chosen[0].texts:
        what = "leave window out" if form.window else f'set columns="{chosen[0].name}"'
        raise RunError(f"{path}: text-length = {length}: reads one column of texts; {what}")
    name = chosen[0].name
    rows, told = _with_texts(rows, name, form)
    if not holds_texts(rows.frame[name]):
        raise RunError(f"{path}: column {name} holds numbers; text-length is for texts")
    written = _bytes(rows, name)
    if not form.next_token:
        found, long = filled(written, length)
        return found, rows, told + long
    found, owners = pieces(written, length, path)
    cut = f"{number(len(found), 'piece')} of {length} bytes, of {number(len(written), 'text')}"
    return found, rows.take(owners), [*told, cut]


def unlabelled(file: File, rule: str, length: int) -> tuple[np.ndarray, list[str]]:
    """Read the column of texts that `rule` names, without targets, as `filled` returns them."""
    (column,) = parsed(rule)
    names, kept = [column.name], {column.name: MISSING[1:]}
    rows = Rows.of(frames_of([file.path], names, names, kept, names), [file], kept)
    rows.demand(column.name, "columns", "fill it, or leave the row out")
    return filled(_bytes(rows, column.name), length)


def filled(texts: Sequence[bytes], length: int) -> tuple[np.ndarray, list[str]]:
    """Return the first `length` bytes of each text, uint8 [N, T], and what to tell.

    Zeros fill a shorter text up.
    """
    long = sum(len(text) > length for text in texts)
    rest = f"are longer than {length} bytes (text-length), and cut"
    rows = [text[:length].ljust(length, b"\0") for text in texts]
    values = np.frombuffer(b"".join(rows), np.uint8).reshape(len(texts), length)
    return values, [f"{long} of {number(len(texts), 'text')} {rest}"] * bool(long)


def pieces(texts: Sequence[bytes], length: int, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Cut texts, end to end, into pieces of `length` bytes with the one that follows each of them.

    Return them, uint8 [N, T + 1], and the number of the text of each, int64 [N]. The last byte of a
    piece is the first of the next. What is left of a text is in none. Raises `RunError` if there is
    no piece.
    """
    starts = [range(0, len(text) - length, length) for text in texts]
    rows = [
        text[at : at + length + 1]
        for text, all_of in zip(texts, starts, strict=True)
        for at in all_of
    ]
    if not rows:
        raise RunError(
            f"{path}: text-length = {length}: no text has so many bytes, and one more to predict;"
            f" the longest has {max(map(len, texts))}"
        )
    owners = np.repeat(np.arange(len(texts)), [*map(len, starts)])
    return np.frombuffer(b"".join(rows), np.uint8).reshape(-1, length + 1), owners


def _with_texts(rows: Rows, name: str, form: Form) -> tuple[Rows, list[str]]:
    """Demand the column of texts; with `missing="drop"`, leave out rows without a text."""
    there = rows.frame[name].notna().to_numpy() if name in rows.frame else np.zeros(1, bool)
    if there.all() or not there.any() or form.missing != "drop":
        rows.demand(name, "columns")
        return rows, []
    lost = f"{(~there).sum()} of {number(len(there), 'row')} have no text and are left out"
    return rows.take(there), [lost]


def _bytes(rows: Rows, name: str) -> list[bytes]:
    """Return the texts of a column. An é is the same, be it one letter or two; no text has a 0."""
    texts = rows.frame[name].astype(str)
    return [composed(text).replace("\0", " ").encode("utf-8", "replace") for text in texts]
