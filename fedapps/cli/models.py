"""List the models with their layers, from input to output, and their numbers of parameters.

Choose a model with `-c model=NAME`. The numbers are for 10 classes and images of 3x32x32; for
models that take no images, a series of 128 steps with 6 channels, or 64 tokens of 100 kinds.
"""

import argparse
from collections.abc import Iterator

from fedapps.cli.tables import Column, show

COLUMNS = (
    Column("model", 30),
    Column("takes", 8),
    Column("layers, input side first"),
    Column("parameters", 10),
)


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
    from fedapps.data.spec import WHOLE, Spec, image_spec
    from fedapps.models.grouping import keys_by_layer

    examples = {
        "images": image_spec((3, 32, 32)),
        "series": Spec((128, 6)),
        "tables": Spec((32,)),
        "tokens": Spec((64,), WHOLE, 100),
    }
    for name, spec in models.MODELS.items():
        kind = next(kind for kind in examples if kind in spec.takes)
        model = models.build(name, examples[kind], 10, seed=0)
        count = sum(parameter.numel() for parameter in model.parameters())
        layers = ", ".join(keys_by_layer(model))
        yield name, ", ".join(spec.takes), layers, f"{count:,}"
