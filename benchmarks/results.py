"""The page and the picture of what `python -m benchmarks` measured, and the file of its figures.

What was measured before stays in the file, so that one comparison can be repeated alone.
"""

import os
import platform
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TypeGuard

import msgspec
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.workloads import WORKLOADS, Workload
from fedapps.drawing.pictures import INK, save, styled
from fedapps.report.summary import cpu_model

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
}
HEAD = """# Results of the benchmarks

This page says how fast this project is: compared with bare PyTorch (`floor`), which computes only
the training steps; with other simulators; and with itself in other modes. It is written by
`python -m benchmarks all`, and its figures are in [results.json](results.json).

In each table, `s / round` is the median time of a round, without the first and the last one. The
next columns are ratios of times: below 1 is faster than what the head names. Contenders took turns,
and each ratio is of two runs of the same turn; ratios are medians, with the least and the largest
in brackets.
`start` is the time from the command to the first round. [Benchmarks](README.md) says more.

![How long a round takes, compared with the first contender](results.png)
"""
BUSY = """
**Other programs ran on this machine at the same time ({load:.1f} cores were in use before), so
these figures are preliminary.**
"""
BUSY_CORES = 0.7  # a machine does much in the background on its own
SAME_WORK = """
All of these take the same number of SGD steps on the same model (checked: {steps} steps a round,
{weights:,} weights, in PyTorch's channels-last format). They differ in this:
"""
NOTES = {  # of the contenders whose names begin so
    "floor": """
- `floor` has all batches in memory as tensors, and neither sends nor averages anything.
  `threads=2` means two threads of PyTorch; of `2 processes`, each takes every second step.""",
    "serial": """
- `serial`, as `workers=2` and `Ray`, is ours: it shuffles for each epoch, writes and checks
  messages, averages in float64 in the order of the clients, writes its tables, and runs without
  plots and checkpoints here.""",
    "group": """
- `group=` is ours, too: so many clients are trained together, as one model.""",
    "pfl": """
- `pfl` is pfl-research 0.6.0 in an environment of its own: all samples are in memory as tensors,
  and the batches of a client are always the same. `2 processes` are those of `torchrun`.""",
    "Flower": """
- `Flower` is a plain ClientApp like that of Flower's quickstart, with `run_simulation`: a
  SuperNode for each client, on Ray with two actors. A client makes model and DataLoader for each
  message, and converts its images one by one.""",
}


@dataclass(frozen=True)
class Run:
    """What was measured: seconds of a round and of the start, megabytes of memory, and the work."""

    round: float
    start: float
    memory: float | None  # None: only the page of `scale` tells it
    did: tuple[int, int]


@dataclass(frozen=True)
class Comparison:
    """The runs of a workload's contenders, or why one could not run; on which machine and when."""

    day: str
    machine: str
    repeats: int
    load: float  # cores that other programs used before it began
    found: dict[str, list[Run] | str]


Comparisons = dict[str, Comparison]


def here(repeats: int, load: float, found: dict[str, list[Run] | str], device: str) -> Comparison:
    """Return what was measured now, on this machine."""
    machine = "" if device == "cpu" else f"{torch.cuda.get_device_name()}, "
    machine += f"{os.cpu_count()} cores ({cpu_model()}), Python {platform.python_version()}, "
    machine += f"PyTorch {version('torch')}, Flower {version('flwr')}"
    return Comparison(f"{date.today()}", machine, repeats, load, found)


def write(new: Comparisons, folder: Path) -> None:
    """Write results.json, RESULTS.md and results.png with the new comparisons and the old ones."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "results.json"
    known = msgspec.json.decode(file.read_bytes(), type=Comparisons) if file.exists() else {}
    known |= new
    known = {name: known[name] for name in WORKLOADS if name in known}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")
    (folder / "RESULTS.md").write_text(HEAD + "".join(map(section, known, known.values())), "utf-8")
    results = {name: each.found for name, each in known.items()}
    if any(bases(WORKLOADS[name], found) for name, found in results.items()):
        with styled():
            save(picture(results), folder / "results.png")


def section(name: str, measured: Comparison) -> str:
    """Return the part of the page about a workload."""
    work, found = WORKLOADS[name], measured.found
    count = f"{measured.repeats} run{'s' * (measured.repeats > 1)} for each contender"
    text = f"\n## {name}\n\n{work.about}.\n\n"
    text += f"*{measured.day}: {count}, on {measured.machine}.*\n"
    text += BUSY.format(load=measured.load) if measured.load > BUSY_CORES else ""
    text += f"\n{table(work, found)}"
    if name == "fedavg" and (did := [runs[0].did for runs in found.values() if _ran(runs)]):
        text += SAME_WORK.format(weights=did[0][0], steps=did[0][1])
        ran = " ".join(f" {name}" for name, runs in found.items() if _ran(runs))
        text += "".join(note for name, note in NOTES.items() if f" {name}" in ran) + "\n"
    return text


def _ran(runs: list[Run] | str) -> TypeGuard[list[Run]]:
    return not isinstance(runs, str)


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
        if work is WORKLOADS["scale"]:
            cells.append(f"{max(run.memory or 0.0 for run in runs):.0f}")
        rows.append(cells)
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
