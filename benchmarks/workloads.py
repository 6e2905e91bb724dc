"""What `python -m benchmarks` compares: workloads, and the contenders' commands."""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.common import ROOT, setting, write_images
from benchmarks.peers.environments import environment
from fedapps.core.files import write_npz

SERIAL = """import sys
from fedapps.core import config
from fedapps.serial import run_serial
run_serial(config.parse(sys.argv[2:]), workers=int(sys.argv[1]), plots=False)"""
FEDERATION = "num-supernodes=2 client-resources-num-cpus=1"
BARE = "evaluate-every=0 evaluate-clients=1 finetune-epochs=0 score-last=false checkpoint-every=0"
FEDAVG = (
    'strategy="fedavg" partitioner="iid" num-clients=100 fraction-train=0.1 local-epochs=1 '
    'batch-size=10 model="cnn" split="official"'
)
MODES = ("floor", "serial", "workers=2")  # what most workloads compare
GPU_MODES = ("floor", "serial", "group=20", "group=50")  # what they compare on a GPU
SCALE = {f"{clients:,} clients": clients for clients in (1_000, 100_000, 1_000_000)}


@dataclass(frozen=True)
class Workload:
    """What is computed, by which contenders; `bases` are those to which they are compared.

    `images` are the numbers of training images, test images and classes of random data, if any.
    With `same_work`, all must have taken the same number of steps on as many weights.
    """

    about: str
    rounds: int
    options: tuple[str, ...]
    images: tuple[int, int, int] | None = None
    contenders: tuple[str, ...] = MODES
    bases: tuple[str, ...] = ("floor", "serial")
    same_work: bool = False


CIFAR = "random images of 3 x 32 x 32"
WORKLOADS = {
    "fedavg": Workload(
        f"FedAvg, 10 of 100 clients a round with 50 {CIFAR} each, 1 epoch, batches of 10, `cnn`",
        12,
        (FEDAVG, BARE),
        (5_000, 1_000, 10),
        (
            *("floor", "floor, threads=2", "floor, 2 processes"),
            *("serial", "serial, threads=2", "workers=2", "Ray, 2 actors"),
            *("pfl", "pfl, 2 processes", "Flower"),
        ),
        ("floor", "serial", "pfl, 2 processes"),
        same_work=True,
    ),
    "small": Workload(
        "The same with 5 images each, so that what is not training counts",
        20,
        (FEDAVG, BARE),
        (500, 1_000, 10),
    ),
    "fedcmd": Workload(
        f"FedAvg in FedCMD's setting: 10 of 100 clients, Dirichlet(0.1), 100 {CIFAR} each on "
        "average, 5 epochs, batches of 32, `lenet5`",
        5,
        (setting("fedcmd-cifar10"), 'strategy="fedavg" evaluate-rounds="" min-samples=10', BARE),
        (15_000, 5_000, 10),
    ),
    "fedrep": Workload(
        f"FedRep, 10 epochs of the head and 1 of the body, 10 of 100 clients with 50 {CIFAR}, "
        "batches of 10, `cnn`",
        5,
        (
            setting("fedrep"),
            'partitioner="iid" num-clients=100 fraction-train=0.1 model="cnn"',
            BARE,
        ),
        (5_000, 1_000, 10),
    ),
    "fedseq": Workload(
        "FedSeq (anti) in its setting, the first of 300 rounds: 10 of 100 clients, "
        f"Dirichlet(0.1), 150 {CIFAR} each on average, 1 epoch, batches of 10, `cnn`, of which "
        "`fc1` is trained",
        5,
        (
            setting("fedseq-cifar100"),
            'strategy="fedseq" fedseq.schedule="anti" fedseq.unfreeze-rounds="0,100,200"',
            f"{BARE} fedseq.finetune-epochs=0",
        ),
        (15_000, 5_000, 100),
    ),
    "fedbabu": Workload(
        f"FedBABU in its setting, but with 2 of 100 clients a round, 1 epoch and no augmentation: "
        f"100 {CIFAR} each, batches of 50, `mobilenet`",
        4,
        (
            setting("fedbabu-cifar100"),
            'strategy="fedbabu" fraction-train=0.02 local-epochs=1 augment="none"',
            BARE,
        ),
        (10_000, 5_000, 100),
    ),
    "watch": Workload(
        "FedAvg on `watch`: 4 of 8 persons a round, 1 epoch, batches of 32, `gru`, Adam",
        5,
        (setting("watch"), 'strategy="fedavg" model="gru" local-epochs=1', BARE),
        contenders=(*MODES, "group=20"),
    ),
    "scale": Workload(
        "FedPer with 100 of N clients a round with 4 random images of 8 x 8 each, 100 clients "
        "evaluated and a checkpoint after every round",
        8,
        ('strategy="fedper" partitioner="iid" local-epochs=1 evaluate-clients=100',),
        contenders=tuple(SCALE),
        bases=("1,000 clients",),
    ),
}


@dataclass(frozen=True)
class Place:
    """Where a comparison runs: `folder` is for data and for runs, `envs` for the peers."""

    folder: Path
    envs: Path
    data_root: str
    device: str = "cpu"
    made: dict[object, Path] = field(default_factory=dict)

    def images(self, images: tuple[int, int, int]) -> Path:
        """Return a file of random images of CIFAR's shape."""
        if images not in self.made:
            train, test, classes = images
            draws, arrays = np.random.default_rng(0), {}
            for part, count in (("train", train), ("test", test)):
                arrays[f"{part}_images"] = draws.integers(0, 256, (count, 32, 32, 3), np.uint8)
                arrays[f"{part}_labels"] = np.arange(count) % classes
            self.made[images] = self.folder / f"{'-'.join(map(str, images))}.npz"
            write_npz(self.made[images], arrays)
        return self.made[images]

    def tiny(self, clients: int) -> Path:
        """Return a file of four small images for each client."""
        if clients not in self.made:
            labels = np.random.default_rng(1).integers(0, 4, 4 * clients)
            self.made[clients] = write_images(self.folder / f"{clients}.npz", labels, 400)
        return self.made[clients]


def contenders(work: str, device: str) -> tuple[str, ...]:
    """Return who takes part in a comparison on this device."""
    own = WORKLOADS[work].contenders
    return GPU_MODES if device != "cpu" and "floor" in own else own


def command(name: str, work: Workload, rounds: int, place: Place, runs: Path) -> list[str] | str:
    """Return a contender's command, or why it cannot run."""
    options = [*work.options, f'num-rounds={rounds} runs-dir="{runs}" run-name="bench"']
    options.append(f'data-root="{place.data_root}" device="{place.device}"')
    if name in SCALE:
        clients = SCALE[name]
        data = place.tiny(clients)
        options.append(f"num-clients={clients} fraction-train={100 / clients!r}")
    elif work.images:
        data = place.images(work.images)
    else:
        data = None
    if data:
        options.append(f'dataset="{data}"')
    if "threads=2" in name:
        options.append("threads=2")
    if name.startswith("group="):
        options.append(name)
    if name.startswith("floor"):
        parts = "2" if "2 processes" in name else "1"
        return [sys.executable, "-m", "benchmarks.floor", parts, *options]
    if name in PEERS:
        return PEERS[name](place, [f"{data}", f"{rounds}"])
    if name.startswith("Ray"):
        words = [word for option in options for word in ("--run-config", option)]
        words += ["--home", f"{place.folder}", "--federation-config", FEDERATION]
        return [sys.executable, "-m", "fedapps", "run", f"{ROOT}", *words]
    workers = "2" if name == "workers=2" else "1"
    return [sys.executable, "-c", SERIAL, workers, *options]


def _pfl(processes: int) -> Callable[[Place, list[str]], list[str] | str]:
    def words(place: Place, arguments: list[str]) -> list[str] | str:
        programs, problem = environment(place.envs)
        many = ["torchrun", "--standalone", "--nproc-per-node", f"{processes}"]
        start, *more = many if processes > 1 else ["python"]
        module = ["-m", "benchmarks.peers.pfl_research", *arguments]
        return problem or [f"{programs / start}", *more, *module]

    return words


def _flower(place: Place, arguments: list[str]) -> list[str] | str:
    return [sys.executable, "-m", "benchmarks.peers.flower", *arguments]


PEERS = {"pfl": _pfl(1), "pfl, 2 processes": _pfl(2), "Flower": _flower}
