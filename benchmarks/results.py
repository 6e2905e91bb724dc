"""The page and the picture of what `python -m benchmarks` measured."""

import os
import platform
import subprocess
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.workloads import WORKLOADS, Workload
from fedapps.drawing.pictures import INK, save, styled

COLORS = {
    "floor": "#c8c8c8",
    "floor, threads=2": "#a0a0a0",
    "floor, 2 processes": "#707070",
    "serial": "#0072b2",
    "serial, threads=2": "#56b4e9",
    "workers=2": "#003f7f",
    "group=20": "#7fd0d0",
    "Ray, 2 actors": "#009e73",
    "pfl": "#f5b041",
    "pfl, 2 processes": "#d55e00",
    "Flower": "#cc79a7",
    "BlazeFL": "#8e44ad",
}
HEAD = """# Results of the benchmarks

This page says how fast this project is: compared with bare PyTorch (`floor`), which computes only
the training steps; with other simulators; and with itself in other modes. It was written by

```sh
{how}
```

on {day}, from {repeats} for each contender, on {cores} cores ({cpu}), with Python {python},
PyTorch {torch} and Flower {flower}.{busy}

In each table, `s / round` is the median time of a round after the first one. The next columns are
ratios of times: below 1 is faster than what the head names. Contenders took turns, and each ratio
is of two runs of the same turn; ratios are medians, with the least and the largest in brackets.
`start` is the time from the command to the first round. [Benchmarks](README.md) says more.

![How long a round takes, compared with the first contender](results.png)
"""
BUSY = """

**Other programs ran on this machine at the same time (load {load:.1f} at the beginning), so these
figures are preliminary.**"""
NOTES = """
All of these take the same number of SGD steps on the same model (checked: {steps} steps a round,
{weights:,} weights, in PyTorch's channels-last format). They differ in this:

- `floor` has all batches in memory as tensors, and neither sends nor averages anything.
  `threads=2` means two threads of PyTorch; of `2 processes`, each takes every second step.
- Ours (`serial`, `workers=2`, `Ray`) shuffles for each epoch, writes and checks messages,
  averages in float64 in the order of the clients, writes its tables, and runs without plots and
  checkpoints here.
- `pfl` is pfl-research 0.6.0 in an environment of its own: all samples are in memory as tensors,
  and the batches of a client are always the same. `2 processes` are those of `torchrun`.
- `Flower` is a plain ClientApp like that of Flower's quickstart, with `run_simulation`: a
  SuperNode for each client, on Ray with two actors. A client makes model and DataLoader for each
  message, and converts its images one by one.
"""


def write(results: dict, folder: Path, how: str, repeats: int, load: float) -> None:
    """Write RESULTS.md and results.png; `results` has the runs of each workload's contenders."""
    busy = BUSY.format(load=load) if load > 0.3 else ""
    facts = {name: version(package) for name, package in (("torch", "torch"), ("flower", "flwr"))}
    count = f"{repeats} run{'s' * (repeats > 1)}"
    page = HEAD.format(
        **facts, how=how, day=date.today(), repeats=count, cores=os.cpu_count(), cpu=_cpu(),
        python=platform.python_version(), busy=busy,
    )  # fmt: skip
    for name, found in results.items():
        page += f"\n## {name}\n\n{WORKLOADS[name].about}.\n\n{table(WORKLOADS[name], found)}"
        if name == "fedavg" and (did := [runs[0].did for runs in found.values() if _ran(runs)]):
            page += NOTES.format(weights=did[0][0], steps=did[0][1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "RESULTS.md").write_text(page, "utf-8")
    if any(bases(WORKLOADS[name], found) for name, found in results.items()):
        with styled():
            save(picture(results), folder / "results.png")


def _ran(runs: list | str) -> bool:
    return not isinstance(runs, str)


def _cpu() -> str:
    lines = subprocess.run(["lscpu"], capture_output=True, text=True).stdout.splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("Model name")]
    return names[0] if names else platform.processor()


def ratios(runs: list, base: list) -> tuple[float, float, float]:
    """Return median, least and largest ratio of the rounds of two contenders' runs in turn."""
    each = [run.round / other.round for run, other in zip(runs, base, strict=True)]
    return median(each), min(each), max(each)


def bases(work: Workload, found: dict) -> list[str]:
    """Return those that can be compared with."""
    return [base for base in work.bases if base in found and _ran(found[base])]


def table(work: Workload, found: dict) -> str:
    """Return a workload's table, and below it who could not run."""
    heads = ["contender", "s / round", *(f"/ {base}" for base in bases(work, found)), "start, s"]
    heads += ["memory, MB"] * (work is WORKLOADS["scale"])
    rows = [heads, ["---"] * len(heads)]
    for name, runs in found.items():
        if not _ran(runs):
            continue
        cells = [f"`{name}`", f"{median(run.round for run in runs):.3f}"]
        for base in bases(work, found):
            middle, least, most = ratios(runs, found[base])
            spread = f" ({least:.2f} to {most:.2f})" if len(runs) > 1 and base != name else ""
            cells.append(f"{middle:.2f}{spread}")
        cells.append(f"{median(run.start for run in runs):.1f}")
        cells.append(f"{max(run.memory for run in runs):.0f}")
        rows.append(cells[: len(heads)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines += [f"\n`{name}` could not run: {why}" for name, why in found.items() if not _ran(why)]
    return "\n".join(lines) + "\n"


def picture(results: dict) -> Figure:
    """Draw a bar for each contender of each workload: its time over that of the first base."""
    shown = {name: found for name, found in results.items() if bases(WORKLOADS[name], found)}
    sizes = [1 + sum(map(_ran, found.values())) for found in shown.values()]
    figure = Figure(figsize=(6.8, 0.5 + 0.19 * sum(sizes) + 0.25 * len(sizes)))
    panels = figure.subplots(len(shown), 1, height_ratios=sizes, squeeze=False)[:, 0]
    for axes, (name, found) in zip(panels, shown.items(), strict=True):
        _panel(axes, name, found)
    return figure


def _panel(axes: Axes, name: str, found: dict) -> None:
    base = bases(WORKLOADS[name], found)[0]
    names = [contender for contender, runs in found.items() if _ran(runs)]
    for place, contender in enumerate(names):
        middle, least, most = ratios(found[contender], found[base])
        axes.barh(place, middle, color=COLORS.get(contender, "#0072b2"), height=0.75)
        axes.plot([least, most], [place, place], color=INK, linewidth=1)
        axes.text(most, place, f"  {middle:.2f}", va="center", fontsize=7)
    axes.axvline(1, color=INK, linewidth=0.8, linestyle=":")
    axes.set_yticks(range(len(names)), names, fontsize=7.5)
    axes.set_title(f"{name}: time of a round / {base}", fontsize=8.5, loc="left")
    axes.tick_params(axis="x", labelsize=7)
    axes.invert_yaxis()
    axes.grid(False)
