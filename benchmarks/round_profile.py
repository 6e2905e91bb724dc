"""Where the time of a round goes: workloads of `python -m benchmarks` under Python's profiler.

    python -m benchmarks.round_profile fedavg small watch

Each is run twice on the serial engine, with 2 and with 2 + `--rounds` rounds; the difference is
what rounds alone take. It is divided by who spends it: what a function does itself counts for its
file, and what C code does (PyTorch's kernels, say) for the file that calls it. The profiler slows
Python code more than kernels, so the shares of all but the passes are rather too large. With
`--device cuda`, the GPU's time counts for the line that waits for it.
"""

import argparse
import contextlib
import cProfile
import io
import pstats
import re
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.common import DATA
from benchmarks.workloads import WORKLOADS, Place, command
from fedapps.core import config, log
from fedapps.serial import run_serial

LEAST = 0.01  # of a round; what takes less is in the last row
PLACES = {
    r"torch/autograd/": "backward pass",
    r"torch/nn/|torch/_jit_internal": "forward pass",
    r"torch/optim/|torch/utils/_foreach|fedapps/training/optimizers": "optimizer's steps",
    r"fedapps/training/(stage_run|trainer|objective|plan)": "loop over the steps",
    r"fedapps/training/(batches|draw|resident|run_data)|fedapps/data/": "batches and their order",
    r"fedapps/training/evaluation|fedapps/tasks/": "evaluation",
    r"fedapps/models/|fedapps/training/|torch/": "models: weights in and out, layers",
    r"fedapps/wire/|flwr/|google/|safetensors": "messages and their checks",
    r"fedapps/method/|/strategies/|/clients/|numpy/": "method: what clients answer, means",
    r"fedapps/(engine|serial)": "engine: state, checkpoints, events",
    r"fedapps/report/|csv|json/|logging|rich/": "tables, progress and log",
}


def who(file: str) -> str:
    """Return the row of the table to which a file's time belongs."""
    return next((place for pattern, place in PLACES.items() if re.search(pattern, file)), "other")


def own_seconds(options: list[str]) -> Counter[str]:
    """Run with these options; return the seconds that each row of the table takes."""
    profiler, seconds = cProfile.Profile(), Counter[str]()
    with contextlib.redirect_stdout(io.StringIO()):  # the run's summary
        profiler.runcall(run_serial, config.parse(options), plots=False)
    for (file, *_), (*_, callers) in pstats.Stats(profiler).stats.items():  # type: ignore[attr-defined]
        for (caller, *_), (_, _, own, _) in callers.items():
            seconds[who(caller if file == "~" else file)] += own
    return seconds


def rounds_of(name: str, rounds: int, place: Place) -> Counter[str]:
    """Return milliseconds of a round of a workload by who spends them."""
    found = []
    for number in (2, 2 + rounds):
        with tempfile.TemporaryDirectory(dir=place.folder) as runs:
            work = WORKLOADS[name]
            contender = "serial" if "serial" in work.contenders else work.contenders[0]
            words = command(contender, work, number, place, Path(runs))
            found.append(own_seconds([*words[4:]]))
    few, many = found
    return Counter({row: 1e3 * (many[row] - few[row]) / rounds for row in many})


def main() -> None:
    """Print a table for each workload."""
    parser = argparse.ArgumentParser("benchmarks.round_profile", description=__doc__)
    parser.add_argument("workloads", nargs="+", choices=[*WORKLOADS])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--data-root", default=DATA)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    options = parser.parse_args()
    log.set_level("error")
    with tempfile.TemporaryDirectory(prefix="fedapps-") as folder:
        place = Place(Path(folder), Path(folder), options.data_root, options.device)
        rounds_of(options.workloads[0], 1, place)  # what only the first run in a process pays
        for name in options.workloads:
            spent = rounds_of(name, options.rounds, place)
            total = spent.total()
            print(f"\n{name}\n\n| where | ms a round | share |\n|---|---|---|")
            for row, milliseconds in spent.most_common():
                if milliseconds >= LEAST * total:
                    print(f"| {row} | {milliseconds:.1f} | {milliseconds / total:.0%} |")
            rest = sum(each for each in spent.values() if each < LEAST * total)
            print(f"| the rest | {rest:.1f} | {rest / total:.0%} |\n| all | {total:.1f} | 100% |")


if __name__ == "__main__":
    main()
