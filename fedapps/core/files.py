"""Files that are either complete or not there at all, JSON, and locks between processes."""

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from fedapps.core.errors import RunError

if TYPE_CHECKING:
    import numpy as np

Content = TypeVar("Content")

# NumPy parses headers with `ast`, which fails in CPython 3.11 if two threads do it at once: "AST
# constructor recursion depth mismatch" (python/cpython#106905).
parsing = Lock()

# Locked together with its folder: over NFS other machines do not see a folder's own lock, and
# earlier versions lock nothing else.
LOCK = ".lock"
MOMENT = 0.2  # seconds, longer than a look at a lock takes


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error that keeps a file from being written into a `RunError`."""
    try:
        yield
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror or error}") from error


def write_whole(path: Path, content: bytes | Callable[[Path], None], durable: bool = False) -> None:
    """Write a file so that `path` holds the old or the new content, never a part of it.

    `content` is the bytes, or a function that fills the temporary file whose path it gets. With
    `durable` the data are on disk before the file gets its name, so a power cut leaves the old
    file. Raises `RunError` if the file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # same folder: renaming works
    try:
        with writing(path):
            if isinstance(content, bytes):
                temporary.write_bytes(content)
            else:
                content(temporary)
            if durable:
                with temporary.open("rb") as file:
                    to_disk(file.fileno())
            temporary.replace(path)
            if durable:
                _sync_folder(path.parent)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def to_disk(handle: int) -> None:
    """Write what an open file holds to its drive, where a power cut leaves it; raises OSError.

    On macOS, `os.fsync` alone writes to the drive's cache only. Not all file systems there do more.
    """
    if full := getattr(fcntl, "F_FULLFSYNC", None):
        with suppress(OSError):
            fcntl.fcntl(handle, full)
            return
    os.fsync(handle)


def read_json(
    path: Path, kind: type[Content], hint: str, missing: Content | None = None
) -> Content:
    """Read a JSON file as an object of its kind, or return `missing` if there is no file.

    Raises `RunError`, which ends with the hint, if it cannot be read.
    """
    import msgspec  # --help does not need it

    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError) as error:
        if missing is not None and isinstance(error, FileNotFoundError):
            return missing
        raise RunError(f"{path}: cannot be read ({error}); {hint}") from error


def numbered(folder: Path, prefix: str, suffix: str) -> list[int]:
    """Return the numbers that names in a folder have between two texts; none if it is not there.

    Raises `RunError` if this user may not look into it: `Path.glob` would find nothing there.
    """
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{folder}: cannot be read ({error.strerror or error})") from error
    numbers = (n[len(prefix) : -len(suffix)] for n in names if n.startswith(prefix))
    return [int(n) for n in numbers if n.isdecimal() and f"{prefix}{n}{suffix}" in names]


def write_json(path: Path, content: object) -> None:
    """Write a JSON file that people can read, durably like `write_whole`; raises `RunError`."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(content), indent=2)
    write_whole(path, text + b"\n", durable=True)


def write_npz(path: Path, arrays: Mapping[str, "np.ndarray"]) -> None:
    """Write an .npz file like `write_whole`; raises `RunError`."""
    import numpy as np  # most users of this module do not need it

    def fill(temporary: Path) -> None:
        with temporary.open("wb") as file:  # given a name, NumPy demands its own suffix
            np.savez(file, **arrays)  # type: ignore[arg-type]

    write_whole(path, fill)


def stamp(path: "Path | os.DirEntry[str]") -> tuple[object, ...]:
    """Return what is another if a file, or any file in a folder, has been replaced or changed.

    It is empty if there is nothing that can be read.
    """
    try:
        about, inside = path.stat(), list["os.DirEntry[str]"]()
        if path.is_dir():
            with os.scandir(path) as entries:  # twice as fast as a Path for each
                inside = sorted(entries, key=lambda entry: entry.name)
    except OSError:
        return ()
    mine = (path.name, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns)
    return *mine, *map(stamp, inside)


def remove_left_over(folder: Path) -> None:
    """Remove the temporary files that killed processes left behind, in a folder and below."""
    import psutil  # most users of this module do not need it

    left = [*folder.rglob(".*.tmp")]
    running = psutil.pids()  # asked for later, so that it includes the writers of all these files
    for path in left:
        process = path.name.split(".")[-2]
        # Of this process there are none yet: in a new container, it has the id of the one before.
        if process.isdecimal() and int(process) not in {*running} - {os.getpid()}:
            with suppress(OSError):  # another process has removed it
                path.unlink()


@contextmanager
def held(path: Path, shared: bool = False) -> Iterator[bool]:
    """Lock a folder or a file in this context; gives False if another process has locked it.

    A `shared` lock bears others of its kind. The system releases the lock when the process ends,
    however it ends. Raises `RunError` if the path cannot be opened.
    """
    with _locked(path, 0, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB) as free:
        yield free


def is_free(path: Path) -> bool:
    """Tell whether this process could lock a folder or a file."""
    try:
        with held(path) as free:
            return free
    except RunError:  # the folder is another user's, or gone
        return False


@contextmanager
def alone(path: Path, told: str, shared: bool = False) -> Iterator[None]:
    """Lock a folder or a file in this context; raises `RunError` with the text if it is locked.

    It is tried twice, because who only looks whether it is locked (`held`) locks it for a moment.
    """
    with ExitStack() as stack:
        if not (free := stack.enter_context(held(path, shared))):
            stack.close()
            time.sleep(MOMENT)
            free = stack.enter_context(held(path, shared))
        if not free:
            raise RunError(told)
        yield


@contextmanager
def in_turn(path: Path) -> Iterator[None]:
    """Lock a folder or a file in this context; other processes wait.

    A file is created if it does not exist. Raises `RunError` if it cannot be written.
    """
    with _locked(path, os.O_CREAT, fcntl.LOCK_EX):
        yield


@contextmanager
def _locked(path: Path, create: int, operation: int) -> Iterator[bool]:
    with writing(path):
        flags = os.O_RDWR | create
        handles = _locks_of(path) if path.is_dir() else [os.open(path, flags, 0o666)]
    try:
        yield all(_lock(handle, operation) for handle in handles)
    finally:
        for handle in handles:
            _lock(handle, fcntl.LOCK_UN)  # a fork that has it open, too, would keep it otherwise
            os.close(handle)


def _lock(handle: int, operation: int) -> bool:
    """Lock an open file; False if another process has. Without locks in its system, it is free."""
    try:
        fcntl.flock(handle, operation)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno == errno.EBADF and operation & fcntl.LOCK_EX:  # NFS, open for reading only
            return _lock(handle, operation & ~fcntl.LOCK_EX | fcntl.LOCK_SH)
    return True


def _locks_of(folder: Path) -> list[int]:
    """Open what is locked for a folder; who may only read gets what there is."""
    file = folder / LOCK
    try:
        handles = [os.open(file, os.O_RDWR | os.O_CREAT, 0o666)]
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        handles = [os.open(file, os.O_RDONLY)] if file.exists() else []
    try:
        return [*handles, os.open(folder, os.O_RDONLY)]
    except OSError:  # this user may not list it
        if not handles:
            raise
        return handles


def _sync_folder(folder: Path) -> None:
    """Write the names in a folder to disk; VirtualBox's shared folders and old CIFS cannot."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        to_disk(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(handle)
