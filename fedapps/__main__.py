"""`python -m fedapps methods | models | keys`: what there is to choose from."""

import argparse
import sys
import textwrap
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from fedapps import config, models, registry
from fedapps.errors import RunError

WIDTH = 100


def methods() -> Iterator[str]:
    """A line per method: name, citation, what is exchanged, its keys (which may go on below)."""
    known = config.defaults()
    rows = [("method", "citation", "exchanged", "keys")]
    for name in registry.names():
        method = registry.strategy_class(name)
        keys = ", ".join(k.partition(".")[2] for k in known if k.startswith(f"{name}."))
        rows.append((name, method.citation, method.exchanges, keys))
    for name, citation, exchanges, keys in rows:
        left = f"{name:<14}{citation:<25}{exchanges:<19}"
        lines = textwrap.wrap(keys, WIDTH - len(left), break_on_hyphens=False) or [""]
        yield (left + lines[0]).rstrip()
        yield from (" " * len(left) + line for line in lines[1:])


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
            Console(width=WIDTH, highlight=False).print(layers())
        else:
            print("\n".join(keys() if what == "keys" else methods()))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
