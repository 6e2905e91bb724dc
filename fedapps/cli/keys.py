"""List all settings (keys) of a run, with their types, defaults and meanings.

Set a key with `-c KEY=VALUE`. To look up keys, give parts of their names: only keys whose names
contain one of these words are listed.

    fedapps keys
    fedapps keys lr finetune
    fedapps keys fedper
"""

import argparse
from collections.abc import Iterator, Sequence

from fedapps.cli.tables import Column, show
from fedapps.core.errors import RunError
from fedapps.core.words import key_meant

COLUMNS = (Column("key", 26), Column("default", 18), Column("meaning"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("words", nargs="*", metavar="WORD", help="part of a key's name")
    parser.add_argument(
        "--markdown", action="store_true", help="print all keys as in docs/configuration.md"
    )


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    if options.markdown and options.words:
        raise RunError(f"--markdown prints all keys; leave out {' '.join(options.words)}")
    if options.markdown:
        from fedapps.core.keys import markdown

        print("\n".join(markdown()))
    else:
        show(COLUMNS, rows(options.words))
    return 0


def rows(words: Sequence[str] = ()) -> Iterator[tuple[str, ...]]:
    """Yield a line for each key; raises `RunError` if no key has any of the words."""
    from fedapps.core.keys import table

    known = table()
    chosen = [key for key in known if not words or any(word in key.name for word in words)]
    if not chosen:
        hint = key_meant(words[0], [key.name for key in known])
        raise RunError(f"no key has {' or '.join(words)} in its name{hint}")
    for key in chosen:
        yield key.name, key.default, f"{key.meaning} [{key.kind}]"
