"""List the methods: where they come from, what clients and server exchange, and their own keys.

Choose a method with `-c strategy=NAME`, and set one of its keys with `-c NAME.KEY=VALUE`.
"""

import argparse
from collections.abc import Iterator

from fedapps.cli.tables import Column, show

COLUMNS = (Column("method", 14), Column("citation", 25), Column("exchanged", 22), Column("keys"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    show(COLUMNS, rows(), options.markdown)
    return 0


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a line for each method."""
    from fedapps.core import config, registry
    from fedapps.core.schema import table_of

    known = config.defaults()
    for name in registry.names():
        method = registry.strategy_class(name)
        yield name, method.citation, method.exchanges, ", ".join(table_of(known, name))
