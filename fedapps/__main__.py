"""`python -m fedapps methods | models | keys`: what there is to choose from."""

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from rich import box
from rich.console import Console
from rich.table import Table

from fedapps import config, models, registry
from fedapps.errors import RunError

WIDTHS = (15, 26, 23, 36)  # of the columns of `methods`, 100 in all


def methods() -> Iterator[str]:
    """A line per method: name, citation, what is exchanged, its keys; long cells go on below."""
    known = config.defaults()
    rows = [("method", "citation", "exchanged", "keys")]
    for name in registry.names():
        method = registry.strategy_class(name)
        keys = ", ".join(k.partition(".")[2] for k in known if k.startswith(f"{name}."))
        rows.append((name, method.citation, method.exchanges, keys))
    for row in rows:
        cells = [
            textwrap.wrap(cell, width - 1, break_on_hyphens=False) or [""]
            for cell, width in zip(row, WIDTHS, strict=True)
        ]
        for line in zip_longest(*cells, fillvalue=""):
            padded = (cell.ljust(width) for cell, width in zip(line, WIDTHS, strict=True))
            yield "".join(padded).rstrip()


def layers() -> Table:
    """A line per model: name, layers and parameters on a 3x32x32 image with 10 classes."""
    table = Table("model", "layers, input side first", "on 3x32x32, 10", box=box.SIMPLE)
    for name in models.MODELS:
        model = models.build(name, (3, 32, 32), 10, seed=0)
        count = sum(parameter.numel() for parameter in model.parameters())
        names = ", ".join(layer for layer, _ in model.named_children())
        table.add_row(name, names, f"{count:,}")
    return table


def keys() -> Iterator[str]:
    """The README's table of all keys, in Markdown."""
    yield "| key | type | default | meaning |"
    yield "|---|---|---|---|"
    for key, kind, default, meaning in config.table():
        yield f"| `{key}` | {kind} | `{default}` | {meaning.replace('|', chr(92) + '|')} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m fedapps", description=__doc__)
    parser.add_argument("what", choices=("methods", "models", "keys"))
    what = parser.parse_args(arguments).what
    try:
        if what == "models":
            Console(width=sum(WIDTHS), highlight=False).print(layers())
        else:
            print("\n".join(keys() if what == "keys" else methods()))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
