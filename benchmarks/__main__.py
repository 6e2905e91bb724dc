"""Compare this project with bare PyTorch, other simulators and itself; write benchmarks/RESULTS.md.

    python -m benchmarks all                          # every comparison, five repeats: some 25 min
    python -m benchmarks fedavg scale --repeats 3     # some of them
    python -m benchmarks fedavg --contenders "floor;serial" --quick --out /tmp/quick
    python -m benchmarks fedavg small --device cuda --out /tmp/gpu

Contenders take turns (A B C A B C ...), each in a process of its own, so that all see the same
machine. A round lasts from the end of the one before to its own end; the median of a run is over
all rounds but the first and the last. Ratios are of two runs of the same repeat; the page has their
median, least and largest. The start is all that comes before the end of the first round, less one
round. `--envs` is the folder in which the environments of other simulators are made and kept.
The page keeps the comparisons that are not made now.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path
from statistics import median

import numpy as np
import psutil

from benchmarks.common import DATA, ROOT
from benchmarks.results import Run, here, write
from benchmarks.workloads import WORKLOADS, Place, Workload, command, contenders
from fedapps.core.errors import RunError
from fedapps.launcher import superlink
from fedapps.report.directory import lines
from fedapps.training.torch_device import pick_torch_device

STAMP = re.compile(r"^(\d{4}-\S+ [\d:.,]+) (?:INFO )?round +(\d+)", re.MULTILINE)
DID = re.compile(r"^did weights=(\d+) steps=(\d+)$", re.MULTILINE)
QUICK = 4  # rounds
LOOKS = 3.0  # seconds in which the cores that others use are counted


def measured(words: list[str], runs: Path) -> Run | str:
    """Run a command; return what was measured, or why it failed.

    Memory is the most that the command's own process had. The work is the number of weights and of
    SGD steps in a round; of ours, the bytes and costs in its table tell it, if it is FedAvg.
    """
    begin = time.time()
    env = os.environ | {"PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(words, cwd=ROOT, env=env, stdout=out, stderr=subprocess.STDOUT)
        try:
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        finally:
            if process.returncode is None:
                process.kill()
        out.seek(0)
        text = out.read()
    if process.returncode:
        told = [line for line in text.splitlines() if any(map(str.isalpha, line))]
        return told[-1] if told else f"it ended with {process.returncode}"
    folder, did = runs / "bench", DID.search(text)
    if not did:
        text = (folder / "log.txt").read_text("utf-8")
    ends: dict[str, float] = {}
    for moment, round_ in STAMP.findall(text):
        ends.setdefault(round_, datetime.fromisoformat(moment).timestamp())
    one = float(median(np.diff([*ends.values()])[:-1]))
    work = (int(did[1]), int(did[2])) if did else _work(folder / "rounds.csv")
    unit = 1e6 if sys.platform == "darwin" else 1e3  # Linux counts in KiB, macOS in bytes
    return Run(one, ends["1"] - begin - one, used.ru_maxrss / unit, work)


def _work(table: Path) -> tuple[int, int]:
    row = lines(table)[0]
    weights = int(row["bytes_up"]) // 4 // int(row["clients"])
    return weights, round(int(row["cost_paper"]) / weights)


def _run(name: str, work: Workload, rounds: int, place: Place) -> Run | str:
    with tempfile.TemporaryDirectory(dir=place.folder) as runs:
        words = command(name, work, rounds, place, Path(runs))
        return words if isinstance(words, str) else measured(words, Path(runs))


def compare(
    work: Workload, names: list[str], repeats: int, rounds: int, place: Place
) -> dict[str, list[Run] | str]:
    """Let contenders take turns; return the runs of each, or why there are none."""
    found: dict[str, list[Run] | str] = {name: [] for name in names}
    did = None
    for repeat in range(repeats):
        for name in names:
            before = found[name]
            if isinstance(before, str):
                continue
            run = _run(name, work, rounds, place)
            if isinstance(run, str) and before:  # it ran before, so this may be an accident
                run = _run(name, work, rounds, place)
            if isinstance(run, Run) and did not in (None, run.did):
                run = f"it did not do the same work: weights and steps are {run.did}, not {did}"
            if isinstance(run, str):
                found[name] = run
                print(f"  {name}: {run}", flush=True)
                continue
            before.append(run)
            did = run.did if work.same_work else None
            print(f"  {repeat + 1} {name}: {run.round:.3f} s, start {run.start:.1f} s", flush=True)
    return found


def main(arguments: list[str] | None = None) -> None:
    """Measure, and write page and picture."""
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("benchmarks", description=__doc__, formatter_class=formatter)
    parser.add_argument("workloads", nargs="+", choices=["all", *WORKLOADS])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--contenders", help="only these; separated by ;; needs --out")
    quick = f"1 repeat of {QUICK} rounds; needs --out"
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--envs", type=Path, default=Path("~/.cache/fedapps-peers"))
    parser.add_argument("--data-root", default=DATA)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks", help="folder of the page")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="cuda needs --out")
    options = parser.parse_args(arguments)
    parts = {"--device cuda": options.device == "cuda", "--quick": options.quick}
    parts |= {"--contenders": options.contenders}
    given = [name for name, value in parts.items() if value]
    if given and options.out.resolve() == ROOT / "benchmarks":
        parser.error(f"{given[0]}: needs --out, as the page of this folder has all runs on CPUs")
    try:
        pick_torch_device(options.device)
    except RunError as error:
        parser.error(f"--{error}")
    names = [*WORKLOADS] if "all" in options.workloads else options.workloads
    known = {each for name in names for each in contenders(name, options.device)}
    wanted = set(options.contenders.split(";")) if options.contenders else known
    if strange := wanted - known:
        parser.error(f"--contenders {min(strange)}: must be of {';'.join(sorted(known))}")
    if options.repeats < 1:
        parser.error(f"--repeats {options.repeats}: must be at least 1")
    repeats, new = 1 if options.quick else options.repeats, {}
    with tempfile.TemporaryDirectory(prefix="fedapps-") as folder:
        place = Place(Path(folder), options.envs.expanduser(), options.data_root, options.device)
        try:
            for name in names:
                work = WORKLOADS[name]
                chosen = [each for each in contenders(name, options.device) if each in wanted]
                rounds = QUICK if options.quick else work.rounds
                print(f"{name}: {rounds} rounds, {repeats} repeats", flush=True)
                busy = psutil.cpu_percent(LOOKS) / 100 * (os.cpu_count() or 1)
                found = compare(work, chosen, repeats, rounds, place)
                new[name] = here(repeats, busy, found, options.device)
        finally:
            superlink.stop(place.folder)
    write(new, options.out)
    print(options.out / "RESULTS.md")


if __name__ == "__main__":
    main()
