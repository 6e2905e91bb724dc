"""The picture of README.md, drawn from the runs of its comparison on CIFAR-10.

fedapps sweep 'strategy="fedavg","fedper"' --seeds 0-2 -c experiments/configs/cifar10-small.toml
python docs/images/cifar10.py RUN RUN RUN RUN RUN RUN
"""

import sys
import tomllib
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

GREY, BLUE, ORANGE = "#8a8f98", "#1f5fa8", "#d9822b"
CURVES = (  # of which runs, which column, what it is called, colour, where that stands
    ("fedper", "accuracy_initial", "FedPer: shared body, own head", BLUE, (60, -12)),
    ("fedavg", "accuracy_personalized", "FedAvg, fine-tuned by each client", ORANGE, (0, 22)),
    ("fedavg", "accuracy_initial", "FedAvg: one model for everybody", GREY, (0, 10)),
)


def read(folders: list[Path]) -> dict[str, list[Path]]:
    """Return the run directories by method, in the order of their seeds."""
    runs = []
    for folder in folders:
        keys = tomllib.loads((folder / "config.toml").read_text("utf-8"))
        runs.append((keys["strategy"], keys["seed"], folder))
    return {m: [f for name, _, f in sorted(runs) if name == m] for m in ("fedavg", "fedper")}


def main() -> None:
    """Draw docs/images/cifar10.png."""
    runs = read([Path(name) for name in sys.argv[1:]])
    plt.rcParams |= {"font.size": 10.5, "axes.spines.top": False, "axes.spines.right": False}
    picture, (left, right) = plt.subplots(1, 2, figsize=(10, 3.9), width_ratios=(5, 4))
    for method, column, label, colour, place in CURVES:
        tables = [
            pd.read_csv(folder / "rounds.csv").dropna(subset=[column]) for folder in runs[method]
        ]
        values = 100 * np.stack([table[column] for table in tables])
        rounds, mean, std = tables[0]["round"], values.mean(0), values.std(0)
        left.fill_between(rounds, mean - std, mean + std, color=colour, alpha=0.2, linewidth=0)
        left.plot(rounds, mean, color=colour, marker="o", linewidth=2)
        left.annotate(label, (10, mean[0]), place, textcoords="offset points", color=colour)
        clients = pd.read_csv(runs[method][0] / "clients.csv")
        last = clients[clients["round"] == clients["round"].max()]
        right.plot(range(1, len(last) + 1), np.sort(100 * last[column]), color=colour, linewidth=2)
    seeds = len(runs["fedper"])
    left.set(xlabel="round", ylabel="accuracy (%)", ylim=(0, 100), xlim=(8, None), xticks=rounds)
    left.set_title(
        "mean over clients" + (f", {seeds} seeds (band: ± std)" if seeds > 1 else ", seed 0"),
        fontsize=10.5,
        loc="left",
    )
    right.set(xlabel="clients, from worst to best", ylim=(0, 100), xlim=(1, None))
    right.set_title("each client on its own test images, seed 0", fontsize=10.5, loc="left")
    for axes in (left, right):
        axes.grid(axis="y", color="#e3e5e8", linewidth=0.8)
        axes.set_axisbelow(True)
    picture.suptitle(
        "CIFAR-10 over 100 clients with few classes each", x=0.01, ha="left", fontsize=13
    )
    picture.tight_layout()
    picture.savefig(Path(__file__).with_suffix(".png"), dpi=160)


if __name__ == "__main__":
    main()
