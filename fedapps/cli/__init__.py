"""Personalized federated learning on Flower.

First steps:
  fedapps serial                                  train FedBABU on handwritten digits
  fedapps methods                                 list the other methods
  fedapps serial -c 'strategy=fedper num-rounds=10'
  fedapps compare RUN RUN                         compare two run directories
  fedapps run -c 'strategy=fedper dataset=cifar10'
"""

import importlib
import signal
import sys
from collections.abc import Sequence
from typing import NamedTuple

from fedapps.core.commands import INTERRUPTED, execute
from fedapps.core.errors import RunError
from fedapps.core.words import did_you_mean

# A command is a line in `COMMANDS` and a module with `add_arguments(parser)` and `run(options)`,
# which returns the exit status; the module's docstring is the description in its help. What takes
# long to import is imported in `run`, so that help is there at once. A module that hands its words
# on to somebody else's parser has `hand_on(words)` instead.


class Command(NamedTuple):
    """A line of the help, and the module that does it; what `prints` may end with its reader."""

    name: str
    meaning: str
    module: str
    prints: bool = False


COMMANDS = {
    "Train": [
        Command("serial", "train in one process, which starts in seconds", "fedapps.serial"),
        Command("run", "train on several CPUs, GPUs or devices, with Flower", "fedapps.launch"),
        Command(
            "status", "show the SuperLink that `run` uses, and its runs", "fedapps.cli.status", True
        ),
        Command("stop", "end this SuperLink and all its processes", "fedapps.cli.stop"),
    ],
    "Choose": [
        Command("methods", "list the methods (strategy=NAME)", "fedapps.cli.methods", True),
        Command("models", "list the models (model=NAME)", "fedapps.cli.models", True),
        Command("keys", "list all settings with defaults and meanings", "fedapps.cli.keys", True),
    ],
    "Compare": [
        Command("sweep", "run all combinations of values and seeds", "fedapps.cli.sweep"),
        Command(
            "compare", "compare runs in tables, curves and CSV files", "fedapps.cli.compare", True
        ),
    ],
    "Look at results": [
        Command("evaluate", "score a run again, without training it", "fedapps.cli.evaluate"),
        Command("plot", "draw the plots of a run again, as PNG, SVG or PDF", "fedapps.cli.plot"),
        Command("report", "write the report of a run, report.html, again", "fedapps.cli.report"),
    ],
    "Use a trained model": [
        Command("predict", "predict with a trained model", "fedapps.cli.predict", True),
        Command("export", "write a trained model to a file", "fedapps.cli.export"),
        Command("adopt", "personalize a shared model on own data", "fedapps.cli.adopt"),
    ],
    "Papers and devices": [
        Command("experiments", "repeat the papers' experiments", "fedapps.cli.experiments"),
        Command("superlink", "start the server of devices", "fedapps.cli.superlink"),
        Command("supernode", "start a device, with its own data", "fedapps.cli.supernode"),
        Command("nightly", "run once more, from the last model", "fedapps.cli.nightly"),
    ],
}
END = """\
`fedapps COMMAND -h` explains a command, with examples. At its end, each run prints the path of its
run directory, which contains tables, plots and the trained model.\
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Do what the words say (None: those of the process); return the exit status."""
    own = arguments is None
    name, *words = [*(sys.argv[1:] if arguments is None else arguments)] or ["--help"]
    known = {command.name: command for group in COMMANDS.values() for command in group}
    if own and (name not in known or known[name].prints):
        end_with_reader()
    if name in ("-h", "--help"):
        print(overview())
        return 0
    if name == "--version":
        return version()
    if name not in known:
        hint = did_you_mean(name, known)
        print(f"error: no command {name}{hint}; `fedapps -h` lists all commands", file=sys.stderr)
        return 2
    return perform(known[name], words)


def end_with_reader() -> None:
    """Have `... | head` end the process without a traceback.

    Not where connections are: each that its other end closes would end the process without a word.
    """
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def perform(command: Command, words: Sequence[str]) -> int:
    """Do a command; return its exit status."""
    try:
        module = importlib.import_module(command.module)
        if hasattr(module, "hand_on"):
            status: int = module.hand_on(words)
            return status
        prog = f"fedapps {command.name}"
        return execute(prog, module.__doc__, module.add_arguments, module.run, words)
    except KeyboardInterrupt:
        return INTERRUPTED
    except RunError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def overview() -> str:
    """Return the help that leads to the commands."""
    lines = [__doc__ or ""]
    for group, commands in COMMANDS.items():
        lines += [f"{group}:", *(f"  {c.name:<13} {c.meaning}" for c in commands), ""]
    return "\n".join([*lines, END])


def version() -> int:
    """Print the version."""
    from fedapps.core import project

    print(f"fedapps {project.version()}")
    return 0
