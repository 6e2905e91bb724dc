"""Files that are either there in full or not at all."""

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock

from fedapps.core.errors import RunError

# NumPy's headers are parsed by `ast`, which CPython 3.11 cannot do in two threads at once: "AST
# constructor recursion depth mismatch" (python/cpython#106905).
parsing = Lock()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what keeps a file from being written into a `RunError`."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes | Callable[[Path], None], durable: bool = False) -> None:
    """Write a file so that `path` holds the old or the new content, never a part of it.

    `content` is the bytes, or fills the temporary file whose path it gets. With `durable` the data
    is on disk before the name is: a power cut leaves the old file. Raises `RunError` if the file
    cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # a rename works in one folder
    try:
        with writing(path):
            if isinstance(content, bytes):
                temporary.write_bytes(content)
            else:
                content(temporary)
            if durable:
                with temporary.open("rb") as file:
                    os.fsync(file.fileno())
            temporary.replace(path)
            if durable:
                _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def remove_left_over(folder: Path) -> None:
    """Remove what `write_whole` left half written below a folder in processes that were killed."""
    import psutil  # not for all who write files

    left = [*folder.rglob(".*.tmp")]
    running = psutil.pids()  # after the look: who writes a file that was seen is among them
    for path in left:
        process = path.name.split(".")[-2]
        if process.isdecimal() and int(process) not in running:
            with suppress(OSError):  # another process removes it, too
                path.unlink()


@contextmanager
def held(folder: Path) -> Iterator[bool]:
    """Hold a folder for what is done in here; gives False where somebody else holds it.

    The system lets it go when the process ends, however that ends.
    """
    with writing(folder):
        handle = os.open(folder, os.O_RDONLY)
    try:
        yield _locked(handle)
    finally:
        os.close(handle)


@contextmanager
def appending(table: Path) -> Iterator[bool]:
    """Hold a table that several processes append to; gives whether it is empty, as one just made.

    Others wait until it is let go. Raises `RunError` if it cannot be written.
    """
    with writing(table):
        handle = os.open(table, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        with suppress(OSError):  # a file system that knows no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield not os.fstat(handle).st_size
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system that knows no locks
        return True
    return True


def _sync_folder(folder: Path) -> None:
    """Have the names in a folder on disk, where the system can."""
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
