"""Data of a device, which have to fit the run; and samples without targets, to predict."""

from dataclasses import replace
from pathlib import Path
from zipfile import is_zipfile

from fedapps.core.errors import MisfitError, RunError, needed
from fedapps.core.words import some
from fedapps.data.contents import check_finite, check_images, check_pixels, input_spec, shape_of
from fedapps.data.dataset import Dataset
from fedapps.data.forms import Form, open_own
from fedapps.data.forms.folders import PICTURES
from fedapps.data.forms.folders import unlabelled as pictures
from fedapps.data.forms.form import TABLES, File, kind_of
from fedapps.data.notes import of_pixels
from fedapps.data.npz import Rows, held, samples
from fedapps.data.spec import FLOAT, PLAIN, WHOLE, Spec, image_spec


def of_device(path: Path, inputs: Spec, targets: Spec, form: Form) -> Dataset:
    """Open a device's own data of any form, and check that they fit the run.

    Pictures become gray or colored as the run's. An .npz can contain `class_names`. Raises
    `MisfitError` if the data cannot be read, or if the shape, a label or a class name does not fit
    the run.
    """
    try:
        return _fitting(path, inputs, targets, form)
    except MisfitError:
        raise
    except RunError as error:  # it can hold anything that is in the data
        raise MisfitError(str(error)) from error


def _fitting(path: Path, inputs: Spec, targets: Spec, form: Form) -> Dataset:
    names, shape = form.names, inputs.shape if inputs.image else ()
    classes = targets.is_whole and not targets.shape
    column = form.client_column if form.window else ""
    form = replace(form, client_column=column, one_client=True, shape=shape)
    form = replace(form, names=names if classes else (), labels=classes)
    found = replace(open_own(path, form), groups=None)
    if found.columns and not form.columns:
        rule = "which columns are the inputs must be the same on all devices; set columns"
        hint = f"{rule}: its SuperNode's output proposes some"
        raise MisfitError(f'{path}: {rule}="{found.columns}"', hint)
    if replace(found.inputs, choices=inputs.choices) != inputs:
        raise _misfit(path, f"{found.inputs}; the run has {inputs} (input-shape)")
    in_targets = found.names and not found.named and not found.targets.shape
    if in_targets and not targets.is_whole:
        named, needs = f"classes ({some(found.names)})", "the run needs numbers (task)"
        raise MisfitError(f"{path}: targets are {named}; {needs}", f"targets are texts; {needs}")
    if found.targets.shape != targets.shape or targets.is_whole > found.targets.is_whole:
        known = f"the run has {targets} (task, num-classes)"
        raise _misfit(path, f"targets are {found.targets}; {known}")
    _check_numbers(path, "label", found.targets, targets, " (num-classes)")
    _check_numbers(path, "token", found.inputs, inputs)
    assert found.rows is not None
    if inputs.image:
        check_pixels(found.rows)
    else:
        check_finite(found)
    are_labels = targets.choices <= 2 and found.named  # a table's have those of columns
    own = found.names if classes or (targets.is_whole and are_labels) else ()
    if own and [*own] != [*names]:
        rest = f"the run has {','.join(names)} (class-names)"
        told = f"class_names are {','.join(own)}; {rest}"
        raise MisfitError(f"{path}: {told}", f"it has other class_names; {rest}")
    return replace(found, inputs=inputs, targets=targets, scaling=PLAIN)


def _check_numbers(path: Path, word: str, found: Spec, known: Spec, key: str = "") -> None:
    """Raise `MisfitError` for a label, or a token, beyond those that are known."""
    if known.is_whole and found.choices > known.choices:
        rest = f"the run has 0..{known.choices - 1}{key}"
        told = f"{word} {found.choices - 1} found; {rest}"
        raise MisfitError(f"{path}: {told}", f"it has other {word}s; {rest}")


def _misfit(path: Path, text: str) -> MisfitError:
    """Return the error of data at `path`; the text says nothing of single samples."""
    return MisfitError(f"{path}: {text}", text)


def clients_in(path: Path, column: str, columns: str) -> int:
    """Return how many clients a `column` of a table tells apart; 0 if there is none.

    The table has the `columns` of the model, too, and has been read before.
    """
    if not column or kind_of(path) not in TABLES:
        return 0
    with needed(str(path)):
        from fedapps.data.forms import columns as rule  # loads pandas
        from fedapps.data.forms.frames import frames_of, stripped

    whole = [known.name for known in rule.parsed(columns)]
    (frame,) = frames_of([path], [column], [column], {}, whole)
    return len({*stripped(frame[column].dropna())}) if column in frame else 0


def unlabelled(
    path: Path,
    inputs: Spec,
    columns: str = "",
    gaps: bool = False,
    copy: bool = False,
    client_column: str = "",
) -> Rows:
    """Open samples without targets: the key `images` (`inputs`) of an .npz, or `test_images`.

    Or a picture, a folder of pictures, or a table with the `columns` of the model. With `gaps`,
    values may be missing; a `copy` of what is in memory has rows instead of lines. If the table has
    the `client_column` of the run, each window has rows of one client. Float pixels beyond 0..1 are
    told of, as in a simulation. Raises `RunError` if they are not what the model takes.
    """
    word, told = "images" if inputs.image else "inputs", list[str]()
    if inputs.image and (path.is_dir() or (kind_of(path) in PICTURES and path.exists())):
        return Rows((held(path, word, pictures(path, inputs.shape)),))
    if path.is_dir():
        raise RunError(f"{path}: is a folder; give one file, an .npz or a table")
    named = f"the array {word} or test_{word}"
    if kind_of(path) in TABLES and columns:
        with needed(str(path)):
            from fedapps.data.forms import asked, texts  # load pandas

        file = File(path, copy=copy)
        if inputs.is_whole:
            values, told = texts.unlabelled(file, columns, inputs.shape[0])
        else:
            values, told = asked.read(file, columns, inputs.shape, gaps, client_column)
        arrays = {word: held(path, word, values)}
    elif kind_of(path) != ".npz" and path.is_file() and not is_zipfile(path):
        or_table = f", or a table ({', '.join(TABLES)})" * bool(columns)
        or_picture = ", or a picture, or a folder of such" * inputs.image
        raise RunError(f"{path}: must be an .npz with {named}{or_table}{or_picture}")
    else:
        arrays = samples(path)
    array = arrays.get(word) or arrays.get(f"test_{word}")
    if array is None:
        raise RunError(f"{path}: key {word} is missing; needed {word} or test_{word}")
    if inputs.image:
        check_images(array, array)
    found = image_spec(shape_of(array)) if inputs.image else input_spec((array,))
    if (found.shape, found.dtype) != (inputs.shape, inputs.dtype):
        kind = {WHOLE: "integers (tokens) ", FLOAT: "floats "}[inputs.dtype]
        kind *= found.dtype != inputs.dtype
        raise RunError(f"{path}: {found}; the model takes {kind}{list(inputs.shape)}")
    if found.choices > inputs.choices:
        known = f"0..{inputs.choices - 1}"
        raise RunError(f"{path}: token {found.choices - 1} found; the model takes {known}")
    of_images = of_pixels(array) if inputs.image else ()
    told += [line.replace(str(path), "x") if copy else line for line in of_images]
    return Rows((array,), gaps, tuple(told))
