"""The client store: each round sees what was written before it, whole, or nothing."""

import errno
import os
import re
import resource
import stat
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedapps.core import files
from fedapps.core.errors import RunError
from fedapps.core.files import remove_left_over
from fedapps.device.claims import claim
from fedapps.engine import store as state
from fedapps.engine.store import ClientStore, state_folder, state_folders


@pytest.fixture
def store(tmp_path):
    return ClientStore(tmp_path / "clients" / "7")


def names(store):
    return sorted(path.name for path in store.folder.iterdir())


def number(value):
    return {"x": torch.tensor([float(value)])}


def test_a_client_that_kept_nothing_has_nothing(store):
    assert store.load_version(5)[1] == {}
    assert not store.folder.exists()  # reading leaves no trace


def test_versions_are_ordered_as_numbers(store):
    for round_ in (999_999, 1_000_000, 1_000_001):
        store.save(round_, number(round_ % 1000))
    assert store.load_version(10**9)[1]["x"] == 1
    assert names(store) == ["round-1000000.safetensors", "round-1000001.safetensors"]


def test_a_repeated_round_starts_from_the_same_state_and_replaces_its_own(store):
    store.save(4, number(4))
    store.save(5, number(5))
    assert store.load_version(5)[1]["x"] == 4
    store.save(5, number(55))
    assert store.load_version(6)[1]["x"] == 55
    assert store.load_version(5)[1]["x"] == 4


def test_a_straggler_of_an_earlier_round_leaves_what_came_after(store):
    store.save(1, number(1))
    store.save(2, number(2))
    store.save(4, number(4))
    store.save(3, number(3))
    assert store.load_version(5)[1]["x"] == 4
    assert store.load_version(4)[1]["x"] == 3


@settings(max_examples=30)
@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12, unique=True).map(sorted),
    st.integers(1, 40),
)
def test_the_newest_two_answer_every_round_after_them(tmp_path_factory, rounds, asked):
    store = ClientStore(tmp_path_factory.mktemp("store"))
    for round_ in rounds:
        store.save(round_, number(round_))
    earlier = [round_ for round_ in rounds[-2:] if round_ < asked]
    assert store.load_version(asked)[1] == (
        {"x": torch.tensor([float(earlier[-1])])} if earlier else {}
    )


def same(a, b):
    return a.keys() == b.keys() and all(
        a[k].dtype == b[k].dtype
        and a[k].shape == b[k].shape
        and a[k].contiguous().numpy().tobytes() == b[k].contiguous().numpy().tobytes()
        for k in a
    )


def test_tensors_come_back_bit_by_bit(store):
    kept = {
        "model/fc.weight": torch.randn(4, 3, generator=torch.Generator().manual_seed(0)),
        "special": torch.tensor([0.0, -0.0, float("inf"), float("nan"), 1e-45]),
        "double": torch.tensor([1 / 3], dtype=torch.float64),
        "half": torch.tensor([0.1], dtype=torch.float16),
        "count": torch.tensor(2**62 + 1),
        "small": torch.tensor([-128, 127], dtype=torch.int8),
        "flags": torch.tensor([True, False]),
        "none": torch.zeros(0, 5),
    }
    store.save(1, kept)
    assert same(store.load_version(2)[1], kept)


def test_views_are_saved_as_the_values_that_they_show(store):
    base = torch.arange(24.0).reshape(4, 6)
    views = {"t": base.T, "column": base[:, 2], "rows": base[::2], "wide": base[:1].expand(3, 6)}
    assert not any(view.is_contiguous() for view in views.values())
    store.save(1, views)
    read = store.load_version(2)[1]
    for key, view in views.items():
        assert np.array_equal(read[key].numpy(), view.numpy())


def test_tensors_that_share_memory_or_need_gradients_are_saved(store):
    weight = torch.nn.Parameter(torch.arange(6.0))
    store.save(1, {"a": weight, "b": weight, "part": weight.detach()[:2]})
    read = store.load_version(2)[1]
    assert read["a"].tolist() == read["b"].tolist() == [0, 1, 2, 3, 4, 5]
    assert read["part"].tolist() == [0, 1]
    assert not read["a"].requires_grad


def test_what_is_loaded_is_no_window_to_the_file(store):
    store.save(1, number(1))
    store.load_version(2)[1]["x"].add_(5)
    assert store.load_version(2)[1]["x"] == 1


def test_what_a_killed_process_left_is_not_read(store):
    store.save(1, number(1))
    whole = (store.folder / "round-000001.safetensors").read_bytes()
    (store.folder / ".round-000002.safetensors.4711.tmp").write_bytes(whole[: len(whole) // 2])
    assert store.load_version(3)[1]["x"] == 1
    store.save(2, number(2))
    store.save(3, number(3))
    assert store.load_version(4)[1]["x"] == 3


def test_what_killed_processes_left_is_removed_and_nothing_else(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "own").mkdir()
    whose = (gone.pid, os.getpid(), os.getppid(), 10**30, "mine")  # a container's id comes again
    names = {n: tmp_path / "own" / f".x.{n}.tmp" for n in whose}
    for path in names.values():
        path.write_bytes(b"half")
    (tmp_path / "x.safetensors").write_bytes(b"whole")
    remove_left_over(tmp_path)
    left = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {names[os.getppid()], names["mine"], tmp_path / "x.safetensors"}


def test_data_are_on_disk_before_the_name_is(store, monkeypatch):
    store = replace(store, needed=0)  # the run can be resumed from its start
    seen = []
    fsync = os.fsync

    def spy(descriptor):
        about = os.fstat(descriptor)
        size = "folder" if stat.S_ISDIR(about.st_mode) else about.st_size
        seen.append((size, store.load_version(2)[1]))
        fsync(descriptor)

    monkeypatch.setattr(files.os, "fsync", spy)
    store.save(1, number(1))
    size = (store.folder / "round-000001.safetensors").stat().st_size
    assert seen == [(size, {}), ("folder", number(1))]  # the data, and then the name


def test_a_broken_state_gives_way_to_the_older_one(store):
    """The version that is told of lets the server say that a state was lost."""
    for round_ in (2, 4):
        store.save(round_, number(round_))
    older, newest = sorted(store.folder.iterdir())
    data = newest.read_bytes()
    for content in (data[:-1] + bytes([data[-1] ^ 1]), data[:-3], b""):
        newest.write_bytes(content)
        assert store.load_version(9) == (2, number(2))
        assert store.load_version(2) == (state.NONE, {})
    older.write_bytes(older.read_bytes()[:-1])
    assert store.load_version(9) == (state.NONE, {})


def test_what_may_not_be_read_is_not_deleted(store, monkeypatch):
    """To read it again later costs nothing; to train on without it, or to delete it, does."""
    store.save(1, number(1))
    store.save(2, number(2))
    newest, opened = store.folder / "round-000002.safetensors", Path.open

    def refused(path, *how, **more):
        if path == newest:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *how, **more)

    before = {path: path.read_bytes() for path in store.folder.iterdir()}
    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", refused)
        begin, load = store.begin, store.load_version
        for ask in (lambda: begin(True), lambda: begin(False), lambda: load(3)):
            with pytest.raises(RunError, match=f"^cannot read {newest}: Permission denied$"):
                ask()
        assert store.load_version(2) == (1, number(1))
    assert {path: path.read_bytes() for path in store.folder.iterdir()} == before
    assert store.load_version(3) == (2, number(2))


def test_what_only_looks_like_a_version_is_left_alone(store):
    """Services that copy files between machines leave such names."""
    copy = "round-000002 (conflicted copy).safetensors"
    for round_ in (1, 2, 3):
        store.save(round_, number(round_))
        (store.folder / copy).write_bytes(b"")
    store.roll_back(2)
    assert store.load_version(9) == (2, number(2))
    assert store.begin(from_newest=True) == 2
    assert names(store) == ["round-000000.safetensors", copy]


def test_a_disk_that_takes_no_folder_or_deletes_nothing_is_a_line(store, monkeypatch):
    def refused(path, *how, **more):
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    store.folder.parents[1].mkdir(exist_ok=True)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "mkdir", refused)
        with pytest.raises(RunError, match=f"^cannot write {store.folder.parent}: Read-only"):
            store.save(1, number(1))
    for round_ in (1, 2):
        store.save(round_, number(round_))
    monkeypatch.setattr(Path, "unlink", refused)
    for delete in (lambda: store.save(3, number(3)), lambda: store.roll_back(1)):
        with pytest.raises(RunError, match=f"^cannot write {store.folder}: Read-only"):
            delete()


# The state folder of a device ---------------------------------------------------------------------

OTHERS = "others may enter it, and it holds other files; chmod 700 it, or name another folder"


@pytest.mark.parametrize("mode", [0o755, 0o750, 0o711, 0o777])
def test_a_folder_of_something_else_is_not_closed(mode, tmp_path):
    folder = tmp_path / "data"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    folder.chmod(mode)
    with pytest.raises(RunError, match=f'^state-dir = "{folder}": {re.escape(OTHERS)}'):
        claim(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == mode


@pytest.mark.parametrize("own", ["personalized.safetensors", "fedper-cnn-0123abcd/run.json"])
def test_a_folder_that_is_a_devices_is_closed_again(own, tmp_path):
    """One that was restored from a backup, say."""
    path = tmp_path / "state" / own
    path.parent.mkdir(parents=True)
    path.write_text("")
    (tmp_path / "state").chmod(0o755)
    claim(tmp_path / "state")
    assert stat.S_IMODE((tmp_path / "state").stat().st_mode) == 0o700


def test_a_private_folder_may_hold_what_it_likes(tmp_path):
    folder = tmp_path / "state"
    folder.mkdir(mode=0o700)
    (folder / "a").write_text("")
    claim(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_disk_that_keeps_no_permissions_is_a_warning(tmp_path, monkeypatch, capsys):
    """FAT, exFAT and Windows' disks in WSL: chmod succeeds there and changes nothing."""
    make, change = os.mkdir, os.chmod

    def made(path, *_, **__):
        make(path)
        change(path, 0o777)

    monkeypatch.setattr(os, "mkdir", made)
    monkeypatch.setattr(os, "chmod", lambda *_, **__: None)
    folder = tmp_path / "state"
    claim(folder)
    (folder / "log.txt").touch()  # before there is a state by which the folder is a device's
    claim(folder)
    told = f'warning: state-dir = "{folder}": this disk keeps no permissions, so other users'
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(told) and [*folder.iterdir()] == [folder / "log.txt"]


def test_a_state_that_the_disk_does_not_take_is_a_line_and_leaves_the_old_one(tmp_path):
    """Its file may not grow so far: what a full disk says, with another reason."""
    store = ClientStore(tmp_path / "clients/7")
    store.save(1, {"x": torch.ones(3)})
    before, limits = {*tmp_path.rglob("*")}, resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limits[1]))
    try:
        with pytest.raises(RunError, match=r"cannot write .*round-000002.*: File too large"):
            store.save(2, {"x": torch.ones(2**20)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {*tmp_path.rglob("*")} == before
    assert store.load_version(9)[1]["x"].tolist() == [1, 1, 1]


def test_folders_of_many_clients_lie_in_a_tree(tmp_path):
    few = state.FLAT
    assert state_folder(tmp_path, 7, few) == tmp_path / "clients/7"
    new = {client: state_folder(tmp_path, client, 10**6) for client in (0, 41731, 999_999)}
    assert new[41731] == tmp_path / "clients/41000-41999/41731"
    for client, folder in new.items():
        ClientStore(folder).save(1, {"own": torch.tensor([client])})
        assert ClientStore(folder).load_version(2)[1]["own"] == client
        assert folder.stat().st_mode & 0o77 == folder.parent.stat().st_mode & 0o77 == 0
    assert {*state_folders(tmp_path)} == {*new.values()}
    assert [*state_folders(tmp_path / "none")] == []
