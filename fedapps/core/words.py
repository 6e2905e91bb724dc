"""Words for messages: the most similar name, a number with its noun, the first names of many."""

import difflib
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

MOST_NAMED = 5  # a message names at most so many things
# Keys by what other libraries call them, also in short (PFLlib's -gr).
ELSEWHERE = {
    "algo": "strategy", "algorithm": "strategy", "method": "strategy",
    "gr": "num-rounds", "global-rounds": "num-rounds", "num-server-rounds": "num-rounds",
    "jr": "fraction-train", "join-ratio": "fraction-train", "fraction-fit": "fraction-train",
    "nc": "num-clients", "ls": "local-epochs", "lbs": "batch-size", "learning-rate": "lr",
    "local-learning-rate": "lr",
}  # fmt: skip


def nearest(word: str, words: Iterable[str], least: float = 0.6) -> str:
    """Return the most similar of `words`, or an empty text if none is similar enough.

    Similarity is from 0 to 1 (difflib's ratio); `least` is the least that counts.
    """
    close = difflib.get_close_matches(word, list(words), n=1, cutoff=least)
    return close[0] if close else ""


def closest(word: str, words: Iterable[str]) -> list[str]:
    """Return up to three similar ones of `words`, whatever their case, the best one first."""
    known = {each.casefold(): each for each in words}
    found = difflib.get_close_matches(word.casefold(), known, n=3, cutoff=0.5)
    return [known[each] for each in found]


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """Return `, did you mean X?` for the most similar of `words`, or an empty text."""
    close = nearest(word, words)
    return f", did you mean {close}?" if close else ""


def key_meant(key: str, known: Iterable[str]) -> str:
    """Return `, did you mean X?` for a key that is not among the `known` ones, or an empty text."""
    plain, keys = key.casefold(), list(known)
    other = ELSEWHERE.get(plain.replace("_", "-"))
    return f", did you mean {other}?" if other in keys else did_you_mean(plain, keys)


def span(word: str) -> range:
    """Parse `3` or `0-2` as a range that includes the last number; raises `ValueError`."""
    first, dash, last = word.partition("-")
    numbers = range(int(first), int(last if dash else first) + 1)
    if not numbers:
        raise ValueError(f"{word} is empty")
    return numbers


def spans(numbers: Iterable[int], between: str = ",") -> str:
    """Write numbers in ascending order, consecutive ones as one span, for example 0-2,7."""
    found: list[list[int]] = []
    for each in sorted(numbers):
        if found and each == found[-1][1] + 1:
            found[-1][1] = each
        else:
            found.append([each, each])
    return between.join(f"{low}" if low == high else f"{low}-{high}" for low, high in found)


def in_a_cell(text: str) -> str:
    """Return a text with blanks for tabs and ends of lines, which could separate cells and rows."""
    return re.sub(r"[\t\r\n]+", " ", text)


def number(count: int, noun: str) -> str:
    """Return `1 client`, `2 clients`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def some(names: Sequence[str]) -> str:
    """Return the first names, and dots if there are more."""
    return ", ".join(names[:MOST_NAMED]) + ", ..." * (len(names) > MOST_NAMED)


def composed(text: str) -> str:
    """Return a name as it is compared: a Mac's names of files have ü as two characters, u and ¨."""
    return unicodedata.normalize("NFC", text)


def alike(what: str, names: Sequence[str]) -> list[str]:
    """Tell of classes or clients, as `what` says, that are probably the same."""
    count = Counter(name.strip().casefold() for name in names)
    found = [name for name in names if count[name.strip().casefold()] > 1]
    cure = "if they are the same, write them alike"
    return [f"{what} {some(found)} differ only in case or blanks; {cure}"] if found else []


def shortened(text: str, most: int) -> str:
    """Return a text, or its beginning with an ellipsis if it has more than `most` characters."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
