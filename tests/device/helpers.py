"""What the tests of devices share: a tiny run, and reading what it leaves."""

from pathlib import Path

import numpy as np
from PIL import Image
from safetensors.numpy import load_file

DEVICES = 3
RUN = (
    f'num-clients={DEVICES} batch-size=8 fraction-train=1.0 input-shape="1,8,8" num-classes=3 '
    'dataset="device" round-timeout=300.0'
)


def left_out(read_csv, folder):
    """Why devices were left out of a run, by client."""
    events = read_csv(folder, "events.csv")
    return {row["client"]: row["detail"] for row in events if row["kind"] == "left-out"}


def newest(folder):
    """The newest state of a device in the only method's folder below its state folder."""
    (path,) = {path.parent for path in folder.glob("*/run.json")}
    files = sorted(path.glob("round-*.safetensors"))
    return load_file(files[-1])


def initial_copy(state_dir):
    """A device's copy of the initial model of the last run that brought one; None if none did."""
    found = Path(state_dir).glob("initial-model-*.safetensors")
    return max(found, key=lambda path: path.stat().st_mtime_ns, default=None)


def put(folder, names, size=(8, 8), parts=("train", "test"), skip=()):
    """Make a folder of pictures, two in each class."""
    for part in parts:
        for label, name in enumerate(names):
            if name in skip:
                continue
            (folder / part / name).mkdir(parents=True)
            for number in range(2):
                pixels = np.full(size[::-1], 60 * label + number, np.uint8)
                Image.fromarray(pixels).save(folder / part / name / f"{number}.png")
    return folder
