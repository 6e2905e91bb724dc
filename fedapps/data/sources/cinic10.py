"""CINIC-10, from its unpacked archive."""

from pathlib import Path

from fedapps.core.errors import RunError
from fedapps.data.pictures import folders, picture_arrays
from fedapps.data.sources.source import Arrays, Source, archive


def _cinic10(root: Path) -> Arrays:
    """Read `cinic10/{train,valid,test}/<class>/*.png`; `valid` is joined to the training set."""
    folder = archive("cinic10", root / "cinic10", "https://datashare.ed.ac.uk/handle/10283/3192")
    classes = folders(folder / "train")
    arrays: Arrays = {}
    for part, key in (("train", "train"), ("valid", "val"), ("test", "test")):
        if folders(folder / part) != classes:
            raise RunError(f"{folder / part}: must have the same folders as train; unpack it again")
        files = [
            (file, label)
            for label, name in enumerate(classes)
            for file in sorted((folder / part / name).glob("*.png"))
        ]
        arrays |= picture_arrays(key, files, folder / part / "<class>" / "*.png")
    return arrays


CINIC10 = Source("cinic10", None, (0.4789, 0.4723, 0.4305), (0.2421, 0.2383, 0.2587), _cinic10)
