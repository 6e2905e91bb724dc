"""Data sets: own files and their errors, named sets, downloads (faked) and unpacked archives."""

import dataclasses
import fcntl
import inspect
import itertools
import os
import subprocess
import sys
import threading
import tracemalloc
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from urllib.error import URLError

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st
from PIL import Image

from fedapps import data
from fedapps.core.errors import RunError, told_to_server
from fedapps.data import NAMES, load
from fedapps.data.sources import SOURCES

TRAIN, VAL, TEST = 7, 3, 5


def arrays(shape=(6, 4, 3), dtype=np.uint8, label_shape=(), label_dtype=np.int64, val=False):
    """Members of an own file: images of `shape` ([H, W] or [H, W, C]) and labels 0..4."""
    rng = np.random.default_rng(0)
    members = {}
    for part, n in (("train", TRAIN), ("val", VAL), ("test", TEST)):
        values = rng.integers(0, 256, (n, *shape), dtype=np.uint8)
        images = values if dtype == np.uint8 else (values / 256).astype(dtype)
        if part != "val" or val:
            members[f"{part}_images"] = images
            labels = (np.arange(n) % 5).astype(label_dtype)
            members[f"{part}_labels"] = labels.reshape(n, *label_shape)
    return members


def write(folder, save=np.savez, name="own.npz", **members):
    save(folder / name, **members)
    return str(folder / name)


def expected(members):
    """What a model must see of an own file, computed by hand."""
    parts = [part for part in ("train", "val", "test") if f"{part}_images" in members]
    pixels = np.concatenate([members[f"{part}_images"] for part in parts])
    pixels = pixels[..., None] if pixels.ndim == 3 else pixels
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(0, 3, 1, 2)).astype(np.float32))
    if pixels.dtype == np.uint8:
        images = images / 255
    labels = np.concatenate([members[f"{part}_labels"].reshape(-1) for part in parts])
    return (images - 0.5) / 0.5, torch.from_numpy(labels.astype(np.int64))


def message(*args):
    """The one line that `load(*args)` ends with."""
    with pytest.raises(RunError, match=r"\A[^\n]*\Z") as caught:
        load(*args)
    return str(caught.value)


def zeros(*shape, dtype=np.uint8):
    return np.zeros(shape, dtype)


BOTH = pytest.mark.parametrize("save", [np.savez, np.savez_compressed])


# own files ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64, np.float16, ">f4"])
@pytest.mark.parametrize("shape", [(6, 4), (6, 4, 1), (6, 4, 3), (1, 1)])
def test_images_of_every_form(tmp_path, save, dtype, shape):
    members = arrays(shape, dtype)
    own = load(write(tmp_path, save, **members), "unused")
    assert (own.name, own.shape) == ("own", ((*shape, 1)[2], *shape[:2]))
    assert own.normalization.mean == own.normalization.std == (0.5,) * own.shape[0]
    images, labels = own.tensors(np.arange(12))
    assert images.dtype == torch.float32 and images.is_contiguous()
    assert all(map(torch.equal, (images, labels), expected(members)))


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.uint64, ">i2"])
@pytest.mark.parametrize("shape", [(), (1,)])
def test_labels_of_every_form(tmp_path, dtype, shape):
    own = load(write(tmp_path, **arrays(label_dtype=dtype, label_shape=shape)), "unused")
    assert own.labels.dtype == np.int64
    assert own.labels.tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3, 4]
    assert (own.classes, own.num_train) == (5, TRAIN)
    assert own.tensors(np.array([1, 6]))[1].dtype == torch.int64


def test_fortran_order_and_foreign_members(tmp_path):
    members = arrays()
    stored = {key: np.asfortranarray(value) for key, value in members.items()}
    path = write(tmp_path, note=np.array("text"), names=np.array(["a", None]), **stored)
    assert torch.equal(load(path, "unused").tensors(np.arange(12))[0], expected(members)[0])


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    """An own file, stored and compressed."""
    folder, saves = tmp_path_factory.mktemp("own"), (np.savez, np.savez_compressed)
    return [write(folder, save, f"{save.__name__}.npz", **arrays(val=True)) for save in saves]


@pytest.fixture(scope="module")
def stored_and_compressed(paths):
    return [load(path, "") for path in paths]


@given(st.lists(st.integers(0, TRAIN + VAL + TEST - 1)))
@budget(max_examples=100, deadline=None)
def test_any_samples_in_any_order(stored_and_compressed, chosen):
    wanted = expected(arrays(val=True))
    for own in stored_and_compressed:
        found = own.tensors(np.array(chosen, dtype=np.int64))
        assert all(torch.equal(one, all_[chosen]) for one, all_ in zip(found, wanted, strict=True))


def test_samples_that_do_not_exist(stored_and_compressed):
    for chosen in ([15], [-1], [3, 99]):
        with pytest.raises(IndexError, match=r"samples are 0\.\.14"):
            stored_and_compressed[0].tensors(np.array(chosen))


@BOTH
def test_opening_reads_no_pixels(tmp_path, save):
    big = {"train_images": zeros(TRAIN, 1000, 500, 3), "test_images": zeros(TEST, 1000, 500, 3)}
    path = write(tmp_path, save, **arrays() | big)  # 10 MB
    load(path, "unused")  # imports
    tracemalloc.start()
    own = load(path, "unused")
    assert tracemalloc.get_traced_memory()[1] < 500_000
    tracemalloc.stop()
    assert own.shape == (3, 1000, 500)


def test_a_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, **arrays())
    assert load("~/own.npz", "unused").num_train == TRAIN


def test_importing_is_light():
    """Libraries that only a download or `digits` needs are no part of a worker's start."""
    code = (
        "import sys; from unittest.mock import MagicMock; sys.modules['torch'] = MagicMock()\n"
        "import fedapps.data\nprint({'torchvision', 'medmnist', 'sklearn'} & {*sys.modules})"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(data.__file__).parents[2])}
    assert subprocess.check_output([sys.executable, "-c", code], env=env) == b"set()\n"


# errors of own files ------------------------------------------------------------------------------


def test_paths_that_are_refused(tmp_path):
    why = 'dataset = "x.npz": must be absolute or start with ~, for example ~/x.npz'
    assert message("x.npz", "~") == why
    assert message(f"{tmp_path}/x.npz", "~") == f"{tmp_path}/x.npz: no such file"
    assert 'data-root = "data": must be absolute' in message("mnist", "data")
    folder = tmp_path / "folder.npz"
    folder.mkdir()
    assert message(str(folder), "~") == f"{folder}: cannot be read (Is a directory)"


@pytest.mark.parametrize(("key", "value", "text"), [
    ("test_labels", None, "key test_labels is missing; found train_images, train_labels,"),
    ("train_images", None, "key train_images is missing"),
    ("val_images", zeros(2, 6, 4, 3), "key val_labels is missing"),
    ("train_images", zeros(7, 6), "train_images has shape [7, 6]; must be [N"),
    ("train_images", zeros(7, 6, 4, 3, 1), "must be [N, H, W] or [N, H, W, C]"),
    ("train_images", zeros(7, 0, 4, 3), "every side must be at least 1"),
    ("train_images", zeros(7, 6, 4, 3, dtype=int), "has dtype int64; must be uint8 or fl"),
    ("train_images", zeros(7, 6, 4, 3, dtype=bool), "has dtype bool; must be uint8 or float"),
    ("train_images", np.array([None] * 7), "train_images holds Python objects; save numbers"),
    (
        "test_images",
        zeros(5, 6, 5, 3),
        "test_images holds uint8 images of [C, H, W] = [3, 6, 5]; must be uint8 images of"
        " [3, 6, 4] as in train_images",
    ),
    ("test_images", zeros(5, 6, 4), "[1, 6, 4]; must be uint8 images of [3,"),
    ("test_images", zeros(5, 6, 4, 3, dtype=float), "holds float64 images"),
    (
        "train_labels",
        zeros(6, dtype=int),
        "train_labels holds 6 labels for 7 images of train_images; the numbers must be equal",
    ),
    ("train_labels", zeros(7, 2, dtype=int), "has shape [7, 2]; must be [N] or [N, 1]"),
    ("train_labels", np.array(3), "has shape []; must be [N] or [N, 1]"),
    ("train_labels", np.zeros(7), "train_labels has dtype float64; must be integers"),
    ("train_labels", np.array(["a"] * 7), "has dtype <U1; must be integers"),
    ("train_labels", np.array([None] * 7), "train_labels holds Python objects; save numbers"),
    ("train_labels", np.array([0, 1, -1, 0, 0, 0, 0]), "holds label -1; must be 0..65535"),
    ("test_labels", np.array([0, 1, 2**40, 0, 0]), "holds label 1099511627776; must be 0.."),
    ("test", zeros(0, 6, 4, 3), "test_images has shape [0, 6, 4, 3]; every side must be at l"),
])  # fmt: skip
def test_wrong_contents(tmp_path, key, value, text):
    members = arrays() | {key: value}
    if key == "test":
        members |= {"test_images": value, "test_labels": value[:, 0, 0, 0]}
    path = write(tmp_path, **{key: v for key, v in members.items() if v is not None})
    line = message(path, "~")
    assert line.startswith(path + ": ") and text in line


@BOTH
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e300])
def test_pixels_that_are_not_finite(tmp_path, save, value):
    members = arrays(dtype=np.float64)
    members["test_images"][2, 3, 1, 0] = value
    own = load(write(tmp_path, save, **members), "unused")
    assert len(own.tensors(np.array([0, 1, 8, 10]))[0]) == 4
    what = "NaN or infinity" if value != 1e300 else r"1e\+300; must be between -3.4e38 and 3.4e38$"
    with pytest.raises(RunError, match=rf"own.npz: test_images\[2\] holds {what}"):
        own.tensors(np.arange(12))


def test_no_pickle_is_ever_loaded(tmp_path):
    class Bomb:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "bang"),)

    bomb = np.array([Bomb()] * TRAIN, dtype=object)
    for key in ("train_images", "train_labels"):
        message(write(tmp_path, **arrays() | {key: bomb}), "~")
    assert not (tmp_path / "bang").exists()


@pytest.mark.parametrize(("key", "cure"), [
    ("inputs", "numbers"),
    ("targets", "numbers"),
    ("groups", r"groups\.astype\(str\)"),
    ("class_names", r"class_names\.astype\(str\)"),
])  # fmt: skip
def test_an_array_of_python_objects_is_named(tmp_path, key, cure):
    """As pandas gives texts: `frame.author.values`."""
    members = {"inputs": np.zeros((4, 3)), "targets": np.arange(4) % 2}
    texts = np.array(["a", "b", "a", "b"], dtype=object)
    np.savez(tmp_path / "own.npz", **members | {key: texts})
    line = rf"own\.npz: {key} holds Python objects; save {cure}$"
    with pytest.raises(RunError, match=line):
        load(str(tmp_path / "own.npz"), "unused")


def test_files_that_are_no_npz(tmp_path):
    path = tmp_path / "own.npz"
    for content in (b"", b"text", b"PK\x05\x06" + bytes(18), np.zeros(3).tobytes()):
        path.write_bytes(content)
        message(str(path), "~")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("train_images.npy", b"no array")
    assert "cannot be read as .npz" in message(str(path), "~")


@pytest.mark.parametrize(("shape", "rest", "text"), [
    ("(9, 6, 4, 3), }", None, "train_images does not have the size that its header states"),
    ("(-7, -6, 4, 3), }", None, "train_images has an impossible shape"),  # of as many bytes
    (f"({2**48}, 0, 4, 3), }}", 128, "train_images has an impossible shape"),
])  # fmt: skip
def test_a_header_that_lies(tmp_path, shape, rest, text):
    path, old = tmp_path / "own.npz", b"(7, 6, 4, 3), }".ljust(len(shape))
    with (
        zipfile.ZipFile(write(tmp_path, name="sound.npz", **arrays())) as sound,
        zipfile.ZipFile(path, "w") as lying,
    ):
        for name in sound.namelist():
            data = sound.read(name)
            lying.writestr(name, data.replace(old, shape.encode())[: rest if old in data else None])
    assert text in message(str(path), "~")


@BOTH
@pytest.mark.parametrize("how", ["shrinks", "is written again", "is replaced"])
def test_a_file_that_changes_after_it_was_opened(tmp_path, save, how):
    """Its bytes would be read at the places of the old ones, beside labels of the old ones."""
    members = arrays()
    path = Path(write(tmp_path, save, **members))
    own, opened = load(str(path), "unused"), path.stat().st_mtime_ns
    if how == "shrinks":
        path.write_bytes(path.read_bytes()[:700])
    else:
        others = {key: values[::-1] for key, values in members.items()}
        other = Path(write(tmp_path, save, "other.npz", **others))
        other.replace(path) if how == "is replaced" else path.write_bytes(other.read_bytes())
        os.utime(path, ns=(opened, opened + 1))  # a clock's next step may be later
    for _ in range(2):
        with pytest.raises(RunError, match=r"own\.npz: has changed since the run") as first:
            own.tensors(np.arange(12))
    path.unlink()
    with pytest.raises(RunError, match="no such file") as last:
        own.tensors(np.arange(12))
    for error in (first.value, last.value):  # a device does not say where its data are
        assert told_to_server(error) == "its data have changed, or cannot be read"


# named sets ---------------------------------------------------------------------------------------


def test_names():
    assert NAMES == (
        "digits", "mnist", "fmnist", "emnist", "cifar10", "cifar100", "cinic10", "svhn",
        "tiny-imagenet", "organamnist", "organcmnist", "breast-cancer", "wine", "diabetes", "heart",
        "watch", "shakespeare",
    )  # fmt: skip


def test_an_unknown_name(tmp_path):
    line = message("CIFAR-10", str(tmp_path))
    assert line.startswith('dataset = "CIFAR-10": unknown, nearest is cifar10; allowed: digits,')
    assert line.endswith("or the absolute path of own data")


def test_digits(tmp_path, monkeypatch):
    digits = load("digits", str(tmp_path / "new" / "folder"))
    assert (digits.shape, digits.classes) == ((1, 8, 8), 10)
    assert (len(digits.labels), digits.num_train) == (1797, 1437)
    assert digits.labels[:5].tolist() == [0, 1, 2, 3, 4]
    assert set(digits.labels[1437:]) == set(range(10))
    images, _ = digits.tensors(np.arange(1437))
    assert abs(images.mean()) < 1e-3
    assert abs(images.std() - 1) < 1e-3
    sixteenths = (images[0] * 0.3755 + 0.3054) * 16
    assert torch.allclose(sixteenths, sixteenths.round(), atol=1e-5)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)  # 2 s that a worker need not wait
    again = load("digits", str(tmp_path / "new" / "folder"))
    assert torch.equal(again.tensors(np.arange(1437))[0], images)


def test_a_file_in_the_root_must_be_that_set(tmp_path):
    members = arrays((28, 28)) | {"test_labels": np.arange(8, 8 + TEST)}
    write(tmp_path, name="mnist.npz", **members)
    assert message("mnist", str(tmp_path)).endswith("label 12 found; mnist has labels 0..9")
    write(tmp_path, name="svhn.npz", **arrays((32, 32)))
    assert message("svhn", str(tmp_path)).endswith("[1, 32, 32]; svhn has images of 3 channels")


# downloads ----------------------------------------------------------------------------------------


def test_only_one_of_two_that_need_a_data_set_makes_it(tmp_path, monkeypatch):
    made, second, flock = [], threading.Event(), fcntl.flock
    digits = SOURCES["digits"]

    def make(folder):
        made.append(folder)
        other = pool.submit(load, "digits", str(tmp_path))  # needs it while it is being made
        assert second.wait(60)
        others.append(other)
        return digits.make(folder)

    def lock(handle, how):
        if made:
            second.set()
        flock(handle, how)

    others = []
    monkeypatch.setitem(SOURCES, "digits", dataclasses.replace(digits, make=make))
    monkeypatch.setattr(fcntl, "flock", lock)
    with ThreadPoolExecutor() as pool:
        first = load("digits", str(tmp_path))
        assert np.array_equal(others[0].result().labels, first.labels)
    assert made == [tmp_path]


def fake_torchvision(monkeypatch, cls, make):
    """Put a class in the place of torchvision's that answers as it does; returns its calls."""
    import torchvision

    signature = inspect.signature(getattr(torchvision.datasets, cls))
    calls = []

    def fake(**options):
        options = signature.bind(**options).arguments
        options |= options.pop("kwargs", {})
        calls.append(options)
        return make(options)

    monkeypatch.setattr(torchvision.datasets, cls, fake)
    return calls


def gray(options):
    """As MNIST, FashionMNIST and EMNIST: uint8 tensors."""
    n = TRAIN if options["train"] else TEST
    images = torch.arange(n * 28 * 28, dtype=torch.int64).view(n, 28, 28).to(torch.uint8)
    return SimpleNamespace(data=images, targets=torch.arange(n))


@pytest.mark.parametrize(
    ("name", "cls", "classes"),
    [("mnist", "MNIST", 10), ("fmnist", "FashionMNIST", 10), ("emnist", "EMNIST", 62)],
)
def test_downloads_of_gray_images(tmp_path, monkeypatch, name, cls, classes):
    calls = fake_torchvision(monkeypatch, cls, gray)
    for _ in range(2):
        opened = load(name, str(tmp_path))
    assert len(calls) == 2  # train and test, once
    assert all(call["root"] == tmp_path and call["download"] for call in calls)
    assert [call.get("split") for call in calls] == [{"emnist": "byclass"}.get(name)] * 2
    assert (opened.shape, opened.classes, opened.num_train) == ((1, 28, 28), classes, TRAIN)
    images, labels = opened.tensors(np.array([1]))
    assert labels.tolist() == [1]
    first = images[0, 0, 0, 0] * opened.normalization.std[0] + opened.normalization.mean[0]
    assert first * 255 == pytest.approx(28 * 28 % 256)
    assert {file.name for file in tmp_path.iterdir()} == {f"{name}.npz", ".lock"}


def test_an_extraction_that_was_cut_off_is_done_again(tmp_path, monkeypatch):
    """As by a full disk, or Ctrl-C; torchvision's own code reads the files, which are made here."""
    from torchvision.datasets import mnist

    def idx(values):
        sizes = [value.to_bytes(4, "big") for value in values.shape]
        return bytes([0, 0, 8, values.ndim]) + b"".join(sizes) + values.tobytes()

    def extract(url, download_root, filename, md5):
        n = TRAIN if "train" in filename else TEST
        labels = "labels" in filename
        values = np.arange(n) if labels else np.arange(n * 784).reshape(n, 28, 28)
        path = Path(download_root) / filename.removesuffix(".gz")
        path.write_bytes(idx(values.astype(np.uint8))[: None if whole else 100])
        if not whole:
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(mnist, "download_and_extract_archive", extract)
    whole = False
    assert "No space left on device" in message("mnist", str(tmp_path))
    (cut,) = (tmp_path / "MNIST" / "raw").iterdir()
    for name, _ in mnist.MNIST.resources:  # torchvision takes what is there for whole
        (cut.parent / name.removesuffix(".gz")).write_bytes(cut.read_bytes())
    whole = True
    opened = load("mnist", str(tmp_path))
    assert opened.labels.tolist() == [*range(TRAIN), *range(TEST)]
    assert {file.name for file in tmp_path.iterdir()} == {"MNIST", "mnist.npz", ".lock"}


@pytest.mark.parametrize(("name", "classes"), [("cifar10", 10), ("cifar100", 100)])
def test_downloads_of_cifar(tmp_path, monkeypatch, name, classes):
    def cifar(options):
        n = TRAIN if options["train"] else TEST
        return SimpleNamespace(data=np.full((n, 32, 32, 3), n, np.uint8), targets=[*range(n)])

    fake_torchvision(monkeypatch, name.upper(), cifar)
    opened = load(name, str(tmp_path))
    assert (opened.shape, opened.classes, opened.num_train) == ((3, 32, 32), classes, TRAIN)
    assert opened.labels.tolist() == [*range(TRAIN), *range(TEST)]


def test_download_of_svhn(tmp_path, monkeypatch):
    pixels = np.random.default_rng(0).integers(0, 256, (TRAIN, 3, 32, 32), dtype=np.uint8)

    def svhn(options):
        n = {"train": TRAIN, "test": TEST}[options["split"]]
        return SimpleNamespace(data=pixels[:n], labels=np.arange(n))

    fake_torchvision(monkeypatch, "SVHN", svhn)
    opened = load("svhn", str(tmp_path))
    assert (opened.shape, opened.classes, opened.num_train) == ((3, 32, 32), 10, TRAIN)
    assert np.array_equal(opened.rows.read(np.array([3]))[0], pixels[3].transpose(1, 2, 0))


@pytest.mark.parametrize(
    ("name", "cls"), [("organamnist", "OrganAMNIST"), ("organcmnist", "OrganCMNIST")]
)
def test_downloads_of_medmnist(tmp_path, monkeypatch, name, cls):
    import medmnist

    signature = inspect.signature(getattr(medmnist, cls))
    members = arrays((28, 28), val=True, label_shape=(1,), label_dtype=np.uint8)

    def fake(**options):
        assert signature.bind(**options).arguments["download"]
        assert Path(options["root"]).parent == tmp_path
        np.savez_compressed(Path(options["root"]) / f"{name}.npz", **members)

    monkeypatch.setattr(medmnist, cls, fake)
    opened = load(name, str(tmp_path))
    assert (opened.shape, opened.classes, opened.num_train) == ((1, 28, 28), 11, TRAIN + VAL)
    assert torch.equal(opened.tensors(np.arange(15))[0], expected(members)[0])
    assert {file.name for file in tmp_path.iterdir()} == {f"{name}.npz", ".lock"}


ERRORS = (
    URLError("Temporary failure in name resolution"),
    RuntimeError("Error downloading a:\nTried b, got:\nc\n" + 500 * "d "),
    zipfile.BadZipFile("File is not a zip file"),
    ConnectionResetError(104, "Connection reset by peer"),
)


@pytest.mark.parametrize("error", ERRORS)
def test_a_failed_download_is_one_line(tmp_path, monkeypatch, error):
    import medmnist

    def fail(options):
        raise error

    fake_torchvision(monkeypatch, "CIFAR10", fail)
    monkeypatch.setattr(medmnist, "OrganAMNIST", lambda **options: fail(options))
    for name in ("cifar10", "organamnist"):
        line = message(name, str(tmp_path))
        assert line.startswith(f'dataset = "{name}": download failed ({type(error).__name__}: ')
        keys = "train_images, train_labels, test_images, test_labels"
        assert line.endswith(f"or put {name}.npz with {keys} into {tmp_path}") and len(line) < 500
    assert [file.name for file in tmp_path.iterdir()] == [".lock"]


# unpacked archives --------------------------------------------------------------------------------


def picture(path, seed, size=(32, 32), mode="RGB"):
    path.parent.mkdir(parents=True, exist_ok=True)
    channels = (3,) if mode == "RGB" else ()
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], *channels), dtype=np.uint8)
    Image.fromarray(pixels).save(path)
    return pixels


@pytest.fixture
def cinic10(tmp_path):
    """Three classes, two files each, in each of the three parts."""
    pixels = {}
    folders = itertools.product(("train", "valid", "test"), ("airplane", "bird", "cat"), (0, 1))
    for seed, (part, name, k) in enumerate(folders):
        pixels[part, name, k] = picture(tmp_path / "cinic10" / part / name / f"{k}.png", seed)
    (tmp_path / "cinic10" / "README").write_text("as shipped")
    return tmp_path, pixels


def test_cinic10(cinic10):
    root, pixels = cinic10
    opened = load("cinic10", str(root))
    assert (opened.shape, opened.classes) == ((3, 32, 32), 3)
    assert (len(opened.labels), opened.num_train) == (18, 12)  # valid counts as train
    assert opened.labels.tolist() == [0, 0, 1, 1, 2, 2] * 3
    read = opened.rows.read(np.arange(18))
    for row, original in enumerate(pixels.values()):
        assert np.array_equal(read[row], original)
    (root / "cinic10").rename(root / "elsewhere")
    assert np.array_equal(load("cinic10", str(root)).labels, opened.labels)  # from cinic10.npz


def test_cinic10_in_parts(cinic10):
    root, _ = cinic10
    folder = root / "cinic10"
    (folder / "test").rename(root / "test")
    why = f"{folder}/test: must have the same folders as train; unpack it again"
    assert message("cinic10", str(root)) == why
    (folder / "train").rename(root / "train")
    line = message("cinic10", str(root))
    assert f'dataset = "cinic10": {folder}/train is missing; unpack https://' in line
    assert "or put cinic10.npz with train_images" in line
    assert not (root / "cinic10.npz").exists()


@pytest.mark.parametrize("damage", ["text", "size"])
def test_pictures_that_cannot_be_used(cinic10, damage):
    root, _ = cinic10
    path = root / "cinic10" / "valid" / "bird" / "1.png"
    if damage == "text":
        path.write_text("no picture")
        assert message("cinic10", str(root)).startswith(f"{path}: cannot be read as a picture (")
        return
    picture(path, 0, size=(32, 16))
    assert message("cinic10", str(root)) == f"{path}: 32x16 pixels; must be 32x32 like 0.png"


@pytest.fixture
def tiny(tmp_path):
    """Two classes with two and one train images (one of them gray), three in val."""
    folder = tmp_path / "tiny-imagenet-200"
    for name, i in (("n02", 0), ("n02", 1), ("n01", 2)):
        mode = "L" if i == 1 else "RGB"
        picture(folder / "train" / name / "images" / f"{name}_{i}.JPEG", i, (64, 64), mode)
        (folder / "train" / name / f"{name}_boxes.txt").write_text("")
    for i in range(3):
        picture(folder / "val" / "images" / f"val_{i}.JPEG", i, (64, 64))
    lines = [f"val_{i}.JPEG\tn0{c}\t0\t32\t44\t62\n" for i, c in enumerate((1, 2, 1))]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    picture(folder / "test" / "images" / "test_0.JPEG", 9, (64, 64))
    return tmp_path


def test_tiny_imagenet(tiny):
    opened = load("tiny-imagenet", str(tiny))
    assert (opened.shape, opened.classes, opened.num_train) == ((3, 64, 64), 2, 3)
    assert opened.labels.tolist() == [0, 1, 1, 0, 1, 0]
    read = opened.rows.read(np.arange(6))
    with Image.open(tiny / "tiny-imagenet-200" / "val" / "images" / "val_1.JPEG") as image:
        assert np.array_equal(read[4], np.asarray(image))
    assert np.array_equal(read[2][..., 0], read[2][..., 1])  # the gray one
    assert not np.array_equal(read[1][..., 0], read[1][..., 1])
    (tiny / "tiny-imagenet-200").rename(tiny / "elsewhere")
    assert load("tiny-imagenet", str(tiny)).num_train == 3


def test_tiny_imagenet_in_parts(tiny):
    val = tiny / "tiny-imagenet-200" / "val"
    notes = val / "val_annotations.txt"
    text = notes.read_text()
    notes.write_text(text + "val_7.JPEG\tn77\t0\t0\t1\t1\n")
    line = message("tiny-imagenet", str(tiny))
    assert line == f'{notes}: line 4 names class "n77"; no such folder in train'
    notes.write_text(text + "val_7.JPEG\tn01\t0\t0\t1\t1\n")
    assert f"{val}/images/val_7.JPEG: cannot be read" in message("tiny-imagenet", str(tiny))
    notes.unlink()
    assert message("tiny-imagenet", str(tiny)).startswith(f"{notes}: no such file;")
    line = message("tiny-imagenet", str(tiny / "nowhere"))
    assert "unpack http://cs231n.stanford.edu/tiny-imagenet-200.zip to" in line


def test_an_archive_without_pictures(tmp_path):
    for part in ("train", "valid", "test"):
        (tmp_path / "cinic10" / part / "bird").mkdir(parents=True)
    why = "cinic10/train/<class>/*.png: no such files; unpack the whole archive again"
    assert message("cinic10", str(tmp_path)).endswith(why)
