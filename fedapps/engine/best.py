"""Keep the best round, chosen on validation samples, in addition to the last one.

`best/` is itself a run directory, as if the run had ended after that round. The commands
`evaluate`, `predict` and `export` accept it.
"""

import os
import shlex
import shutil
from pathlib import Path

from fedapps.core import config
from fedapps.core.files import write_whole, writing
from fedapps.engine import checkpoint
from fedapps.engine.checkpoint import Checkpoint
from fedapps.engine.store import state_folders
from fedapps.report import about, directory


def look(run: Path) -> str:
    """Return the command that scores a run directory, or its `best/`, on test samples."""
    code = config.code_beside(run.parent if run.name == directory.BEST else run)
    trust = f" --trust {shlex.quote(str(code))}" if code else ""
    return f"fedapps evaluate {shlex.quote(str(run))} -c evaluate-on=test{trust}"


def keep(run: Path, found: Checkpoint) -> None:
    """Replace `best/` in a run directory by this checkpoint and the clients' states.

    With them go the config, what the data call clients and classes, and how they are scaled.
    The states of clients on devices are not copied. Raises `RunError` if `best/` cannot be written.
    """
    new, best = run / f".{directory.BEST}-{found.progress.round}", run / directory.BEST
    with writing(best):
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(mode=0o700)  # like `clients/` and `checkpoint/`: it has data of single clients
        for name in ("config.toml", about.FILE, *directory.NAMED):
            if (run / name).exists():
                shutil.copyfile(run / name, new / name)
        write_whole(new / directory.MODEL, directory.model_bytes(found.arrays))
        checkpoint.save(new, found)
        for states in state_folders(run):
            same = new / states.relative_to(run)
            same.mkdir(parents=True)
            for newest in sorted(states.glob("round-*.safetensors"))[-1:]:
                _link(newest, same / newest.name)
        old = run / f".{directory.BEST}-old"
        shutil.rmtree(old, ignore_errors=True)
        if best.exists():
            best.rename(old)
        new.rename(best)
        shutil.rmtree(old, ignore_errors=True)


def _link(path: Path, target: Path) -> None:
    """Give a file that never changes a second name; copy it if links are not possible."""
    try:
        os.link(path, target)
    except OSError:  # for example, exFAT has no links
        shutil.copyfile(path, target)
