"""Inputs that nobody meant: every reader gives what it read, or one of its declared errors.

    python -m tests.support.fuzz 100000            # inputs for each reader; all readers
    python -m tests.support.fuzz 100000 npz state

Each input is a valid one with some bytes flipped, cut, doubled, swapped for others of the same or
another input, or replaced by numbers that are often mistaken. Checksums are made right again in
half of the cases, so that what lies behind them is read, too. The inputs of a seed are always the
same. What is printed is a line of JSON for each reader.
"""

import contextlib
import io
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from flwr.app import Array, ArrayRecord

from fedapps.core import config, log
from fedapps.core.errors import RunError
from fedapps.data import load, notes
from fedapps.engine.checkpoint import _MAGIC, Best, Checkpoint, Progress, _checksum
from fedapps.engine.failures import FailureCounts
from fedapps.engine.store import NONE, ClientStore
from fedapps.split.frames import BadFrame, Frame, decode, encode
from fedapps.wire.arrays import unpack_arrays
from fedapps.wire.checks import BadMessage

SHAPES = {"fc.weight": (3, 4), "fc.bias": (3,)}
WORDS = (
    *(
        b"\x00", b"\xff", b"\x7f\xff\xff\xff", b"\xff" * 8, b"\n", b'"', b"{", b"[", b"=", b"'",
        b",",
    ),
    *(b"nan", b"1e999", b"-1", b"F64", b"BF16", b"O", b"|O", b"<f8", b"(9999999999,)", b"None"),
    *(b"\xed\xa0\x80", b"strategy=", b"true", b"null", b"[[", b"../", b"~nobody/x", b"#"),
)  # fmt: skip


@dataclass(frozen=True)
class Reader:
    """A reader under test: valid inputs, what reads one, and the errors that it declares."""

    samples: list[bytes]
    read: Callable[[bytes], object]
    declared: tuple[type[Exception], ...]
    repaired: Callable[[bytes], bytes] = bytes  # with right checksums


def mutated(samples: list[bytes], draws: random.Random) -> bytes:
    """Return one of the samples after one to eight accidents."""
    data = bytearray(draws.choice(samples))
    for _ in range(draws.choice((1, 1, 1, 2, 3, 8))):
        at = draws.randrange(len(data) + 1)
        end = min(len(data), at + draws.randint(1, 16))
        kind = draws.randrange(7)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << draws.randrange(8)
        elif kind == 1:
            data[at:end] = draws.randbytes(end - at)
        elif kind == 2:
            del data[at:end]
        elif kind == 3:
            data[at:at] = data[at:end] * draws.randint(1, 4)
        elif kind == 4:
            other = draws.choice(samples)
            start = draws.randrange(len(other) + 1)
            data[at:end] = other[start : start + draws.randint(1, 64)]
        elif kind == 5:
            data[at:end] = draws.choice(WORDS)
        elif draws.random() < 0.1:
            del data[at:]
    return bytes(data)


def fuzz(reader: Reader, inputs: int, seed: int) -> dict[str, object]:
    """Read so many inputs; return how many were read, which errors came, and what should not."""
    draws, outcomes, faults = random.Random(seed), Counter[str](), Counter[str]()
    slowest = 0.0
    for number in range(inputs):
        data = mutated(reader.samples, draws)
        if number % 2:
            data = reader.repaired(data)
        begin = time.perf_counter()
        try:
            reader.read(data)
            outcomes["read"] += 1
        except reader.declared as error:
            outcomes[type(error).__name__] += 1
        except Exception as error:  # what is being looked for
            faults[f"{type(error).__name__}: {error}"[:200]] += 1
        slowest = max(slowest, time.perf_counter() - begin)
    return {"inputs": inputs, "slowest": round(slowest, 3)} | dict(outcomes) | {"faults": faults}


def readers(folder: Path) -> dict[str, Reader]:
    """Make the readers; files that they read are put into `folder`."""
    return {
        "arrays": arrays(), "frames": frames(), "config": options(),
        "config-file": config_file(folder), "npz": npz(folder), "state": state(folder),
        "checkpoint": checkpoint(),
    }  # fmt: skip


def arrays() -> Reader:
    """Arrays of a message, as packed by NumPy."""
    draws = np.random.default_rng(0)
    samples = []
    for shape in SHAPES.values():
        for dtype in (np.float32, np.float64, ">f4", np.int64):
            file = io.BytesIO()
            np.save(file, draws.standard_normal(shape).astype(dtype))
            samples.append(file.getvalue())

    def read(data: bytes) -> object:
        cut = data[-1] % 8 if data else 0
        dtype, stype = ("float32", "numpy.ndarray") if cut else (data[:9].decode("latin-1"), "x")
        for key, shape in SHAPES.items():
            record = ArrayRecord({key: Array(dtype, shape, stype, data)})
            with contextlib.suppress(BadMessage):
                unpack_arrays(record, SHAPES)
        return unpack_arrays(record, SHAPES)

    return Reader(samples, read, (BadMessage,))


def frames() -> Reader:
    """Frames of split learning."""
    tensors = {"x": torch.ones(2, 3, 2, 2), "y": torch.arange(3)}
    samples = [encode(Frame("data", 3), tensors), encode(Frame("failed", 3, text="no"))]
    return Reader(samples, decode, (BadFrame,))


def options() -> Reader:
    """Texts of `-c`."""
    samples = [
        b'strategy="fedper" num-rounds=3 lr=0.05 fedper.personal-layers="fc1,fc2"',
        b"strategy=fedseq fedseq.unfreeze-rounds='0,5,6,7' model=mobilenet lr=1e-3 seed=7",
        b'dataset="/tmp/x.npz" partitioner="sizes" sizes="0.4,0.3" evaluate-rounds="1-9,3"',
        b'dp.mode="central" dp.noise-multiplier=1.5 channel-tls="~/x" resume="latest" run-name="a"',
    ]

    def read(data: bytes) -> object:
        return config.read(config.parse([data.decode("utf-8", "surrogateescape")]))

    return Reader(samples, read, (RunError,))


def config_file(folder: Path) -> Reader:
    """TOML files of settings."""
    path = folder / "run.toml"
    flat = config.parse(['strategy="fedcmd" lr=0.5'])
    samples = [
        config.to_toml(flat).encode(),
        b"lr = 0.5\n[fedprox]\nprox-mu = 0.1\n[dp]\ndelta = 1e-6",
    ]

    def read(data: bytes) -> object:
        path.write_bytes(data)
        return config.read(config.parse([str(path)]))

    return Reader(samples, read, (RunError,))


def npz(folder: Path) -> Reader:
    """Data sets of users."""
    path, samples = folder / "own.npz", []
    for dtype, save in ((np.uint8, np.savez), (np.float32, np.savez_compressed)):
        file, images = io.BytesIO(), np.ones((4, 3, 3), dtype)
        values = {"train_images": images, "train_labels": np.arange(4), "class_names": list("abcd")}
        save(file, test_images=images[:2], test_labels=np.arange(2), **values)
        samples.append(file.getvalue())

    def read(data: bytes) -> object:
        path.write_bytes(data)
        dataset = load(str(path), "")
        return notes(dataset, "official"), dataset.rows.read(np.arange(len(dataset.labels)))

    return Reader(samples, read, (RunError,))


def state(folder: Path) -> Reader:
    """A client's state; a broken one gives way to the version before it, so nothing is raised."""
    run = folder / "run"
    store = ClientStore(run / "clients" / "3")
    run.mkdir()
    store.save(1, {"a": torch.ones(2)})
    store.save(2, {"a": torch.ones(2, 3), "b/c": torch.arange(3), "h": torch.ones(2).half()})
    path = store.folder / "round-000002.safetensors"
    samples = [path.read_bytes()]

    def read(data: bytes) -> object:
        path.write_bytes(data)
        version, found = store.load_version(9)
        if version == 1:
            assert torch.equal(found["a"], torch.ones(2))
        return version

    return Reader(samples, read, ())


def checkpoint() -> Reader:
    """Checkpoints, with checksums that are wrong or right."""
    about = Progress(
        round=7, seconds=1.5, tables={"rounds.csv": 3}, classes=[[1, 2]], versions={0: 7, 3: NONE},
        best=Best(), failures=FailureCounts(), source="", clients=4,
    )  # fmt: skip
    arrays = {"fc.weight": np.ones((3, 4), np.float32)}
    whole = Checkpoint(about, arrays, {"votes": np.arange(6).reshape(2, 3)}).pack()

    def repaired(data: bytes) -> bytes:
        body = data.partition(b"\n")[2]
        return _MAGIC + _checksum(body) + b"\n" + body

    return Reader([whole], Checkpoint.unpack, (ValueError,), repaired)


def main(inputs: int, names: list[str], seed: int = 0) -> int:
    """Fuzz readers; return 1 if one raised what it does not declare."""
    log.set_level("error")
    faults = False
    with tempfile.TemporaryDirectory() as folder:
        there = readers(Path(folder))
        for name in names or there:
            found = fuzz(there[name], inputs, seed)
            faults |= bool(found["faults"])
            print(json.dumps({"reader": name} | found), flush=True)
    return int(faults)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
