"""How own files are read, and what comes out of them."""

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedapps.core.config import LAST, NATURAL
from fedapps.core.errors import RunError
from fedapps.core.settings import Settings
from fedapps.core.words import alike, composed, some
from fedapps.data.dataset import Dataset

PARTS = ("train", "val", "test")
TABLES = (".csv", ".parquet", ".npy")


def kind_of(path: Path) -> str:
    """Return the ending of a file, in small letters: .CSV is a .csv."""
    return path.suffix.lower()


Where = Callable[[int], str]  # says where a row is, for messages: "a.csv: line 7"


@dataclass(frozen=True)
class Form:
    """What the keys of a run say about own files; `names` are the classes that devices share, and
    `shape` is that of their images, [C, H, W].

    `columns` are the features of a table: `age,sex=f|m` is a number, and a text with two values.
    With `numbers`, whole numbers among its targets are no labels; with `labels`, whole floats are,
    too. If all samples are those of `one_client`, `client_column` need not be there, and only says
    where windows end. With `text_length`, the input is a column of texts, which `next_token` goes
    on with: there is no other target. `drawn` says that samples are drawn, for clients or for a
    test.
    """

    target_column: str = ""
    client_column: str = ""
    columns: str = ""
    missing: str = "refuse"
    window: int = 0
    window_step: int = 0
    names: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    numbers: bool = False
    labels: bool = False
    one_client: bool = False
    text_length: int = 0
    next_token: bool = False
    drawn: bool = True

    @classmethod
    def of(cls, settings: Settings, names: Sequence[str] = ()) -> "Form":
        """Return what the settings say."""
        s = settings
        drawn = s.split != LAST or (s.partitioner != NATURAL and not s.on_devices)
        return cls(
            composed(s.target_column), composed(s.client_column), s.columns, s.missing, s.window,
            s.window_step, tuple(names), numbers=s.task == "regression",
            labels=s.task == "classification", text_length=s.text_length,
            next_token=s.task == "tokens", drawn=drawn,
        )  # fmt: skip

    @property
    def goes_on(self) -> bool:
        """Whether texts are to be written on, so that no column or folder is a target."""
        return bool(self.text_length) and self.next_token

    @property
    def targets(self) -> list[str]:
        """The columns that are to be predicted; none if the files do not have to name any."""
        return [name.strip() for name in self.target_column.split(",") if name.strip()]

    def targets_in(self, columns: Container[str]) -> list[str]:
        """The same for a table with these columns, of which one can have a comma in its name."""
        whole = self.target_column.strip()
        return [whole] if whole in columns else self.targets

    def client_in(self, columns: Container[str]) -> str:
        """The column of the clients; "" if a table with these columns does not need one."""
        return self.client_column if self.client_column in columns or not self.one_client else ""


@dataclass(frozen=True)
class File:
    """A file of own data; `part` is train, val, test or "", and `label` that of all its samples.

    If it is the `copy` of a data frame, nobody has seen its lines.
    """

    path: Path
    part: str = ""
    group: str = ""
    label: str = ""
    copy: bool = False


@dataclass(frozen=True)
class Found:
    """The arrays of an .npz by key, and what else the files have said.

    The `names` of the classes are `named` if they are written beside the samples.
    """

    arrays: dict[str, np.ndarray]
    names: tuple[str, ...] = ()
    columns: str = ""
    told: tuple[str, ...] = ()
    tokens: int = 0  # different ones that inputs can have, if not all are in the data
    next_token: bool = False  # the targets are such tokens, too
    target_column: str = ""
    named: bool = False

    def describe(self, data: Dataset, path: Path) -> Dataset:
        """Return the data set of these arrays with names of classes and columns.

        Raises `RunError` with `path` if the names cannot be those of the targets.
        """
        names, inputs, targets, told = self.names, data.inputs, data.targets, self.told
        if self.tokens:
            inputs = replace(inputs, choices=self.tokens)
            targets = inputs if self.next_token else targets
        if names and targets.is_whole:
            are_labels = targets.shape and targets.choices <= 2  # truth values, and no tokens
            needed = targets.shape[-1] if are_labels else max(targets.choices, len(names))
            if len({*names}) != needed:
                rule = f"must be {needed} different names, one for each class, label or token"
                raise RunError(f"{path}: class_names are {some(names)}; {rule}")
        if names and data.has_labels:
            targets = replace(targets, choices=len(names))
            numbered = [f"{number} = {name}" for number, name in enumerate(names)]
            told = (*told, f"the classes are {some(numbered)}", *alike("classes", names))
        return replace(
            data,
            inputs=inputs,
            targets=targets,
            names=names,
            named=self.named and bool(names),
            columns=self.columns,
            target_column=self.target_column,
            told=told,
        )


def check_places(files: Sequence[File]) -> None:
    """Refuse files of which only some say their class, part or client; raises `RunError`."""
    for what, word in (("label", "class"), ("part", "train or test"), ("group", "client")):
        lost = [file for file in files if not getattr(file, what)]
        if lost and len(lost) < len(files):
            raise RunError(f"{lost[0].path}: its place does not say which {word}")


def by_part(parts: np.ndarray, groups: np.ndarray, **values: np.ndarray) -> dict[str, np.ndarray]:
    """Return arrays under the keys of an .npz; `parts` and `groups` are texts [N].

    If training is the only part, there are no parts, so each client's samples will be split.
    """
    if (groups != "").any():
        values["groups"] = groups
    there = [part for part in PARTS if (parts == part).any()]
    if there in ([], ["train"]):
        return values
    return {f"{part}_{key}": rows[parts == part] for part in there for key, rows in values.items()}


def class_numbers(
    labels: np.ndarray, known: tuple[str, ...], where: Where
) -> tuple[np.ndarray, tuple[str, ...]]:
    """Number labels (texts [N]); return the numbers and the names of the classes, in order.

    `known` are the names of a run on devices; without them, the labels are sorted, as numbers if
    all are. `where` says where each label is. Raises `RunError` for a label that is not `known`.
    """
    texts, known = [*map(composed, labels.tolist())], tuple(map(composed, known))
    found = sorted(set(texts))
    if all(name.removeprefix("-").isdecimal() for name in found):
        found.sort(key=int)
    names = known or tuple(found)
    number_of = {name: number for number, name in enumerate(names)}
    for row, label in enumerate(texts):
        if label not in number_of:
            raise RunError(f"{where(row)}: class {label}; the run has {some(names)} (class-names)")
    return np.array([number_of[label] for label in texts], np.int64), names
