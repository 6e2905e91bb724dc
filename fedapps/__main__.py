"""What there is to choose from (methods, models, keys); models after a run (predict, export)."""

import argparse
import signal
import sys
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

from fedapps import models
from fedapps.cli import export, predict, report
from fedapps.core import config, registry
from fedapps.core.errors import RunError
from fedapps.core.keys import table as table_of_keys
from fedapps.core.schema import table_of

COMMANDS = {
    "predict": (predict, "classify images with a model of a run or of a device"),
    "export": (export, "write a model of a run or of a device to a file"),
    "report": (report, "write the page of a run, report.html, again"),
}
WIDTH = 100  # columns of the tables


def methods() -> Table:
    """A line per method: name, citation, what is exchanged, its keys; long cells go on below."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, width=WIDTH)
    for title, width in (("method", 14), ("citation", 25), ("exchanged", 22), ("keys", None)):
        table.add_column(title, width=width)
    known = config.defaults()
    for name in registry.names():
        method = registry.strategy_class(name)
        table.add_row(name, method.citation, method.exchanges, ", ".join(table_of(known, name)))
    return table


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
    for key in table_of_keys():
        meaning = key.meaning.replace("|", r"\|")
        yield f"| `{key.name}` | {key.kind} | `{key.default}` | {meaning} |"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m fedapps", description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    for name, what in (("methods", "methods"), ("models", "models"), ("keys", "run-config keys")):
        commands.add_parser(name, help=f"list all {what}")
    for name, (command, what) in COMMANDS.items():
        command.add_arguments(commands.add_parser(name, help=what))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and print; return the exit status."""
    options = _parser().parse_args(arguments)
    tables = {"methods": methods, "models": layers}
    try:
        if options.what in COMMANDS:
            return COMMANDS[options.what][0].run(options)
        if options.what in tables:
            console = Console(width=WIDTH, highlight=False, markup=False)
            console.print(tables[options.what]())
        else:
            print("\n".join(keys()))
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):  # `... | head` ends it without a traceback
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sys.exit(main())
