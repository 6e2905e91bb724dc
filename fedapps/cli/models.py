"""List the models with their layers, from input to output, and their numbers of parameters.

Choose a model with `-c model=NAME`. The numbers are for images of 3x32x32 and 10 classes.
"""

import argparse
from collections.abc import Iterator

from fedapps.cli.tables import Column, show

COLUMNS = (Column("model", 10), Column("layers, input side first"), Column("parameters", 10))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--markdown", action="store_true", help="print a Markdown table")


def run(options: argparse.Namespace) -> int:
    """Print the table."""
    show(COLUMNS, rows(), options.markdown)
    return 0


def rows() -> Iterator[tuple[str, ...]]:
    """Yield a line for each model."""
    from fedapps import models

    for name in models.MODELS:
        model = models.build(name, (3, 32, 32), 10, seed=0)
        count = sum(parameter.numel() for parameter in model.parameters())
        layers = ", ".join(layer for layer, _ in model.named_children())
        yield name, layers, f"{count:,}"
