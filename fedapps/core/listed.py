"""Keys whose value is a list in a text, such as `1,28,28`: what they mean."""

import math
from collections.abc import Mapping, Sequence

from fedapps.core.draws import generator
from fedapps.core.errors import RunError
from fedapps.core.words import closest, composed, span

LOGGERS = ("tensorboard", "mlflow", "wandb")


def shape(text: str, key: str = "input-shape") -> tuple[int, ...]:
    """Return the shape of a sample that a key names; raises `RunError`."""
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and int(word) for word in words):
        raise RunError(
            f'{key} = "{text}": must be channels,height,width of images, such as 1,28,28;'
            " steps,features of series; or one number, of the features of a table"
        )
    return tuple(map(int, words))


def class_names(text: str, count: int) -> tuple[str, ...]:
    """Return the names of the classes: their numbers if none are set; raises `RunError`."""
    if not text:
        return tuple(map(str, range(count)))
    words = tuple(word.strip() for word in composed(text).split(","))
    if len(set(words)) != count or len(words) != count or "" in words:
        raise RunError(
            f'class-names = "{text}": must be {count} different names (num-classes), such as'
            " cat,dog"
        )
    return words


def loggers(text: str) -> tuple[str, ...]:
    """Return the names of the additional loggers; raises `RunError`."""
    words = tuple(word.strip() for word in text.split(",")) if text else ()
    for word in words:
        if word not in LOGGERS or words.count(word) > 1:
            raise RunError(
                f'loggers = "{text}": must be some of {", ".join(LOGGERS)}, such as'
                " tensorboard,wandb"
            )
    return words


def rounds(text: str, last: int) -> frozenset[int]:
    """Return the rounds in `evaluate-rounds` up to the `last` one; raises `RunError`."""
    try:
        spans = [span(word) for word in text.split(",") if word]
    except ValueError:
        raise RunError(
            f'evaluate-rounds = "{text}": must be rounds, such as 190-199 or 50,100'
        ) from None
    own = [range(one.start, min(one.stop, last + 1)) for one in spans]  # there are no later rounds
    return frozenset(round_ for one in own for round_ in one)


def unseen(text: str, count: int, seed: int, names: Sequence[str] = ()) -> tuple[int, ...]:
    """Return which of `count` clients `unseen-clients` keeps out of training; raises `RunError`.

    A share is rounded half up, to at least one client, and the clients are drawn by the seed.
    `names` are those of the clients, if the data name them. A word that is a name is taken for it.
    """
    number_of = {name: number for number, name in enumerate(names)}
    text = composed(text)
    words = [text] if text in number_of else [word.strip() for word in text.split(",")]
    words = [word for word in words if word]
    lost = ""
    if _is_share(text):
        size = min(max(1, math.floor(float(text) * count + 0.5)), count - 1)
        found = {*generator(seed, "unseen-clients").choice(count, size, replace=False).tolist()}
    else:
        of_word = {word: _called(word, number_of, count) for word in words}
        lost = next((word for word in words if not of_word[word]), "")
        found = {client for clients in of_word.values() for client in clients}
    if text and (lost or not 0 < len(found) < count):
        listable = [name for name in names if "," not in name]
        alike = f", or names, such as {', '.join(closest(lost, listable) or listable[:3])}"
        unknown = f"no client {lost}; " * (len(words) > 1 and bool(lost))
        raise RunError(
            f'unseen-clients = "{text}": {unknown}must be a share between 0 and 1, such as 0.2, or'
            f" clients from 0 to {count - 1}, such as 3,7-9{alike if listable else ''}; at least"
            " one client must train"
        )
    return tuple(sorted(found))


def _is_share(text: str) -> bool:
    try:
        return "." in text and 0 < float(text) < 1
    except ValueError:
        return False


def _called(word: str, number_of: Mapping[str, int], count: int) -> range:
    """Return which of `count` clients `3`, `7-9` or a name stands for; none if not for clients.

    Where both ends of a span are names, as clients that are called by numbers have, it is of these.
    """
    ends = [word] if word in number_of else [end.strip() for end in word.split("-")]
    try:
        if all(end in number_of for end in ends):
            return span("-".join(str(number_of[end]) for end in ends))
        if number_of and any(end != str(int(end)) for end in ends):
            return range(0)  # 007 would be somebody else's
        found = span(word)
    except ValueError:
        return range(0)
    return found if found[-1] < count else range(0)
