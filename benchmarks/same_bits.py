"""Do two versions of the project compute the same? Every method, byte for byte.

    python -m benchmarks.same_bits                             # this checkout against HEAD
    python -m benchmarks.same_bits --against HEAD --methods fedper,ditto --seeds 0

Each version runs every method on the serial engine in a process of its own, with its own
`python -m fedapps.serial`. Compared are rounds.csv (without seconds), clients.csv, unseen.csv,
classes.csv and events.csv, column by column of the older version, the server's model, and the
newest state of every client. The exit status is 0 if all is the same; else the first difference of
each run is named.
"""

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors import deserialize

from benchmarks.common import ROOT, given
from fedapps.core.files import write_npz
from fedapps.data.sources.scikit_learn import DIGITS

TABLES = ("rounds.csv", "clients.csv", "unseen.csv", "classes.csv", "events.csv")
BASE = (
    'num-clients=6 min-samples=4 alpha=1.0 model="cnn" num-rounds=4 fraction-train=0.5 '
    'local-epochs=2 batch-size=16 evaluate-every=2 finetune-epochs=1 threads=1 device="cpu"'
)
# Beside its defaults each method runs with settings that reach its other branches.
VARIANTS = {
    "apfl": ('model="lenet5" apfl.alpha-steps="batch" score-last=true unseen-clients="5"',),
    "centralized": ('centralized.trainable="body"',),
    "ditto": ("ditto.personal-epochs=2 momentum=0.9",),
    "fedamp": ('fedamp.similarity="cosine" fedamp.own-weight=0.3 unseen-clients="5"',),
    "fedala": ('model="lenet5" fedala.ala-layers=2 unseen-clients="5"',),
    "fedap": (
        'model="lenet5" unseen-clients="5"',
        'model="lenet5" fedap.warmup=0.25 bn-stats="local"',
    ),
    "fedas": ('model="lenet5" bn-stats="local" unseen-clients="5"',),
    "fedavg": ("server-data=0.1 score-last=true", 'augment="crop-flip" weight-decay=1e-4'),
    "fedbabu": ('finetune-part="head"', "prox-mu=0.1"),
    "fedbn": ('model="lenet5"',),
    "fedcmd": ('fedcmd.candidates="all" fedcmd.selection-fraction=0.5', 'fedcmd.layer="fc1"'),
    "feddbe": ('model="lenet5" bn-stats="local" unseen-clients="5"',),
    "feddyn": ("momentum=0.5",),
    "fedem": ('model="lenet5" bn-stats="local"', 'unseen-clients="5"'),
    "fedfc": ('fedfc.cuts="1"', 'fedfc.oversample=true fedfc.weighting="samples"'),
    "fedfomo": ("fedfomo.epsilon=0.9", 'unseen-clients="5"'),
    "fedpac": ('model="lenet5" head-layers=2 unseen-clients="5"',),
    "fedper": ('fedper.personal-layers="fc1,fc2" score-last=true',),
    "fedprox": ("fedprox.prox-mu=1.0",),
    "fedproto": ('fedproto.weighting="plain" fedproto.predict="head" unseen-clients="5"',),
    "fedrep": ("fedrep.head-epochs=2", 'lr-schedule="cosine"'),
    "fedseq": ('fedseq.schedule="vanilla"', 'fedseq.base="fedper"'),
    "knnper": ("knnper.capacity=8 knnper.weight=0.7",),
    "lgfedavg": ("lgfedavg.warmup-rounds=2",),
    "local": ("local.match-compute=true",),
    "perfedavg": ('perfedavg.mode="hf"', 'perfedavg.personalize="epoch"'),
    "perfreezeclip": ('clip-mode="sample"', "perfreezeclip.freeze-ratio=0.8"),
    "pfedme": ('model="lenet5" weight-decay=1e-3 unseen-clients="5"',),
    "pfedsim": ("pfedsim.warmup=0.25",),
    "scaffold": ("momentum=0.5 scaffold.global-lr=1.5",),
    "sflv1": ('sflv1.sync="round"',),
    "sflv2": ("sflv2.oversample=true", 'sflv2.order="batch"'),
}
NEEDED = {"fedap", "fedbn"}  # methods that do not run with the base settings alone


def main() -> int:
    """Run both versions and compare; return the exit status."""
    options = given(__doc__, against="HEAD", methods="", seeds="0,1,2")
    with (
        tempfile.TemporaryDirectory(prefix="same-bits-") as folder,
        checkout(options.against, Path(folder) / "older") as older,
    ):
        methods = options.methods.split(",") if options.methods else methods_of(older)
        data = make_data(Path(folder) / "digits.npz")
        runs = {
            f"{method} seed {seed}{' ' + variant if variant else ''}": (
                f'strategy="{method}" seed={seed} dataset="{data}" {BASE}',
                variant,
            )
            for method in methods
            for seed in options.seeds.split(",")
            for variant in (*([] if method in NEEDED else [""]), *VARIANTS.get(method, ()))
        }
        places = (older, ROOT)
        found = [start(place, runs, Path(folder) / str(i)) for i, place in enumerate(places)]
        before, now = [finished(process) for process in found]
        return tell(methods, compare(before, now))


def methods_of(place: Path) -> list[str]:
    """Return the methods of a version."""
    names = (path.stem for path in (place / "strategies").glob("[a-z]*.py"))
    return sorted(names)


def make_data(path: Path) -> Path:
    """Write every third of scikit-learn's digits as a data set of one's own."""
    write_npz(path, {key: array[::3] for key, array in DIGITS.make(path.parent).items()})
    return path


@contextlib.contextmanager
def checkout(commit: str, folder: Path) -> Iterator[Path]:
    """Lay out a commit beside the working tree."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--quiet", "--detach", str(folder), commit], check=True)
    try:
        yield folder
    finally:
        subprocess.run([*git, "remove", "--force", str(folder)], check=True)


def start(place: Path, runs: Mapping[str, tuple[str, ...]], folder: Path) -> subprocess.Popen[str]:
    """Start one version on all runs, in a process that sees no other version."""
    folder.mkdir()
    code = Path(__file__).with_name("_same_bits_worker.py")
    environment = {**os.environ, "PYTHONPATH": str(place), "PYTHONSAFEPATH": "1"}
    process = subprocess.Popen(
        [sys.executable, str(code), str(place)],
        cwd=folder,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    options = {name: [*run, f'runs-dir="{folder}"'] for name, run in runs.items()}
    process.stdin.write(json.dumps(options))
    process.stdin.close()
    return process


def finished(process: subprocess.Popen[str]) -> dict[str, str]:
    """Wait for a version; return the run directory of each run, or the error that ended it."""
    assert process.stdout
    answer = process.stdout.read()
    if process.wait():
        raise SystemExit(f"a version ended with status {process.returncode}")
    return json.loads(answer.splitlines()[-1])


def compare(before: dict[str, str], now: dict[str, str]) -> dict[str, str]:
    """Return the first difference of each run, an empty text if there is none."""
    differences = {}
    for name, old in before.items():
        new = now[name]
        failed = [where for where in (old, new) if not Path(where).is_dir()]
        if failed:
            differences[name] = " | ".join(failed)
            continue
        found = [*differing_tables(Path(old), Path(new)), *differing_files(Path(old), Path(new))]
        differences[name] = found[0] if found else ""
    return differences


def differing_tables(old: Path, new: Path) -> Iterator[str]:
    """Name the tables whose columns of the older version have other values now."""
    for name in (name for name in TABLES if (old / name).exists()):
        columns = [table(folder / name) for folder in (old, new)]
        for column, values in columns[0].items():
            if column != "seconds" and columns[1].get(column) != values:
                yield f"{name}: column {column}"


def table(path: Path) -> dict[str, list[str]]:
    """Read a table by columns."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    return {str(name): column.tolist() for name, column in frame.items()}


def differing_files(old: Path, new: Path) -> Iterator[str]:
    """Name the model and the newest client files whose tensors are not the same.

    Metadata and the number of older versions kept are not compared.
    """

    def files(folder: Path) -> dict[str, dict[str, Any]]:
        newest = {path.parent: path for path in sorted(folder.rglob("*.safetensors"))}
        return {
            str(path.relative_to(folder)): dict(deserialize(path.read_bytes()))
            for path in newest.values()
        }

    before, now = files(old), files(new)
    for name in sorted(before.keys() | now.keys()):
        if before.get(name) != now.get(name):
            yield name


def tell(methods: Iterable[str], differences: dict[str, str]) -> int:
    """Print a line per method; return the exit status."""
    status = 0
    for method in methods:
        runs = {k: v for k, v in differences.items() if k.split()[0] == method}
        wrong = {k: v for k, v in runs.items() if v}
        print(f"{method:14} {len(runs):2} runs: {'DIFFERENT' if wrong else 'the same'}")
        for name, what in wrong.items():
            print(f"    {name}: {what}")
        status |= bool(wrong)
    return status


if __name__ == "__main__":
    sys.exit(main())
