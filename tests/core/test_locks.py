"""Locks between processes, on file systems that lock only what is open for writing."""

import errno
import fcntl
import os
import stat
import time
from contextlib import ExitStack

import pytest

from fedapps.core.errors import RunError
from fedapps.core.files import alone, held, in_turn


@pytest.fixture
def nfs(monkeypatch):
    """Make `flock` what it is over NFS: folders are locked in vain, what is only read not alone."""
    flock, locked = fcntl.flock, []

    def of_nfs(handle, operation):
        if fcntl.fcntl(handle, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            if stat.S_ISDIR(os.fstat(handle).st_mode):
                return  # for this machine only
            if operation & fcntl.LOCK_EX:
                raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        flock(handle, operation)
        if operation != fcntl.LOCK_UN:
            locked.append(os.fstat(handle).st_mode)

    monkeypatch.setattr(fcntl, "flock", of_nfs)
    return locked


@pytest.fixture
def refuse(monkeypatch):
    """Return refuse(path), after which this user may only read it."""
    opened, only_read = os.open, set()

    def open_(path, flags, *mode):
        if path in only_read and flags & os.O_ACCMODE != os.O_RDONLY:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, flags, *mode)

    monkeypatch.setattr(os, "open", open_)
    return only_read.add


@pytest.mark.parametrize("is_folder", [True, False])
def test_a_lock_holds_on_nfs(is_folder, nfs, tmp_path):
    path = tmp_path if is_folder else tmp_path / "file"
    path.touch()
    with held(path) as free:
        assert free
        with held(path) as free:
            assert not free
        with pytest.raises(RunError, match="mine"), alone(path, "mine"):
            raise AssertionError
    with in_turn(path), held(path) as free:
        assert not free
    assert len(nfs) == 2 and all(map(stat.S_ISREG, nfs))


def test_who_may_not_write_a_folder_is_told_that_it_is_held(nfs, refuse, tmp_path):
    """As `fedapps status` asks about another user's run."""
    with held(tmp_path) as free:
        refuse(tmp_path / ".lock")
        with held(tmp_path) as other:
            assert free and not other


def test_what_nobody_holds_is_free_for_who_may_not_write_it(nfs, refuse, tmp_path):
    with held(tmp_path):
        pass
    refuse(tmp_path / ".lock")
    with held(tmp_path) as free, held(tmp_path) as other:
        assert free and other


@pytest.mark.parametrize("writable", [True, False])
def test_a_folder_that_an_earlier_version_has_locked_is_held(writable, tmp_path, refuse):
    """Those versions lock the folder itself, and make no `.lock`."""
    handle = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    if not writable:
        refuse(tmp_path / ".lock")
    with held(tmp_path) as free:
        assert not free
    os.close(handle)
    with held(tmp_path) as free:
        assert free
        handle = os.open(tmp_path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):  # as that version sees it
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(handle)


def test_a_folder_that_cannot_be_listed_has_its_lock(tmp_path, monkeypatch):
    opened = os.open

    def open_(path, *how):
        if path == tmp_path:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return opened(path, *how)

    monkeypatch.setattr(os, "open", open_)
    with held(tmp_path) as free, held(tmp_path) as other:
        assert free and not other


def test_a_folder_without_a_lock_that_nobody_may_write_is_free(nfs, refuse, tmp_path):
    refuse(tmp_path / ".lock")
    with held(tmp_path) as free:
        assert free
    assert not [*tmp_path.iterdir()]


def test_what_is_gone_is_not_made_by_asking_who_holds_it(tmp_path):
    with pytest.raises(RunError, match="gone: No such file"), held(tmp_path / "gone"):
        pass
    assert not [*tmp_path.iterdir()]


def test_a_look_at_a_lock_is_waited_for_and_its_holder_is_not(tmp_path, monkeypatch):
    look = ExitStack()
    assert look.enter_context(held(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    with pytest.raises(RunError, match="mine"), alone(tmp_path, "mine"):
        raise AssertionError
    monkeypatch.setattr(time, "sleep", lambda seconds: look.close())  # it ends meanwhile
    with alone(tmp_path, "mine"), held(tmp_path) as free:
        assert not free


@pytest.mark.parametrize("is_folder", [True, False])
def test_what_is_given_back_is_free_though_a_fork_lives(is_folder, tmp_path):
    """A fork has all that was open, so to close a lock does not give it back."""
    path = tmp_path if is_folder else tmp_path / "file"
    path.touch()
    waits, ends = os.pipe()
    with alone(path, "another's"):
        if not (fork := os.fork()):
            os.close(ends)
            os.read(waits, 1)
            os._exit(0)
    try:
        with held(path) as free:
            assert free
    finally:
        os.close(ends)
        os.waitpid(fork, 0)
        os.close(waits)
