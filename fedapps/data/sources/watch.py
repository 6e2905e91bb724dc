"""Shoulder exercises that a smartwatch recorded, from the package seglearn."""

from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from fedapps.data.sources.source import Arrays, Source, parted
from fedapps.data.spec import Spec

# seglearn's defaults (`Segment`): 2 s at 50 Hz, each window half over the next
WIDTH, STEP = 100, 50
TRAIN_PERCENT = 70  # of each recording


def _watch(root: Path) -> Arrays:
    """Cut 140 recordings (10 subjects, 7 exercises, both arms) into windows [100, 6], float32.

    The channels are three of the accelerometer and three of the gyroscope. Windows overlap, so a
    random split would test on what was trained. Instead, the first 70 % of each recording are for
    training and the rest is for the test, and both are cut on their own: no measurement is in both.
    The group of a window is its subject.
    """
    from seglearn.datasets import load_watch

    data = load_watch()
    parts = []
    for series, exercise, subject in zip(data["X"], data["y"], data["subject"], strict=True):
        cut = len(series) * TRAIN_PERCENT // 100
        for test, part in enumerate((series[:cut], series[cut:])):
            windows = sliding_window_view(part, WIDTH, axis=0)[::STEP].swapaxes(1, 2)
            parts.append((windows.astype(np.float32), exercise, subject, test))
    inputs, *rest = zip(*parts, strict=True)
    exercises, subjects, tests = (np.repeat(values, [*map(len, inputs)]) for values in rest)
    groups = np.array([f"subject {subject:02}" for subject in subjects])
    return parted(np.concatenate(inputs), exercises.astype(np.int64), tests.astype(bool), groups)


WATCH = Source("watch", 7, (), (), _watch, Spec((WIDTH, 6)), "seglearn")
