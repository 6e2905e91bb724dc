"""List the methods: where they come from, what clients and server exchange, and their own keys.

Choose a method with `-c strategy=NAME`, and set one of its keys with `-c NAME.KEY=VALUE`. With
`--keys`, list which general keys work with which method, and why others do not; this takes some
ten seconds.
"""

import argparse
from collections.abc import Iterator

from fedapps.cli.tables import Column, show

COLUMNS = (Column("method", 14), Column("citation", 25), Column("exchanged", 22), Column("keys"))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--keys", action="store_true", help="list which keys work with which")
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    if options.keys:
        combinations(options.markdown)
    else:
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


def combinations(markdown: bool) -> None:
    """Print which keys work with which method, and the reasons why others do not."""
    import fedapps.core.quiet  # noqa: F401
    from fedapps.core import log
    from fedapps.engine import combinations as found

    log.set_level("error")  # what the checks would say about single runs
    cells = found.table()
    titles = (Column("method", 14), *(Column(name, None) for name in found.COLUMNS))
    lines = [(name, *(cell.found for cell in row.values())) for name, row in cells.items()]
    show(titles, lines, markdown)
    print()
    reasons = ((*reason[:2], ", ".join(reason[2])) for reason in found.reasons(cells))
    show((Column("key", 16), Column("why not", 46), Column("methods")), reasons, markdown)
