"""Small data sets of every kind of sample and of every task, which a small model learns."""

from pathlib import Path

import numpy as np

TRAIN, TEST = 60, 20
STEPS, FEATURES, TOKENS, LABELS, CLASSES = 6, 5, 7, 4, 3
MODELS = {
    "table": "mlp", "series": "gru", "tokens": "transformer-tiny", "regression": "mlp",
    "multilabel": "mlp",
}  # fmt: skip
TASKS = dict.fromkeys(MODELS, "classification") | {
    name: name for name in ("tokens", "regression", "multilabel")
}
SOME = {  # a method for each kind, together with and without states of clients, and split
    "table": "sflv2",
    "series": "fedcmd",
    "tokens": "fedala",
    "regression": "apfl",
    "multilabel": "fedbabu",
}


def arrays(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return inputs and targets; what a target is can be read off its input."""
    draws, size = np.random.default_rng(0), TRAIN + TEST
    table = draws.normal(size=(size, FEATURES))
    labels = np.arange(size) % CLASSES
    if kind == "table":
        return table + 2 * labels[:, None], labels
    if kind == "series":
        return draws.normal(2 * labels[:, None, None], 1, (size, STEPS, 2)), labels
    if kind == "tokens":
        texts = (np.arange(STEPS + 1) + draws.integers(TOKENS, size=(size, 1))) % TOKENS
        return texts[:, :-1], texts[:, 1:]
    if kind == "regression":
        return table, table @ np.linspace(-0.5, 0.5, FEATURES)
    return table, table[:, :LABELS] > 0


def write(folder: Path, kind: str) -> Path:
    """Write the data set of a kind as .npz."""
    inputs, targets = arrays(kind)
    path = folder / f"{kind}.npz"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(
        path, train_inputs=inputs[:TRAIN], train_targets=targets[:TRAIN],
        test_inputs=inputs[TRAIN:], test_targets=targets[TRAIN:],
    )  # fmt: skip
    return path


def options(folder: Path, kind: str) -> str:
    """Return the run-config of a kind: its data, its model, and shares of 4 clients."""
    path = write(folder, kind)
    return (
        f'dataset="{path}" model="{MODELS[kind]}" partitioner="iid" num-clients=4 min-samples=4 '
        'batch-size=16 threads=1 device="cpu"'
    )


OWN_MODEL = """
from torch import nn

def make(inputs, outputs):
    first = nn.Sequential(nn.Flatten(), nn.Linear(inputs.size, 8), nn.ReLU())
    return nn.Sequential(first, nn.Linear(8, outputs.shape[-1]))
"""
