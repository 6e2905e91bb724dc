"""Picture files: reads one of a known size, or many into one array."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedapps.core.errors import RunError

MOST_PIXELS = 2**24  # of one picture; a small file can claim to have many more


@dataclass(frozen=True)
class Pictures:
    """Images in memory, uint8 [N, H, W, C]."""

    values: np.ndarray

    def read(self, indices: np.ndarray) -> np.ndarray:
        """Return rows `indices` (int64 [n])."""
        return self.values[indices]


def folders(folder: Path) -> list[str]:
    """Return the names of the folders in `folder`, sorted: a folder's position is its label."""
    return sorted(entry.name for entry in folder.glob("*/"))


def picture_files(folder: Path) -> list[Path]:
    """List the .png, .jpg and .jpeg files of a folder, sorted by name."""
    suffixes = (".png", ".jpg", ".jpeg")
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in suffixes)


def picture_of(file: Path, shape: tuple[int, ...]) -> np.ndarray:
    """Read a picture as uint8 [H, W, C], gray or RGB; raises `RunError` for another size."""
    if shape[0] not in (1, 3):
        raise RunError(f"{file}: a picture has 1 or 3 channels; the run has {shape[0]}")
    picture = _picture(file, "L" if shape[0] == 1 else "RGB")
    height, width = picture.shape[:2]
    if (height, width) != shape[1:]:
        raise RunError(f"{file}: {width}x{height} pixels; the run has {shape[2]}x{shape[1]}")
    return picture.reshape(height, width, shape[0])


def picture_arrays(
    part: str, files: Sequence[tuple[Path, int]], where: Path
) -> dict[str, np.ndarray]:
    """Read picture files as RGB: uint8 [N, H, W, 3] and labels [N], under the keys of `part`.

    Raises `RunError` if there are no files, or if a picture has another size than the first.
    """
    if not files:
        raise RunError(f"{where}: no such files; unpack the whole archive again")
    first = _picture(files[0][0])
    images = np.empty((len(files), *first.shape), np.uint8)
    for row, (file, _) in enumerate(files):
        picture = _picture(file)
        if picture.shape != first.shape:
            raise RunError(
                f"{file}: {picture.shape[1]}x{picture.shape[0]} pixels; must be"
                f" {first.shape[1]}x{first.shape[0]} like {files[0][0].name}"
            )
        images[row] = picture
    labels = np.array([label for _, label in files], np.int64)
    return {f"{part}_images": images, f"{part}_labels": labels}


def _picture(file: Path, mode: str = "RGB") -> np.ndarray:
    from PIL import Image

    try:
        with Image.open(file) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"{image.width}x{image.height} pixels are too many")
            if image.mode.startswith(("I", "F")):  # 16 or 32 bits, which `convert` clips
                raise ValueError(
                    "more than 8 bits a pixel; save it with 8, or as floats in an .npz"
                )
            return np.asarray(image.convert(mode))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # SyntaxError: a broken PNG chunk
        raise RunError(f"{file}: cannot be read as a picture ({error})") from error
