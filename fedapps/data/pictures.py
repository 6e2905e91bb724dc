"""Picture files: reads one of a known size, or many into one array."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedapps.core.errors import RunError, needed

GRAY = ("L", "1")
MOST_PIXELS = 2**24  # of one picture; a small file can claim to have many more


def folders(folder: Path) -> list[str]:
    """Return the names of the folders in `folder`, sorted: a folder's position is its label."""
    return sorted(entry.name for entry in folder.glob("*/"))


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
    paths = [path for path, _ in files]
    images = stacked((_picture(path) for path in paths), paths)
    labels = np.array([label for _, label in files], np.int64)
    return {f"{part}_images": images, f"{part}_labels": labels}


def pictures_of(files: Sequence[Path], shape: tuple[int, ...]) -> np.ndarray:
    """Read pictures of one size: uint8 [N, H, W] if the first is gray, otherwise [N, H, W, 3].

    With a `shape` [C, H, W] that they must have, uint8 [N, H, W, C].
    """
    if shape:
        return stacked((picture_of(file, shape) for file in files), files)
    mode = mode_of(files[0])
    return stacked((_picture(file, mode) for file in files), files)


def mode_of(file: Path) -> str:
    """Return what the pixels of a picture are, as Pillow names it; raises `RunError`."""
    with readable(file) as pillow, pillow.open(file) as image:
        return str(image.mode)


def grayed(first: object, modes: Iterable[str]) -> list[str]:
    """Tell how many pictures become gray because the `first` one is; `modes` are those of all."""
    rest = iter(modes)
    if next(rest) not in GRAY:
        return []
    colored = [mode not in (*GRAY, "LA") for mode in rest]
    if not any(colored):
        return []
    return [
        f"{first} is gray, so all pictures become gray: {sum(colored)} of {len(colored) + 1} lose"
        " their colors; save this one as RGB to keep them"
    ]


def stacked(
    values: Iterable[np.ndarray], where: Sequence[object], pictures: bool = True
) -> np.ndarray:
    """Stack arrays [...] to [N, ...]; raises `RunError` for one of another shape than the first.

    `where` says where each is from. Shapes of `pictures` are said in pixels.
    """
    whole = np.empty(0)
    for row, value in enumerate(values):
        if not row:
            whole = np.empty((len(where), *value.shape), value.dtype)
        if value.shape != whole.shape[1:]:
            first = getattr(where[0], "name", where[0])  # a path, or what a row is called
            one, other = list(value.shape), list[int](whole.shape[1:])
            told, wanted = f"shape {one}", f"{other}"
            if pictures:
                told, wanted = f"{one[1]}x{one[0]} pixels", f"{other[1]}x{other[0]}"
            raise RunError(f"{where[row]}: {told}; must be {wanted} like {first}")
        whole[row] = value
    return whole


def pixels(image: Any, first_mode: str) -> np.ndarray:
    """Return the pixels of a picture, gray if the first of its data set is; raises ValueError."""
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(f"{image.width}x{image.height} pixels are too many")
    if image.mode.startswith(("I", "F")):  # 16 or 32 bits, which `convert` clips
        raise ValueError("more than 8 bits a pixel; save it with 8, or as floats in an .npz")
    return np.asarray(image.convert("L" if first_mode in GRAY else "RGB"))


def _picture(file: Path, mode: str = "RGB") -> np.ndarray:
    with readable(file) as pillow, pillow.open(file) as image:
        return pixels(image, mode)


@contextmanager
def readable(where: object) -> Iterator[Any]:
    """Turn what Pillow raises for a bad picture into a `RunError`, which says where it is.

    Gives Pillow's module `Image`.
    """
    with needed(str(where)):
        from PIL import Image
    try:
        yield Image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        # SyntaxError: a broken PNG chunk
        raise RunError(f"{where}: cannot be read as a picture ({error})") from error
