"""Opens a data set by its name, or by the path of the user's own file."""

from dataclasses import replace
from pathlib import Path

from fedapps.core.errors import RunError
from fedapps.core.files import in_turn, stamp, write_npz, writing
from fedapps.core.paths import absolute
from fedapps.core.words import nearest, number
from fedapps.data.contents import dataset_of
from fedapps.data.dataset import Dataset
from fedapps.data.forms import Form, is_own, open_own
from fedapps.data.npz import members, samples
from fedapps.data.sources import NAMES, SOURCES
from fedapps.data.spec import Normalization

Opened = tuple[Path, Form, tuple[object, ...]]  # the last one is the `stamp` of the files

_last: dict[Opened, Dataset] = {}  # the own data that were opened last, and no others


def load(name: str, root: str, form: Form | None = None) -> Dataset:
    """Open a data set by name, or the user's own data by an absolute path (`~` allowed).

    `form` says how own data are read. They stay in memory until other data are opened, so that many
    runs in one process read them once; a file that has changed is read anew.

    If a data set is missing in the folder `root` (`~` allowed), it is downloaded to there, or made
    from its unpacked archive. Raises `RunError` for an unknown name, if there is nothing to make
    the data set from, and for a file with wrong contents.
    """
    if is_own(name):
        return _own(absolute(name, "dataset"), form or Form())
    _last.clear()
    if name not in SOURCES:
        close = nearest(name.lower(), NAMES, least=0.0)
        raise RunError(
            f'dataset = "{name}": unknown, nearest is {close}; allowed: {", ".join(NAMES)},'
            " or the absolute path of own data"
        )
    path = absolute(root, "data-root") / f"{name}.npz"
    if not path.exists():
        _make(name, path)
    return _named(name, path)


def _own(path: Path, form: Form) -> Dataset:
    asked = (path, form, stamp(path))  # a change while it is read gives another stamp next time
    if (known := _last.get(asked)) is None:
        _last.clear()  # before the next one needs memory
        known = open_own(path, form)
        for values in (known.target_values, known.groups):
            if values is not None:
                values.flags.writeable = False  # other runs get the same arrays
        _last[asked] = known
    return known


def _named(name: str, path: Path) -> Dataset:
    source = SOURCES[name]
    found = dataset_of(path, samples(path), members(path), "refuse")
    if source.inputs:
        wanted, normalization = str(source.inputs), found.normalization
        fits = found.inputs == replace(source.inputs, choices=found.inputs.choices)
    else:
        wanted = f"images of {number(len(source.mean), 'channel')}"
        normalization = Normalization(source.mean, source.std)
        fits = found.inputs.image and found.shape[0] == len(source.mean)
    if not fits:
        raise RunError(f"{path}: holds {found.inputs}; {name} has {wanted}")
    classes = source.classes or found.classes
    highest = max(found.classes, found.inputs.choices) - 1
    if highest >= classes > 0:
        raise RunError(f"{path}: label {highest} found; {name} has labels 0..{classes - 1}")
    return replace(
        found,
        name=name,
        inputs=source.inputs or found.inputs,
        targets=replace(found.targets, choices=classes),
        normalization=normalization,
    )


def _make(name: str, path: Path) -> None:
    """Write the .npz of a known data set; other processes see either no file or the whole one.

    Of several processes that need it at once, one makes it: torchvision downloads to a fixed name.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with in_turn(path.parent):
        if not path.exists():
            write_npz(path, SOURCES[name].read(path.parent))
