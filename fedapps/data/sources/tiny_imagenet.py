"""Tiny-ImageNet, from its unpacked archive."""

from collections.abc import Mapping
from pathlib import Path

from fedapps.core.errors import RunError
from fedapps.data.pictures import folders, picture_arrays
from fedapps.data.sources.source import Arrays, Source, archive


def _tiny_imagenet(root: Path) -> Arrays:
    """Read `train/<wnid>/images` as training set, and `val` as test set (our choice).

    The archive's own `test` has no labels.
    """
    source = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
    folder = archive("tiny-imagenet", root / "tiny-imagenet-200", source)
    labels = {wnid: label for label, wnid in enumerate(folders(folder / "train"))}
    train = [
        (file, label)
        for wnid, label in labels.items()
        for file in sorted((folder / "train" / wnid / "images").glob("*.JPEG"))
    ]
    test = _annotated(folder / "val", labels)
    arrays = picture_arrays("train", train, folder / "train" / "<wnid>" / "images" / "*.JPEG")
    return arrays | picture_arrays("test", test, folder / "val" / "images" / "*.JPEG")


def _annotated(folder: Path, labels: Mapping[str, int]) -> list[tuple[Path, int]]:
    """List the files in `val_annotations.txt` (tab-separated: name, wnid, box) with labels."""
    path = folder / "val_annotations.txt"
    if not path.is_file():
        raise RunError(f"{path}: no such file; unpack the whole archive again")
    files = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        name, wnid, *_ = [*line.split("\t"), ""]
        if wnid not in labels:
            raise RunError(f'{path}: line {number} names class "{wnid}"; no such folder in train')
        files.append((folder / "images" / name, labels[wnid]))
    return files


TINY_IMAGENET = Source(
    "tiny-imagenet", None, (0.4802, 0.4481, 0.3975), (0.2770, 0.2691, 0.2821), _tiny_imagenet
)
